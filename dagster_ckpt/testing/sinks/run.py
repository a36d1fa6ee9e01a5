"""Playthings of the contract of sinks: one attempt's sink, rows staged without Spark, and processes that end."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId, StageUid
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.digests import digest_file
from dagster_ckpt.spark.files import batch_folder_name, parquet_files
from dagster_ckpt.spark.sink.committables import PreparedBatch, TableFile
from dagster_ckpt.spark.sink.port import (
    AlreadyPublished,
    AttemptId,
    LaterRows,
    Published,
    RolledBack,
    Sink,
    SinkContext,
    SinkCut,
)
from dagster_ckpt.testing.faulty import SimulatedCrash

Row = tuple[Any, ...]
"""(k, v), and further values by name after them: only ``SinkRun.batch`` takes those."""
Step = tuple[Any, str]
"""An owner (class, module, object) and the name of its function that acts on the outside."""

_SPARK_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
    pa.binary(): "binary",
    pa.string(): "string",
}


@dataclass(frozen=True, slots=True)
class Staging:
    """Where a sink's own ``prepare`` stages."""

    root: Path
    """Names of staged files are relative to it."""
    folder: Path
    """Below it: a folder for each batch."""
    finish: Callable[[pa.Table], pa.Table] = lambda rows: rows
    """What ``prepare`` adds to the rows."""
    write: Callable[[pa.Table, Path], None] = pq.write_table
    """Writes a file."""


def stage(
    staging: Staging,
    attempt: AttemptId,
    batch_id: int,
    files: Sequence[pa.Table],
    *,
    replaces: bool = False,
) -> PreparedBatch:
    """Stage a micro-batch as the sink's own ``prepare`` does, one Parquet file for each table, without Spark."""
    folder = staging.folder / batch_folder_name(batch_id)
    folder.mkdir(parents=True)
    for number, rows in enumerate(files):
        staging.write(staging.finish(rows), folder / f"{number}.parquet")
    named = (
        TableFile(
            name=f"part-{attempt.epoch:06d}-{batch_id:010d}-{number:05d}-{folder.name[-12:]}.parquet",
            staged=file.name,
            rows=file.rows,
            bytes=file.bytes,
            checksum=digest_file(staging.root / file.name).checksum,
        )
        for number, file in enumerate(parquet_files(staging.root, folder))
    )
    return PreparedBatch(
        batch_id=batch_id,
        epoch=attempt.epoch,
        lineage=attempt.lineage,
        files=tuple(named),
        row_schema=row_schema(files[0].schema),
        replaces=replaces,
    )


def row_schema(schema: pa.Schema) -> str:
    """Return the Spark schema of rows with these columns."""
    return json.dumps(_spark_type(pa.struct(list(schema))))


def _spark_type(kind: Any) -> Any:
    if pa.types.is_struct(kind):
        fields = [
            {"name": f.name, "type": _spark_type(f.type), "nullable": True, "metadata": {}} for f in kind
        ]
        return {"type": "struct", "fields": fields}
    if pa.types.is_map(kind):
        parts = {"keyType": _spark_type(kind.key_type), "valueType": _spark_type(kind.item_type)}
        return {"type": "map", **parts, "valueContainsNull": True}
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _spark_type(kind.value_type), "containsNull": True}
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _SPARK_TYPES[kind]


@dataclass(frozen=True, kw_only=True)
class RunCut:
    """A completed checkpoint as a test remembers it."""

    cut: SinkCut
    next_batch: int
    rows: list[Row]
    """Rows that the sink shows once it shows this cut."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What the checkpoint holds of the sink's folder."""


@dataclass(kw_only=True)
class SinkRun:
    """One attempt, with an oracle of the rows of all it has processed."""

    open: Callable[[SinkContext], Sink]
    staging: Callable[[Sink, SinkContext], Staging]
    context: SinkContext
    attempt: AttemptId
    sink: Sink
    next_batch: int = 0
    processed: list[Row] = field(default_factory=list)
    batches: list[PreparedBatch] = field(default_factory=list)
    """All committables that the stage's directory holds."""
    histories: frozenset[str] = frozenset()
    """Histories that this attempt's goes on from."""

    # --- what the stage does ----------------------------------------------------------------------------------

    def batch(
        self,
        *files: Sequence[Row],
        types: Mapping[str, pa.DataType] | None = None,
        replaces: bool = False,
    ) -> PreparedBatch:
        """Process and flush a micro-batch: a Parquet file for each list of rows.

        ``types``: columns beside k and v, which are whole numbers, or in their place.
        """
        columns = {"k": pa.int64(), "v": pa.int64()} | dict(types or {})
        schema = pa.schema(list(columns.items()))
        tables = [
            pa.Table.from_pylist([dict(zip(columns, r, strict=True)) for r in rows], schema) for rows in files
        ]
        batch = stage(
            self.staging(self.sink, self.context), self.attempt, self.next_batch, tables, replaces=replaces
        )
        self.sink.flush([batch])
        self.next_batch += 1
        self.batches.append(batch)
        kept = [] if replaces else self.processed
        self.processed = [*kept, *((row[0], row[1]) for rows in files for row in rows)]
        return batch

    def publish(self, checkpoint: int) -> Published | AlreadyPublished:
        """Publish all batches, those included that are published already, as a checkpoint does."""
        return self.sink.publish(self.batches, self.permit(checkpoint))

    def permit(self, checkpoint: int) -> CommitPermit:
        """Return proof that the checkpoint was committed by this attempt."""
        epoch, lineage = self.attempt.epoch, self.attempt.lineage
        return CommitPermit(self.context.pipeline, epoch, CheckpointId(checkpoint), object(), lineage=lineage)

    def cut(self, checkpoint: int) -> RunCut:
        """Return the sink's part of checkpoint ``checkpoint``, taken now."""
        position = self.sink.position()
        shown = position.through_batch if position is not None else None
        waiting = tuple(b for b in self.batches if shown is None or b.batch_id > shown)
        snapshot = TableSnapshot(
            uri=self.sink.place,
            head=position.head if position is not None else None,
            prepared=tuple(batch.batch_id for batch in waiting),
        )
        cut = SinkCut(
            snapshot=snapshot,
            batches=waiting,
            checkpoint_id=CheckpointId(checkpoint),
            lineages=self.histories | {self.attempt.lineage},
        )
        files = {name: path.read_bytes() for name, path in self.sink.only_here(waiting).items()}
        return RunCut(cut=cut, next_batch=self.next_batch, rows=self.expected(), files=files)

    def expected(self) -> list[Row]:
        """Return the rows that the sink shows when everything processed is published."""
        rows = [(row[0], row[1]) for row in self.processed]
        return sorted(dict(rows).items()) if self.context.key else sorted(rows)

    def lose_disk(self) -> None:
        """Remove the sink's own folder: its machine is gone."""
        shutil.rmtree(self.context.work_dir, ignore_errors=True)

    # --- attempts that follow ---------------------------------------------------------------------------------

    def reopened(self) -> SinkRun:
        """Return the same attempt in a process of its own: only what is outside and on disk is left."""
        return self._next(self.attempt)

    def successor(self, *, epoch: int | None = None, lineage: str | None = None) -> SinkRun:
        """Return a newer attempt that goes on in the same directory; it has not taken over yet."""
        number = CoordinatorEpoch(self.attempt.epoch + 1 if epoch is None else epoch)
        return self._next(AttemptId(self.attempt.lineage if lineage is None else lineage, number))

    def restored(
        self,
        at: RunCut | None,
        later: LaterRows = LaterRows.SET_ASIDE,
        *,
        epoch: int | None = None,
        lineage: str | None = None,
    ) -> SinkRun:
        """Return a newer attempt that begins with a cut (None: with nothing), its sink rolled back to it."""
        run = self.successor(epoch=epoch, lineage=lineage).in_directory_of(at)
        run.roll_back(at, later)
        return run

    def renamed(self, uid: str, *previous: str, of: str = "", epoch: int | None = None) -> SinkRun:
        """Return a newer attempt of the sink under another name, in the same place; it has not taken over yet.

        ``of``: name of its pipeline now, which says its former one where it is another.
        """
        former = self.context.pipeline
        context = replace(
            self.context,
            uid=StageUid(uid),
            previous_uids=tuple(map(StageUid, previous)),
            pipeline=PipelineId(of or former),
            previous_pipelines=(former,) if of not in ("", former) else (),
        )
        work_dir = self.context.work_dir.with_name(uid)
        run = replace(self, context=replace(context, work_dir=work_dir))
        return run.successor(epoch=epoch)

    def in_directory_of(self, at: RunCut | None) -> SinkRun:
        """Forget all but what a restore of this cut brings back."""
        self.batches = [] if at is None else list(at.cut.batches)
        self.next_batch = 0 if at is None else at.next_batch
        self.processed = [] if at is None else list(at.rows)
        return self

    def roll_back(
        self,
        at: RunCut | None,
        later: LaterRows = LaterRows.SET_ASIDE,
        later_published: Mapping[CheckpointId, CoordinatorEpoch] | None = None,
    ) -> RolledBack:
        """Roll the sink back, having given it what the checkpoint holds of its folder.

        ``later_published``: checkpoints that the coordinator knows as published since, and their attempts.
        """
        if at is not None or later_published:
            with tempfile.TemporaryDirectory() as folder:
                for name, content in ({} if at is None else at.files).items():
                    (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                    (Path(folder) / name).write_bytes(content)
                self.sink.bring_back(Path(folder), later_published or {})
        return self.sink.roll_back(None if at is None else at.cut, later)

    def _next(self, attempt: AttemptId) -> SinkRun:
        context = in_attempt(self.context, attempt)
        return SinkRun(
            open=self.open,
            staging=self.staging,
            context=context,
            attempt=attempt,
            sink=self.open(context),
            next_batch=self.next_batch,
            processed=list(self.processed),
            batches=list(self.batches),
            histories=self.histories | {self.attempt.lineage},
        )


def context_in(
    folder: Path,
    attempt: AttemptId,
    *,
    pipeline: str = "shop",
    name: str = "orders",
    key: tuple[str, ...] = (),
    is_complete: bool = False,
) -> SinkContext:
    """Return a context whose folders lie in ``folder``."""
    return SinkContext(
        pipeline=PipelineId(pipeline),
        uid=StageUid(name),
        name=name,
        key=key,
        is_complete=is_complete,
        table_dir=folder / "tables" / pipeline,
        work_dir=folder / "work" / pipeline / name,
        attempt=lambda: attempt,
    )


def in_attempt(context: SinkContext, attempt: AttemptId) -> SinkContext:
    """Return the same context for another attempt."""
    return replace(context, attempt=lambda: attempt)


# --- processes that end ---------------------------------------------------------------------------------------


@dataclass
class AtStep:
    """Does something at the n-th call of a sink's steps, before it acts or after."""

    number: int
    do: Callable[[], None]
    is_after: bool = False
    calls: int = 0

    @property
    def was_reached(self) -> bool:
        """True once there were that many calls."""
        return self.calls >= self.number

    @contextlib.contextmanager
    def among(self, steps: Sequence[Step]) -> Iterator[AtStep]:
        """Watch these steps."""
        with contextlib.ExitStack() as stack:
            for owner, name in steps:
                stack.enter_context(mock.patch.object(owner, name, self._watched(getattr(owner, name))))
            yield self

    def _watched(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            is_it = self.calls == self.number
            if is_it and not self.is_after:
                self.do()
            answer = act(*arguments, **named)
            if is_it and self.is_after:
                self.do()
            return answer

        return call


def crash() -> None:
    """End the process, as far as a test can."""
    raise SimulatedCrash("the process ended here")


def crash_points(work: Callable[[], Callable[[], object]], steps: Sequence[Step]) -> Iterator[AtStep]:
    """Yield after each crash of a fresh piece of work: before and after each of its steps in turn.

    ``work`` prepares and returns what is then watched. Ends once it runs through; fails where it takes no step.
    """
    reached = 0
    for is_after in (False, True):
        for number in range(1, 1000):
            prepared = work()
            at = AtStep(number, crash, is_after=is_after)
            try:
                with at.among(steps):
                    prepared()
            except SimulatedCrash:
                reached += 1
                yield at
            else:
                break
    assert reached, (
        f"none of the steps {[name for _, name in steps]} was taken: name what acts on the outside"
    )
