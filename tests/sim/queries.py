"""A model of Spark's streaming query: batches planned, written, committed; replayed after a restart; forgotten in time.

Its channels are read by the library's own reader, its batches pass the library's gate. What is Spark's own are the
files of a checkpoint directory and their order, which ``test_model_of_spark.py`` compares with a real query's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dagster_ckpt.authoring.stages import StageRole
from dagster_ckpt.core.ids import BatchId, StageUid
from dagster_ckpt.spark.attempt.stage_query import StageQuery
from dagster_ckpt.spark.channel.source import ChannelReader
from dagster_ckpt.spark.sink.committables import is_prepared, write_committable
from dagster_ckpt.spark.sink.port import AttemptId
from dagster_ckpt.spark.sink.staged_sink import StagedSink
from dagster_ckpt.spark.snapshot.capture import read_offsets
from dagster_ckpt.spark.streaming.gate import StoppedAtBatchBoundary
from dagster_ckpt.testing.sinks.run import Staging
from dagster_ckpt.testing.sinks.run import stage as staged
from tests.attack.played import PlayedQuery, _put
from tests.sim.scheduler import Scheduler, Thread
from tests.sim.threads import Event

KEYS = 6
Row = tuple[int, int]


@dataclass(frozen=True)
class Definition:
    """What a played query asks of its pipeline: rows as a table has them."""

    def content(self, rows: list[Row]) -> pa.Table:
        return pa.table(
            {"k": pa.array([k for k, _ in rows], pa.int64()), "v": pa.array([v for _, v in rows], pa.int64())}
        )


@dataclass(kw_only=True)
class Reads:
    """What a played query asks of its run."""

    rows: Callable[[], int]
    """Says how many rows the source has by now."""
    kept: int
    sides: int
    tables: Any
    step: Callable[[str], None]
    defined: Definition = Definition()
    per_batch: int = 3

    @property
    def arrived(self) -> int:
        return self.rows()


@dataclass(frozen=True)
class ModelQuery(PlayedQuery):
    """The micro-batches of one query."""

    run: Any
    is_bounded: bool = False
    """It ends with what is there when it begins (``availableNow``)."""

    def __post_init__(self) -> None:
        self._start()
        if self.is_bounded:
            _ = self._readers

    @cached_property
    def _readers(self) -> dict[StageUid, ChannelReader]:
        """The library's readers of its channels; those of a query that ends know where."""
        found = {}
        for uid, log in sorted(self.query.input_logs().items()):
            options = {"path": str(log.directory), "channel": uid, "release": str(self.query.release.path)}
            found[uid] = ChannelReader(options, None)  # type: ignore[arg-type]
            if self.is_bounded:
                found[uid].prepareForTriggerAvailableNow()
        return found

    def batch(self) -> int | None:
        """Run the next micro-batch; None: nothing has come."""
        batch = self._next()
        before = read_offsets(self.root, BatchId(batch - 1)) if batch else {}
        planned = self._planned(batch, before, {})
        if planned is None:
            return None
        self.run.step(f"{self.query.uid} planned {batch}")
        self.query.guard(lambda _, number: self._write(BatchId(number), before, planned))(None, batch)
        self.run.step(f"{self.query.uid} wrote {batch}")
        _put(self.root / "commits" / str(batch), 'v1\n{"nextBatchWatermarkMs":0}')
        self.run.step(f"{self.query.uid} committed {batch}")
        return batch

    def _planned(self, batch: BatchId, before: dict[str, str], ends: Any) -> dict[str, str] | None:
        is_new = not (self.root / "offsets" / str(batch)).exists()
        planned = super()._planned(batch, before, ends)
        if planned is not None and is_new:
            self._forget(batch)
        return planned

    def _forget(self, batch: int) -> None:
        """Keep what the latest batches need: ``minBatchesToRetain``."""
        oldest = batch - self.run.kept
        for place in ("offsets", "commits"):
            for path in (self.root / place).glob("[0-9]*"):
                if int(path.name) < oldest:
                    path.unlink()
        for path in (self.root / "state/0/0").glob("[0-9]*.zip"):
            if int(path.stem) <= oldest:
                path.unlink()

    def _ahead(self, before: dict[str, str], ends: Any) -> dict[str, str]:
        if self._reads_source:
            return super()._ahead(before, ends)
        found = {}
        for number, (uid, reader) in enumerate(self._readers.items()):
            start = {"channel": uid, "pos": self._position(uid, before)}
            found[str(number)] = json.dumps(reader.latestOffset(start, ReadAllAvailable()))
        return found

    def _write(self, batch: BatchId, before: dict[str, str], planned: dict[str, str]) -> None:
        rows = self._rows(before, planned)
        uid, role = str(self.query.uid), self.query.stage.role
        if role is StageRole.SINK:
            self._prepare(batch, rows)
            self.query.log.append_data(batch, ())
        elif uid == "totals":
            self._append(batch, self._totals(batch, rows))
        elif uid in ("left", "right"):
            self._append(batch, [(2 * k + (uid == "right"), v) for k, v in rows])
        else:
            self._append(batch, rows)

    def _totals(self, batch: BatchId, rows: list[Row]) -> list[Row]:
        """Each row with the sum of all rows of its side so far: the base's one number holds them all."""
        sides, place = self.run.sides, 2**32
        shifted = [(k, v * place ** (k % sides)) for k, v in rows]
        found = super()._totals(batch, shifted)  # type: ignore[arg-type]
        return [(k, total // place ** (k % sides) % place) for k, total in found]

    def _prepare(self, batch: BatchId, rows: list[Row]) -> None:
        stage_dir = self.query.directory.root
        if is_prepared(stage_dir, batch) or not rows:
            return
        sink = self.run.tables.of(self.query.uid)
        attempt = self.run.tables.attempt_id()
        table = self.query.stage.table
        if table is not None and table.key:
            rows = list({k % KEYS: (k % KEYS, v) for k, v in rows}.values())
        prepared = staged(_place(sink, attempt), attempt, batch, [self.run.defined.content(rows)])
        self.run.step(f"{self.query.uid} staged {batch}")
        staged_as = self.run.tables.as_now(self.query.uid).staged_as
        write_committable(stage_dir, prepared.model_copy(update={"staged_as": staged_as}))


def _place(sink: Any, attempt: AttemptId) -> Staging:
    """Return where the sink's own ``prepare`` stages."""
    if isinstance(sink, StagedSink):
        return Staging(sink._root, sink._staged / str(attempt.epoch))
    return Staging(sink.staged.root, sink.staged.folder(attempt.epoch))


class RunningQuery:
    """What Spark returns of a query that was started."""

    status: ClassVar = {"message": "Waiting for data to arrive"}
    recentProgress: tuple[Any, ...] = ()  # noqa: N815 - Spark's names
    lastProgress: Any = None  # noqa: N815

    def __init__(
        self, query: StageQuery, scheduler: Scheduler, reads: Reads, *, is_bounded: bool = False
    ) -> None:
        arrived = reads.arrived
        given = replace(reads, rows=lambda: arrived) if is_bounded else reads
        self._model, self._scheduler = ModelQuery(query, given, is_bounded), scheduler
        self._has_read_all = False
        self._jsq = SimpleNamespace(
            streamingQuery=lambda: SimpleNamespace(noNewData=lambda: self._has_read_all)
        )
        self._stopping, self._over = Event(), Event()
        self._error: Exception | None = None
        Thread(target=self._run, name=f"query {query.uid}").start()

    @property
    def isActive(self) -> bool:  # noqa: N802
        return not (self._stopping.is_set() or self._over.is_set())

    def exception(self) -> Exception | None:
        return self._error

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802
        is_over = self._over.wait(timeout)
        if self._error is not None:
            raise self._error
        return is_over

    def stop(self) -> None:
        self._stopping.set()
        self._over.wait()

    def _run(self) -> None:
        try:
            while not (self._stopping.is_set() or self._has_read_all):
                if self._model.batch() is None:
                    self._has_read_all = self._model.is_bounded
                    self._stopping.wait(0.05)
        except StoppedAtBatchBoundary as error:
            self._error = error
        except Exception as error:
            self._error = error
            self._scheduler.note(f"query failed: {error!r}"[:300])
        self._over.set()


def session(kept: int) -> Any:
    """Return what is asked of a session whose queries are models."""
    settings = {"spark.sql.streaming.minBatchesToRetain": str(kept)}
    java = SimpleNamespace(isLocal=lambda: True, isStopped=lambda: False)
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: java), master="local[2]", applicationId="world")
    return SimpleNamespace(sparkContext=context, conf=SimpleNamespace(get=settings.get))
