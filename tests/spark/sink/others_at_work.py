"""Others at work on a table between our commits, in any order: what is asked of each format's sink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.sink.port import LaterRows
from dagster_ckpt.spark.sink.rows import PublishedRows
from dagster_ckpt.testing import SinkRun
from dagster_ckpt.testing.sinks.run import Row, RunCut

Act = Callable[[int], None]
"""Something that somebody else does to the table, by a drawn number; what it cannot do now it leaves."""
Rows = Callable[[], list[Row] | None]
"""Reads (k, v) as any reader would; None: there are no such columns, or no table."""

OURS = ("publish", "publish", "publish", "restart", "back", "back", "nothing", "keep", "as_of", "exchange")


@dataclass(kw_only=True)
class Table:
    """Our attempts on a table, others between them, and what readers saw."""

    run: SinkRun
    rows: Rows
    others: Mapping[str, Act]
    checkpoint: int = 0
    cuts: list[tuple[RunCut, list[Row]]] = field(default_factory=list)
    """With the rows that readers saw once its checkpoint was published."""
    forks: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """What was refused, for the test to see that not all of it is."""

    def do(self, step: tuple[str, int]) -> None:
        """Carry out one step, of ours or of others."""
        name, number = step
        if name in self.others:
            self.others[name](number)
        else:
            getattr(self, f"_{name}")(number)

    # --- ours -------------------------------------------------------------------------------------------------

    def _publish(self, number: int) -> None:
        """Rows come once each, on top of what there was, or none at all."""
        self.checkpoint += 1
        self.run.batch([(number, self.checkpoint)])
        before, position = self.rows(), self.run.sink.position()
        shown = position.through_batch if position is not None else None
        new = [b for b in self.run.batches if shown is None or b.batch_id > shown]
        count = sum(file.rows for batch in new for file in batch.files)
        if not self._tried("publish", lambda: self.run.publish(self.checkpoint)):
            assert self.rows() == before, "what is refused changes nothing"
            return
        after = self.rows()
        assert after is not None
        if not self.run.context.key:
            assert len(after) == len(before or ()) + count
            assert not Counter(before or ()) - Counter(after)
        else:
            assert (number, self.checkpoint) in after
        self.cuts.append((self.run.cut(self.checkpoint), after))

    def _restart(self, number: int) -> None:
        """A new attempt takes over as it is: readers see no difference."""
        before, newer = self.rows(), self.run.successor()
        self._tried("restart", newer.sink.take_over)
        self.run = newer
        assert self.rows() == before

    def _back(self, number: int) -> None:
        if self.cuts:
            at, rows = self.cuts[number % len(self.cuts)]
            self._go(at, rows)

    def _nothing(self, number: int) -> None:
        self._go(None, None)

    def _go(self, at: RunCut | None, rows: list[Row] | None) -> None:
        """A restore shows exactly the rows of the cut and what others have added, or says why not."""
        newer, before = self.run.successor().in_directory_of(at), self.rows()
        wanted = None if at is None else at.cut.snapshot.head
        position = newer.sink.position()
        shown = position.head if position is not None else None
        why = newer.sink.cannot_roll_back(None if at is None else at.cut)
        assert "\n" not in why
        if not self._tried("restore", lambda: newer.roll_back(at)):
            assert why
            assert self.rows() == before, "what is refused changes nothing"
            self._go_on_from(newer)
            return
        assert why == ""
        after = self.rows()
        theirs = Counter(row for row in before or () if self.may_have_added(Counter([row])))
        assert not theirs - Counter(after or ()), "rows of others left"
        if rows is not None:
            assert not Counter(rows) - Counter(after or ()), "rows of the cut are missing"
            added = Counter(after or ()) - Counter(rows)
            assert self.may_come_back(added - Counter(before or ())), "rows came from nowhere"
            assert wanted == shown or self.may_have_added(added), "later rows of ours stayed"
        self.run = newer
        if at is None:
            self.run.processed = []

    def may_have_added(self, added: Counter[Row]) -> bool:
        """Tell whether these may be rows of others: ours have the number of their checkpoint."""
        return all(value is None or value < 0 for _, value in added)

    def may_come_back(self, rows: Counter[Row]) -> bool:
        """Tell whether these, which neither the cut nor readers had, may be there: no rows."""
        return not rows

    def _as_of(self, number: int) -> None:
        """A reader of a cut, and a fork that begins with it, find exactly the rows of ours, or are told why not."""
        if not self.cuts:
            return
        at, rows = self.cuts[number % len(self.cuts)]
        self.forks += 1
        name, was = PipelineId(f"fork{self.forks}"), self.run.context
        fork = self.run.open(
            replace(
                was,
                pipeline=name,
                table_dir=was.table_dir.with_name(name),
                work_dir=was.work_dir.with_name(name),
            )
        )

        def forked() -> PublishedRows:
            fork.fork(at.cut)
            return fork.rows()

        self._finds("read", lambda: self.run.sink.rows(at.cut), rows)
        self._finds("fork", forked, rows)

    def _exchange(self, number: int) -> None:
        """All rows give way to others only where none of somebody else's is among them."""
        why: list[str] = []
        if self._tried("exchange", lambda: why.append(self.run.sink.why_not_exchanged())) and why == [""]:
            assert not [row for row in self.rows() or () if self.may_have_added(Counter([row]))]

    def _finds(self, what: str, read: Callable[[], PublishedRows], rows: list[Row]) -> None:
        found: list[Row] = []
        before = self.rows()
        if self._tried(what, lambda: found.extend(_pairs(read()))) and _RENAMED not in found:
            assert self._ours(found) == self._ours(rows), what
        assert self.rows() == before

    def _ours(self, rows: list[Row]) -> Counter[Row]:
        return Counter(row for row in rows if not self.may_have_added(Counter([row])))

    def _keep(self, number: int) -> None:
        """A restore that keeps later rows works where those of the cut are among them."""
        at = self.cuts[number % len(self.cuts)][0] if self.cuts else None
        newer, before = self.run.successor().in_directory_of(at), self.rows()
        is_kept = self._tried("keep", lambda: newer.roll_back(at, LaterRows.KEEP))
        assert self.rows() == before
        if not is_kept:
            self._go_on_from(newer)
            return
        self.run = newer
        self.cuts = []  # what is published now stands beside rows of before

    def _go_on_from(self, refused: SinkRun) -> None:
        """Begin an attempt after one whose restore was refused."""
        self.run = self.run.successor(epoch=int(refused.attempt.epoch))
        self._tried("restart", self.run.sink.take_over)

    def _tried(self, what: str, act: Callable[[], object]) -> bool:
        """Tell whether it was done; the only other end is a sentence of the library's own."""
        said = ""
        try:
            act()
        except CheckpointError as error:
            said = str(error)
            self.refused[what] += 1
        assert "\n" not in said
        return not said


_RENAMED: Row = ()
"""Stands for rows that have their columns under the names that others gave them."""


def _pairs(rows: PublishedRows) -> list[Row]:
    found = rows.to_arrow()
    if not {"k", "v"} <= {*found.column_names}:
        return [_RENAMED]
    return list(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))


def steps(others: Mapping[str, Act] | tuple[str, ...]) -> st.SearchStrategy[list[tuple[str, int]]]:
    """Draw what is done, by us and by others; first of all something is published."""
    name = st.one_of(st.sampled_from(OURS), st.sampled_from(sorted(others)))
    drawn = st.lists(st.tuples(name, st.integers(0, 7)), min_size=3, max_size=14)
    return drawn.map(lambda found: [("publish", 0), *found])
