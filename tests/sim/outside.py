"""What lies outside of processes: store, storage and tables, which answer slowly, wrongly once, or not at all.

Nothing here breaks its contract: a call that was not answered may have happened, a listing may lack what was written a
moment ago, a read may fail. The tables are the library's engine of versioned tables on a backend in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_ckpt.authoring.targets import SinkTarget
from dagster_ckpt.core.paths import AlreadyExists
from dagster_ckpt.errors import Corrupt, OutcomeUnknown, Unavailable
from dagster_ckpt.ext.tables.engine import Change, Engine, Halfway, Raced
from dagster_ckpt.ext.tables.marks import Mark, SinkNames
from dagster_ckpt.ext.tables.sink import VersionedSink
from dagster_ckpt.ext.tables.staged_files import StagedFiles, areas_of
from dagster_ckpt.ext.tables.version import State, Version
from dagster_ckpt.spark.sink.committables import PreparedBatch, shown_files
from dagster_ckpt.spark.sink.port import AttemptId, SinkContext, SinkDescription
from dagster_ckpt.testing.faulty import Call, Operation
from tests.sim.scheduler import Scheduler

T = TypeVar("T")
Row = tuple[int, int]


FAULTS = (
    "a read that fails",
    "a short read",
    "a write that fails",
    "a write without an answer",
    "a listing that lags",
    "a request that arrives twice",
)
"""Whatever befalls a call: ``fails`` is an error of the network, or an answer 503."""


@dataclass
class Weather:
    """How bad everything outside is at the moment."""

    scheduler: Scheduler
    fails: float = 0.0
    """Share of calls that fail."""
    slow: float = 0.0
    """Share of calls that take up to ``slowest`` seconds."""
    slowest: float = 8.0
    met: dict[str, int] = field(default_factory=dict)
    """Faults so far, by what they were."""

    def around(self, call: Call, proceed: Callable[[], T]) -> T:
        """Let a call happen, or not; let it be answered, or not."""
        return self.through(
            f"{call.operation} {call.subject[-40:]}", proceed, writes=call.operation.writes, call=call
        )

    def through(self, what: str, proceed: Callable[[], T], *, writes: bool, call: Call | None = None) -> T:
        """Do as ``around`` for any call."""
        rng = self.scheduler.random
        delay = rng.random() * (self.slowest if rng.random() < self.slow else 0.01)
        self.scheduler.point(what, delay)
        if rng.random() >= self.fails:
            answer = proceed()
            if call is not None and rng.random() < self.fails * 4:
                answer = self._bent(call, answer, proceed)
            self.scheduler.point(f"answer to {what}")
            return answer
        if not writes:
            if call is not None and call.operation is Operation.FETCH and rng.random() < 0.5:
                raise self._meet("a short read", Corrupt(f"{what}: other bytes than were stored"))
            raise self._meet("a read that fails", Unavailable(f"{what}: asked in vain"))
        if rng.random() < 0.5:
            raise self._meet("a write that fails", Unavailable(f"{what}: refused"))
        made = proceed() if rng.random() < 0.7 else None
        self.scheduler.point(f"answer to {what}")
        if isinstance(made, AlreadyExists):
            return made
        raise self._meet("a write without an answer", OutcomeUnknown(f"{what}: not answered"))

    def _bent(self, call: Call, answer: T, proceed: Callable[[], T]) -> T:
        """Return the answer of a listing that lags, or of a request that the network has doubled."""
        if call.operation is Operation.LIST:
            return self._meet("a listing that lags", answer[: len(answer) // 2])  # type: ignore[index]
        if call.operation in (Operation.CREATE, Operation.DELETE):
            return self._meet("a request that arrives twice", proceed())
        return answer

    def _meet(self, what: str, of: T) -> T:
        self.met[what] = self.met.get(what, 0) + 1
        self.scheduler.note(what)
        return of


# --- tables -------------------------------------------------------------------------------------------------------


@dataclass
class Table:
    """One table, as every process finds it: its states, newest last, and the rows of each."""

    name: str
    folder: Path
    weather: Weather
    key: bool = False
    states: list[State] = field(default_factory=list)
    rows: list[dict[int, int] | list[Row]] = field(default_factory=list)
    watch: Callable[[Table], None] = lambda table: None
    """Told of every commit."""

    @property
    def target(self) -> SinkTarget:
        """Where a sink finds it."""
        return TableTarget(self.name)

    def rows_of(self, number: int = -1) -> list[Row]:
        """The rows of a state, of the newest unless it is named, sorted."""
        rows = self.rows[number] if self.rows else []
        return sorted(rows.items() if isinstance(rows, dict) else rows)

    @property
    def mark(self) -> Mark | None:
        """What the newest state says."""
        return self.states[-1].mark if self.states else None

    def append(
        self, expected: int, mark: Mark, rows: Any, did: str, brings: int | None = None, **more: Any
    ) -> None:
        """Commit on top of a state. Raises Raced."""

        def commit() -> None:
            if len(self.states) != expected:
                raise Raced
            number = len(self.states)
            state = State(
                number=number,
                order=number,
                parent=number - 1 if number else None,
                timestamp_ms=int(self.weather.scheduler.now * 1000),
                did=did,
                mark=mark,
                brings=brings,
                **{"changes_rows": True, "keeps_rows": True, **more},
            )
            self.states.append(state)
            self.rows.append(rows)
            self.watch(self)

        self.weather.through(f"commit {self.name} {did} {mark.head}", commit, writes=True)


@dataclass(frozen=True)
class TableVersion(Version):
    """A table as it was read."""

    table: Table
    count: int

    word: ClassVar[str] = "version"
    expires: ClassVar[str] = "never expires"
    aside_word: ClassVar[str] = "version"
    is_line: ClassVar[bool] = True

    @property
    def number(self) -> int | None:
        return self.count - 1

    def states(self, limit: int | None) -> Sequence[State]:
        return self.table.states[: self.count][::-1][:limit]

    def has_rows(self) -> bool:
        return bool(self.table.rows[self.count - 1])

    def aside(self, attempt: AttemptId) -> str:
        return str(self.number)


@dataclass(frozen=True)
class TableBackend:
    """A table in memory behind the engine; going back and adding rows are two commits, as in Delta."""

    table: Table
    names: SinkNames
    staged: StagedFiles
    key: tuple[str, ...]

    @property
    def place(self) -> str:
        return str(self.table.folder)

    def load(self, *, reads_on: bool = False) -> TableVersion | None:
        count = self.table.weather.through(
            f"load {self.table.name}", lambda: len(self.table.states), writes=False
        )
        return TableVersion(self.place, self.names, self.table, count) if count else None

    def create(self, columns: Any, mark: Mark) -> None:
        if not self.table.states:
            self.table.append(0, mark, {} if self.key else [], "CREATE")

    def columns(self, what: Any) -> list[Any]:
        return []

    def refuse_unfit(self, version: Version, columns: Any) -> None:
        pass

    def commit(self, version: TableVersion, change: Change) -> str:
        table, at, count = self.table, version.table.rows[version.count - 1], version.count
        if change.goes_back:
            back, mark = change.back_to, change.between or change.mark
            rows = type(at)() if back is None else table.rows[back]
            table.append(count, mark, rows, "RESTORE", back, keeps_rows=back is not None)
            if change.between is not None:
                raise Halfway
        elif change.copied is not None:
            origin = change.copied
            table.append(
                count, change.mark, origin.source.table.rows[origin.number], "COPY", keeps_rows=False
            )
        elif change.batches:
            table.append(count, change.mark, self._with(at, change.batches), "WRITE", keeps_rows=not self.key)
        else:
            table.append(count, change.mark, at, "FENCE")
        return str(count)

    def _with(self, rows: Any, batches: Sequence[PreparedBatch]) -> Any:
        files, _ = shown_files(batches)
        self.staged.refuse_changed(files)
        parts = [
            pq.read_table(self.staged.root / one.staged, use_threads=False, partitioning=None)
            for one in files
        ]
        added = [(r["k"], r["v"]) for part in parts for r in part.to_pylist()]
        return {**rows, **dict(added)} if self.key else [*rows, *added]

    def read(self, version: TableVersion, number: int | None) -> pa.Table | None:
        return None

    def refuse_lost(self, version: TableVersion, state: State | None) -> None:
        pass

    def elsewhere(self, place: str) -> TableBackend:
        found = next(one for one in TABLES.values() if str(one.folder) == place)
        return replace(self, table=found, staged=replace(self.staged, place=place, table_dir=found.folder))


TABLES: dict[str, Table] = {}
"""Tables of the world that runs, by name: a target is plain data."""


@dataclass(frozen=True, slots=True)
class TableTarget(SinkTarget):
    """The table of a world."""

    opened_by: ClassVar[str] = "tests.sim.outside:TableSink"
    named_by: ClassVar[str] = "name"
    name: str


class TableSink(VersionedSink[TableVersion]):
    """The real sink of tables with versions."""

    kind: ClassVar[str] = "simulated"
    _merges = False

    def __init__(self, target: TableTarget, context: SinkContext) -> None:
        self._context = context
        table, names = TABLES[target.name], SinkNames.of(context)
        place, work = str(table.folder), context.work_dir
        area = areas_of(names.pipeline, (names.uid,))[0]
        staged = StagedFiles(place, table.folder, work, lambda: (None, ""), area)
        backend = TableBackend(table, names, staged, context.key)
        self._engine = Engine(backend, names, table.folder / "owner.json")

    def prepare(self, frame: Any, batch_id: Any) -> PreparedBatch:
        raise AssertionError("the model of the query stages its rows")

    def keep_small(self, version: TableVersion, needed: Any) -> None:
        pass

    def clean_up(self, needed: Any, waiting: Any) -> int:
        version, attempt = self._engine.newest(self._context.attempt()), self._context.attempt()
        position = None if version is None else version.position
        through = -1 if position is None or position.through_batch is None else position.through_batch
        doomed = [
            folder
            for folder in self.staged.not_waiting(needed, waiting)
            if folder.epoch < attempt.epoch or (folder.epoch == attempt.epoch and folder.batch_id <= through)
        ]
        for folder in doomed:
            self.staged.remove(folder)
        return len(doomed)

    def describe(self) -> SinkDescription:
        return SinkDescription(place=self.place)
