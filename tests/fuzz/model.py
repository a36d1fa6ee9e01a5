"""Truth of a drawn pipeline: its operators in plain Python, with a state of their own that is copied with a snapshot.

It knows nothing of batches, channels and checkpoints: rows go in, and tables come out.
"""

from __future__ import annotations

import copy
import datetime as dt
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.attack.outsides import Kind
from tests.fuzz.drawn import CONDITIONS, FAILS_AT, NO_JUDGES, Drawn, Judges, Op, Output, Stage
from tests.fuzz.values import COLUMNS, Row, fits, plain_row

WINDOW = dt.timedelta(minutes=15)
DELAY = dt.timedelta(minutes=10)
EPOCH = dt.datetime.fromtimestamp(0, dt.UTC).replace(tzinfo=None)
MODULUS = 7
"""Of the values that ``distinct`` tells apart."""
SIDES = 4
"""Rows of a join have the same ``k``, and the same ``n`` modulo this."""
N, K, V, AT, X = range(5)


class Kept(NamedTuple):
    """A row of a quarantine."""

    row: Row
    condition: str
    """That led it there; empty: it could not be processed, and is the input's."""
    state: str = "quarantined"


@dataclass
class Model:
    """State of every operator and the rows of every table, by their number in the drawing: names may change."""

    state: dict[int, Any] = field(default_factory=dict)
    tables: dict[int, list[Row]] = field(default_factory=dict)
    sums: dict[int, dict[Any, Row]] = field(default_factory=dict)
    kept: dict[str, list[Kept]] = field(default_factory=dict)
    """Rows of each quarantine, by its name."""
    read: set[int] = field(default_factory=set)
    """Files that were read, by number."""

    def copy(self) -> Model:
        """Return what a snapshot taken now would hold."""
        return copy.deepcopy(self)

    def process(
        self,
        drawn: Drawn,
        files: Mapping[int, tuple[int, Sequence[Row]]],
        again: Callable[[str, bool], bool] = lambda name, has_rows: False,
    ) -> None:
        """Read the files that were not read: by number, of which source and with which rows.

        ``again``: tells of a quarantine whether its rows go through their stage again, which has rows or has not.
        """
        fresh = sorted(files.keys() - self.read)
        made: dict[str, list[Row]] = {}
        for number, stage in enumerate(drawn.stages):
            if stage.op is Op.SOURCE:
                of = int(stage.uid.split("_")[1])
                own = [files[one][1] for one in fresh if files[one][0] == of]
                read = [plain_row(row) for rows in own for row in rows]
                made[stage.uid] = self._judged(stage, read, again(quarantine_of(stage), bool(read)))
                continue
            unique = drawn.shapes[stage.inputs[0]].unique
            inputs = [made[uid] for uid in stage.inputs]
            once_more = again(quarantine_of(stage), any(inputs))
            if stage.judges.on_error and stage.op is Op.MAP:
                inputs = [self._processed(stage, inputs[0], once_more)]
            found = self._behind(number, stage, inputs, unique=unique)
            made[stage.uid] = self._judged(stage, found, once_more)
        self.read.update(fresh)
        for number, output in drawn.sinks:
            rows = made[output.input]
            if output.judges is not NO_JUDGES:
                rows = self._judged(output, rows, again(quarantine_of(output), bool(rows)))
            self._write(number, drawn, output, rows)

    def rows(self, drawn: Drawn, number: int) -> Counter[Row]:
        """Return what readers of a table find."""
        output = drawn.outputs[number]
        width = len(columns_of(drawn, output))
        return Counter(row[:width] for row in self.tables.get(number, []))

    # --- conditions -----------------------------------------------------------------------------------------------

    def _processed(self, stage: Stage, rows: list[Row], again: bool) -> list[Row]:
        """Return the rows of an input that can be processed; of kept ones too, if they are tried again."""
        kept = self.kept.setdefault(quarantine_of(stage), [])
        once_more = []
        for at, had in enumerate(kept) if again else ():
            if not had.condition and had.state == "quarantined" and had.row[N] % FAILS_AT != 1:
                once_more.append(had.row)
                kept[at] = had._replace(state="requeued")
        kept += [Kept(row, "") for row in rows if row[N] % FAILS_AT == 1]
        return [row for row in rows if row[N] % FAILS_AT != 1] + once_more

    def _judged(self, one: Stage | Output, rows: list[Row], again: bool) -> list[Row]:
        """Return the rows that go on; keep those that are to be kept."""
        judges, found = one.judges, []
        kept = self.kept.setdefault(quarantine_of(one), []) if judges.keeps else []
        waited = [at for at, had in enumerate(kept) if had.condition and had.state == "quarantined"]
        for row in rows:
            action, condition = verdict(judges, row)
            if action == "quarantine":
                kept.append(Kept(row, condition))
            elif action != "drop":
                found.append(row)
        for at in waited if again else ():
            action, condition = verdict(judges, kept[at].row)
            if action == "quarantine":
                kept[at] = Kept(kept[at].row, condition)
            else:
                kept[at] = kept[at]._replace(state="dropped" if action == "drop" else "requeued")
                found += [] if action == "drop" else [kept[at].row]
        return found

    # --- operators ------------------------------------------------------------------------------------------------

    def _behind(  # noqa: PLR0911 - a flat table
        self, number: int, stage: Stage, inputs: list[list[Row]], *, unique: bool
    ) -> list[Row]:
        rows = inputs[0]
        match stage.op:
            case Op.MAP:
                return [(n, k, v * 2 + stage.number, at, x) for n, k, v, at, x in rows]
            case Op.FILTER:
                return [row for row in rows if row[N] % stage.number]
            case Op.UNION:
                return inputs[0] + inputs[1]
            case Op.DEDUP:
                return self._first_of(number, rows, by=lambda row: row[N])
            case Op.DISTINCT:
                few = [(v % MODULUS, k, v % MODULUS, EPOCH, None) for _, k, v, _, _ in rows]
                return self._first_of(number, few, by=lambda row: row[: K + 1])
            case Op.JOIN:
                return self._joined(number, *inputs)
            case Op.SUM:
                return added(self.state.setdefault(number, {}), rows, unique=unique)
            case Op.WINDOW:
                return added(self.state.setdefault(number, {}), windows(rows), by=(N, K))
            case Op.CLOSED:
                return self._closed(number, rows)
            case _:
                raise AssertionError(stage)

    def _first_of(self, number: int, rows: list[Row], *, by: Callable[[Row], Any]) -> list[Row]:
        seen = self.state.setdefault(number, set())
        found = []
        for row in rows:
            if by(row) not in seen:
                seen.add(by(row))
                found.append(row)
        return found

    def _joined(self, number: int, left: list[Row], right: list[Row]) -> list[Row]:
        lefts, rights = self.state.setdefault(number, ([], []))
        pairs = [(a, b) for a in left for b in (*rights, *right)] + [(a, b) for a in lefts for b in right]
        lefts += left
        rights += right
        return [
            (a[N] * 10007 + b[N], a[K], a[V] + b[V], max(a[AT], b[AT]), a[X])
            for a, b in pairs
            if a[K] is not None and a[K] == b[K] and a[N] % SIDES == b[N] % SIDES
        ]

    def _closed(self, number: int, rows: list[Row]) -> list[Row]:
        groups, newest = self.state.get(number, ({}, EPOCH))
        newest = max([newest, *(row[AT] for row in rows)])
        added(groups, windows(rows), by=(N, K))
        ended = [key for key, row in groups.items() if row[AT] + WINDOW <= newest - DELAY]
        found = [groups.pop(key) for key in ended]
        self.state[number] = groups, newest
        return found

    # --- tables -----------------------------------------------------------------------------------------------------

    def _write(self, number: int, drawn: Drawn, output: Output, rows: list[Row]) -> None:
        if output.sums:
            unique = drawn.shapes[output.input].unique
            rows = added(self.sums.setdefault(number, {}), rows, unique=unique)
        if output.kind is Kind.SQL and "k" in output.key:
            rows = [row for row in rows if row[K] is not None]
        table = self.tables.setdefault(number, [])
        if output.key:
            at = [COLUMNS.index(name) for name in output.key]
            by_key = {tuple(row[i] for i in at): row for row in (*table, *rows)}
            table[:] = by_key.values()
        else:
            table += rows


def quarantine_of(one: Stage | Output) -> str:
    """Return the name of a quarantine: of a renamed stage its first one's, of a sink the one that judges."""
    first = (one.uid, *one.previous)[-1]
    return one.judges.name or (f"{first}_rows" if isinstance(one, Output) else first)


def verdict(judges: Judges, row: Row) -> tuple[str, str]:
    """Return what becomes of a row, the hardest, and the first broken condition that led there."""
    broken = [(condition, action) for condition, action in judges.expect if not CONDITIONS[condition](row)]
    for hardest in ("quarantine", "drop", "warn"):
        for condition, action in broken:
            if action == hardest:
                return action, condition
    return "", ""


def columns_of(drawn: Drawn, output: Output) -> tuple[str, ...]:
    """Return the columns of a sink's table: what it cannot hold it is not given."""
    return COLUMNS if fits(drawn.value_type, output.kind) else COLUMNS[:-1]


def windows(rows: Sequence[Row]) -> list[Row]:
    """Return rows by the start of their window, in seconds and as a time."""
    found = []
    for _, k, v, at, _ in rows:
        start = EPOCH + (at - EPOCH) // WINDOW * WINDOW
        found.append((int((start - EPOCH).total_seconds()), k, v, start, None))
    return found


def added(
    groups: dict[Any, Row], rows: Sequence[Row], *, by: Sequence[int] = (K,), unique: bool = False
) -> list[Row]:
    """Add rows to the sums of their groups, and return those that changed; ``x`` is that of the highest ``n``."""
    changed = {}
    for n, k, v, at, x in rows:
        key = tuple((n, k)[i] for i in by)
        had = groups.get(key)
        if had is None:
            groups[key] = (n, k, v, at, x if unique else None)
        else:
            newest = x if n > had[N] else had[X]
            groups[key] = (max(n, had[N]), k, v + had[V], max(at, had[AT]), newest if unique else None)
        changed[key] = None
    return [groups[key] for key in changed]
