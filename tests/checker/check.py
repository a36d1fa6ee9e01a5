"""A checker of what readers of tables saw; it knows nothing of the library, and imports nothing of it.

    python -m tests.checker.check HISTORY...

A history is a file of JSON lines, in the order in which things happened (``tests/checker/record.py`` writes them):

| event | fields | means |
|---|---|---|
| ``begin`` | ``tables`` | first line: each table by name, ``append`` or ``keyed`` (by the first value of a row) |
| ``write`` | ``rows`` | an input arrived, whole: the rows of it by table; of a keyed one those its keys have then |
| ``read`` | ``tables``, ``began``, ``together``, ``settled`` | a reader found these rows, by table |
| ``restore`` | ``keeps``, ``began`` | a person went back to so many writes; what comes again is written again |
| ``fork`` | ``of``, ``keeps`` | this pipeline begins with so many writes of another one |
| ``swap`` | ``to``, ``began`` | who reads this pipeline finds the tables of another one, or its own again |
| ``kill`` … | | something broke, which must change nothing |

All have ``at``, in seconds of one clock, when they had ended, and ``pipeline`` where there are several. ``together``:
at all tables of one checkpoint; ``settled``: all that arrived must be there. Inputs are shown in the order in which
they arrived, and what a reader finds is as after one of them. What a reader may not see is an ``Anomaly``.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Row = tuple[Any, ...]
Event = Mapping[str, Any]


class Anomaly(StrEnum):
    """Anomaly of a read."""

    LOST = "lost"
    """A row is not there, though a later one is, or all was said to be."""
    DOUBLED = "doubled"
    """A row is there more often than it was written."""
    PHANTOM = "phantom"
    """A row is there that nobody wrote."""
    TORN_KEY = "torn key"
    """A key is there twice, or keys are there with values of different moments."""
    TIME_TRAVEL = "time travel"
    """A read shows less than one that had ended before it began."""
    MIXED_CHECKPOINT = "mixed checkpoint"
    """Tables that were read together are of different moments."""
    ROW_OF_A_FORK = "row of a fork"
    """A row is there that only another pipeline was given."""
    TAKEN_BACK = "row a restore took back"
    """A row is there that a restore had taken away, and that did not come again."""


@dataclass(frozen=True, slots=True)
class Found:
    """An anomaly, and where."""

    anomaly: Anomaly
    line: int
    said: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.anomaly}: {self.said}"


@dataclass
class Pipeline:
    """What one pipeline was given, and what its readers saw."""

    writes: list[Mapping[str, list[Row]]] = field(default_factory=list)
    gone: list[Mapping[str, list[Row]]] = field(default_factory=list)
    """Writes that restores took back."""
    seen: list[tuple[float, str, int]] = field(default_factory=list)
    """When a read ended, of which table, and how many writes it showed at least."""


@dataclass(frozen=True, slots=True)
class World:
    """State of all pipelines between two events; reads that overlap a restore or a swap may see the one before it."""

    pipelines: Mapping[str, Pipeline]
    serves: Mapping[str, str]
    until: float = float("inf")
    """When it was over."""

    def copy(self, until: float) -> World:
        kept = {
            name: Pipeline(list(one.writes), list(one.gone), list(one.seen))
            for name, one in self.pipelines.items()
        }
        return World(kept, dict(self.serves), until)


def check(events: Iterable[Event]) -> list[Found]:
    """Return every anomaly of a history. Raises ValueError for one that is not in the format."""
    return list(_Checker().run(events))


class _Checker:
    def __init__(self) -> None:
        self.kinds: dict[str, str] = {}
        self.pipelines: dict[str, Pipeline] = {}
        self.serves: dict[str, str] = {}
        self.before: list[World] = []

    def run(self, events: Iterable[Event]) -> Iterator[Found]:
        for line, event in enumerate(events, 1):
            name = event.get("pipeline", "")
            match event["event"]:
                case "begin":
                    self.kinds = dict(event["tables"])
                    if not set(self.kinds.values()) <= {"append", "keyed"}:
                        raise ValueError(f"line {line}: a table is append or keyed, got {self.kinds}")
                case "write":
                    rows = {table: [_row(row) for row in rows] for table, rows in event["rows"].items()}
                    if not rows.keys() <= self.kinds.keys():
                        raise ValueError(f"line {line}: tables that `begin` does not name: {set(rows)}")
                    self.pipeline(name).writes.append(rows)
                case "restore":
                    self.keep_before(event)
                    restored = self.pipeline(name)
                    restored.gone += restored.writes[event["keeps"] :]
                    del restored.writes[event["keeps"] :]
                    restored.seen.clear()
                case "fork":
                    origin = self.pipeline(event["of"])
                    self.pipelines[name] = Pipeline(origin.writes[: event["keeps"]])
                case "swap":
                    self.keep_before(event)
                    self.serves[name] = event["to"]
                    self.pipeline(event["to"]).seen.clear()
                case "read":
                    yield from self.read(line, event)

    def pipeline(self, name: str) -> Pipeline:
        return self.pipelines.setdefault(name, Pipeline())

    def keep_before(self, event: Event) -> None:
        self.before.append(World(self.pipelines, self.serves).copy(until=event["at"]))

    def read(self, line: int, event: Event) -> Iterator[Found]:
        """Judge a read by the world as it is, and where it overlaps a change by those that it may still have seen."""
        now = World(self.pipelines, self.serves)
        worlds = [now, *(world for world in self.before if world.until >= event["began"])]
        results = [list(self.judged(world, line, event)) for world in worlds]
        if all(results):
            yield from results[0]

    def judged(self, world: World, line: int, event: Event) -> Iterator[Found]:
        asked = event.get("pipeline", "")
        name = world.serves.get(asked, asked)
        pipeline = world.pipelines.get(name, Pipeline())
        moments: dict[str, set[int]] = {}
        for table, content in event["tables"].items():
            found = Counter(_row(row) for row in content)
            possible = self.moments(pipeline, table, found)
            if not possible:
                yield from self.why(world, name, table, found, line)
                return
            moments[table] = possible
        together = set.intersection(*moments.values()) if moments else set()
        if event.get("together") and not together:
            shown = ", ".join(f"{table} after {min(at)} writes" for table, at in moments.items())
            yield Found(Anomaly.MIXED_CHECKPOINT, line, shown)
        for table, possible in moments.items():
            if event.get("settled") and max(possible) < len(pipeline.writes):
                said = f"{table} shows {max(possible)} of {len(pipeline.writes)} writes in the end"
                yield Found(Anomaly.LOST, line, said)
            ended = [at for when, of, at in pipeline.seen if of == table and when < event["began"]]
            if ended and max(possible) < max(ended):
                said = f"{table} shows {max(possible)} writes, and had shown {max(ended)}"
                yield Found(Anomaly.TIME_TRAVEL, line, said)
            if world.until == float("inf"):
                pipeline.seen.append((event["at"], table, min(possible)))

    def moments(self, pipeline: Pipeline, table: str, found: Counter[Row]) -> set[int]:
        """Return after how many writes the table has exactly this content; empty: never."""
        is_keyed = self.kinds[table] == "keyed"
        rows: Counter[Row] = Counter()
        values: dict[Any, Row] = {}
        at = {0} if not found else set()
        for number, write in enumerate(pipeline.writes, 1):
            for row in write.get(table, ()):
                if is_keyed and row[0] in values:
                    _take(rows, values[row[0]])
                values[row[0]] = row
                rows[row] += 1
            if len(rows) == len(found) and rows == found:
                at.add(number)
        return at

    def why(self, world: World, name: str, table: str, found: Counter[Row], line: int) -> Iterator[Found]:
        """Yield what is wrong with a content that the table never had."""
        own = _written(world.pipelines.get(name, Pipeline()).writes, table)
        foreign = found.keys() - own.keys()
        gone = _written(world.pipelines.get(name, Pipeline()).gone, table)
        others = [_written(one.writes, table) for other, one in world.pipelines.items() if other != name]
        for row in sorted(foreign, key=repr)[:10]:
            if row in gone:
                yield Found(Anomaly.TAKEN_BACK, line, f"{table} has {row}")
            elif any(row in other for other in others):
                yield Found(Anomaly.ROW_OF_A_FORK, line, f"{table} has {row}")
            elif self.kinds[table] == "keyed" and row[0] in {one[0] for one in own}:
                yield Found(Anomaly.TORN_KEY, line, f"{table} has {row}, which was no value of the key")
            else:
                yield Found(Anomaly.PHANTOM, line, f"{table} has {row}")
        if foreign:
            return
        if self.kinds[table] == "keyed":
            keys = Counter(row[0] for row in found.elements())
            twice = sorted((key for key, count in keys.items() if count > 1), key=repr)
            said = (
                f"has {twice[:10]} more than once" if twice else "has keys with values of different moments"
            )
            yield Found(Anomaly.TORN_KEY, line, f"{table} {said}")
            return
        often = sorted((row for row, count in found.items() if count > own[row]), key=repr)
        if often:
            yield Found(Anomaly.DOUBLED, line, f"{table} has {often[:10]} too often")
            return
        last = max(
            number for number, rows in enumerate(self._of(world, name, table)) if found.keys() & set(rows)
        )
        wanted = _written(world.pipelines[name].writes[: last + 1], table)
        missing = sorted((wanted - found).keys(), key=repr)
        yield Found(Anomaly.LOST, line, f"{table} lacks {missing[:10]} ({len(missing)}), and has later ones")

    def _of(self, world: World, name: str, table: str) -> list[Sequence[Row]]:
        return [write.get(table, ()) for write in world.pipelines[name].writes]


def _take(rows: Counter[Row], row: Row) -> None:
    rows[row] -= 1
    if not rows[row]:
        del rows[row]


def _written(writes: Iterable[Mapping[str, list[Row]]], table: str) -> Counter[Row]:
    return Counter(row for write in writes for row in write.get(table, ()))


def _row(row: Sequence[Any]) -> Row:
    return tuple(_row(value) if isinstance(value, list) else value for value in row)


def main(files: Sequence[str]) -> int:
    """Check files of histories, and print what is found."""
    well = True
    for name in files:
        with open(name, encoding="utf-8") as file:
            events = [json.loads(line) for line in file]
        found = check(events)
        reads = sum(event["event"] == "read" for event in events)
        print(f"{name}: {len(events)} events, {reads} reads, {len(found)} anomalies")
        for one in found[:50]:
            print(f"  {one}")
        well = well and not found
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
