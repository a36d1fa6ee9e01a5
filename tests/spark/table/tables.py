"""Stages a table's micro-batches with pyarrow, exactly as the Spark sink names them, for tests without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_ckpt.authoring.targets import ParquetTable
from dagster_ckpt.core.ids import BatchId, CheckpointId, CoordinatorEpoch, PipelineId, StageUid
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.digests import digest_file
from dagster_ckpt.spark.files import batch_folder_name, create_exclusively, parquet_files
from dagster_ckpt.spark.sink.committables import (
    PreparedBatch,
    TableFile,
    batches_between,
    encoded,
    prepared_folder,
    read_committables,
)
from dagster_ckpt.spark.sink.phases import cut_of_sink
from dagster_ckpt.spark.sink.port import (
    AlreadyPublished,
    AttemptId,
    LaterRows,
    Published,
    SinkContext,
    SinkCut,
)
from dagster_ckpt.spark.table.log import Table
from dagster_ckpt.spark.table.parquet_sink import ParquetSink
from dagster_ckpt.spark.table.publish import publish
from dagster_ckpt.spark.table.records import (
    BUCKET_COLUMN,
    Upsert,
)
from dagster_ckpt.spark.table.roll_back import RolledBack, roll_back

PIPELINE = PipelineId("shop")
LINEAGE = "one"
Row = tuple[int, int]


def permit(checkpoint: int, epoch: int = 1, pipeline: PipelineId = PIPELINE) -> CommitPermit:
    return CommitPermit(pipeline, CoordinatorEpoch(epoch), CheckpointId(checkpoint), object(), LINEAGE)


def rows_of(folder: Path) -> list[Row]:
    """Every row any reader of the folder finds, opened the plain way."""
    files = sorted(path for path in folder.glob("*.parquet"))
    if not files:
        return []
    found = pa.concat_tables([pq.read_table(path, partitioning=None) for path in files])
    return sorted(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))


def prepare(
    table: Table, stage_dir: Path, batch: int, files: Sequence[Sequence[Row]], *, epoch: int = 1
) -> None:
    """What ``TableSink`` does for one micro-batch, with one Parquet file per inner list."""
    folder = table.paths.staged(epoch) / batch_folder_name(batch)
    folder.mkdir(parents=True)
    for number, rows in enumerate(files):
        columns = {"k": [k for k, _ in rows], "v": [v for _, v in rows]}
        if isinstance(table.mode, Upsert):
            columns[BUCKET_COLUMN] = [k % table.mode.buckets for k, _ in rows]
        schema = pa.schema([(name, pa.int64()) for name in columns])
        pq.write_table(pa.table(columns, schema=schema), folder / f"{number}.parquet")
    named = tuple(
        TableFile(
            name=f"part-{epoch:06d}-{batch:010d}-{number:05d}-{folder.name[-12:]}.parquet",
            staged=file.name,
            rows=file.rows,
            bytes=file.bytes,
            checksum=digest_file(table.paths.root / file.name).checksum,
        )
        for number, file in enumerate(parquet_files(table.paths.root, folder))
    )
    prepared_folder(stage_dir).mkdir(parents=True, exist_ok=True)
    committable = PreparedBatch(batch_id=batch, epoch=epoch, lineage=LINEAGE, files=named, row_schema="{}")
    create_exclusively(prepared_folder(stage_dir) / f"{batch}.json", encoded(committable))


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A completed checkpoint as a test remembers it: what storage would hold, and the rows the table must
    show.
    """

    checkpoint: int
    batch: int | None
    snapshot: TableSnapshot
    committables: Mapping[str, bytes]
    rows: list[Row]


@dataclass
class Attempt:
    """One attempt's stage writing one table, with an oracle of the rows of everything it has processed."""

    table: Table
    stage_dir: Path
    epoch: int = 1
    next_batch: int = 0
    processed: list[Row] = field(default_factory=list)

    def batch(self, *files: Sequence[Row]) -> None:
        prepare(self.table, self.stage_dir, self.next_batch, files, epoch=self.epoch)
        self.next_batch += 1
        self.processed.extend(row for file in files for row in file)

    @property
    def sink(self) -> ParquetSink:
        return sink_of(self.table, self.epoch)

    def cut(self, checkpoint: int) -> Cut:
        batch = self.next_batch - 1 if self.next_batch else None
        taken = cut_of_sink(self.sink, self.stage_dir, None if batch is None else BatchId(batch))
        assert taken.snapshot is not None
        names = [file.path for file in taken.files]
        return Cut(
            checkpoint=checkpoint,
            batch=batch,
            snapshot=taken.snapshot,
            committables={name: (self.stage_dir / name).read_bytes() for name in names},
            rows=expected(self.table, self.processed),
        )

    def publish(self, cut: Cut) -> Published | AlreadyPublished:
        through = None if cut.batch is None else BatchId(cut.batch)
        return publish_through(self.table, self.stage_dir, through, permit(cut.checkpoint, self.epoch))


def sink_of(table: Table, epoch: int = 1) -> ParquetSink:
    """The table as a sink of an attempt."""
    context = SinkContext(
        pipeline=table.pipeline,
        uid=StageUid("sink"),
        name="sink",
        key=table.mode.keys if isinstance(table.mode, Upsert) else (),
        is_complete=False,
        table_dir=table.paths.root.parent,
        work_dir=table.paths.root.parent / "staged",
        attempt=lambda: attempt_id(epoch),
    )
    buckets = table.mode.buckets if isinstance(table.mode, Upsert) else 8
    return ParquetSink(ParquetTable(str(table.paths.root), buckets), context)


def attempt_id(epoch: int) -> AttemptId:
    return AttemptId(LINEAGE, CoordinatorEpoch(epoch))


def publish_through(
    table: Table, stage_dir: Path, through: BatchId | None, by: CommitPermit
) -> Published | AlreadyPublished:
    """Publish what is prepared up to a batch; also when nothing is, so that a repeated publish can be seen."""
    numbers = batches_between(stage_dir, table.state().published_through, through)
    return publish(table, read_committables(stage_dir, numbers), by)


def sink_cut(cut: Cut, stage_dir: Path) -> SinkCut:
    return SinkCut(
        snapshot=cut.snapshot,
        batches=tuple(read_committables(stage_dir, cut.snapshot.prepared)),
        checkpoint_id=CheckpointId(cut.checkpoint),
    )


def restored(table: Table, cut: Cut, stage_dir: Path, *, epoch: int) -> Attempt:
    """A new attempt's stage as a restore builds it: the committables of the cut, nothing else."""
    shutil.rmtree(stage_dir, ignore_errors=True)
    for name, content in cut.committables.items():
        (stage_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (stage_dir / name).write_bytes(content)
    next_batch = 0 if cut.batch is None else cut.batch + 1
    return Attempt(table, stage_dir, epoch=epoch, next_batch=next_batch, processed=list(cut.rows))


def roll_back_to(
    table: Table, cut: Cut, stage_dir: Path, *, epoch: int, later_rows: LaterRows = LaterRows.SET_ASIDE
) -> RolledBack:
    return roll_back(table, sink_cut(cut, stage_dir), attempt_id(epoch), later_rows)


def expected(table: Table, rows: Sequence[Row]) -> list[Row]:
    """The rows a table must show after these were processed in this order."""
    if isinstance(table.mode, Upsert):
        return sorted(dict(rows).items())
    return sorted(rows)
