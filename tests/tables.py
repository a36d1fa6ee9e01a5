"""Tables of sinks that name no target: read as any reader of Delta does, and written without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable as Reader

from dagster_ckpt.core.ids import BatchId, CheckpointId, CoordinatorEpoch, PipelineId, StageUid
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.ext.delta.sink import DeltaSink
from dagster_ckpt.ext.delta.target import DeltaTable
from dagster_ckpt.spark.sink.committables import read_committables, write_committable
from dagster_ckpt.spark.sink.phases import Due, cut_of_sink, publish_prepared
from dagster_ckpt.spark.sink.port import AttemptId, LaterRows, RolledBack, SinkContext, SinkCut
from dagster_ckpt.testing.sinks.run import Staging, stage

LINEAGE = "one"
SALES = PipelineId("sales")
Row = tuple[int, int]


def rows_in(table: Path) -> list[dict[str, Any]]:
    """Every row of a table; none where there is no table yet."""
    if not (table / "_delta_log").is_dir():
        return []
    found: list[dict[str, Any]] = Reader(str(table)).to_pyarrow_table().to_pylist()
    return found


def pairs_in(table: Path) -> list[Row]:
    """The same of a table that an ``Attempt`` writes, sorted."""
    return sorted((row["k"], row["v"]) for row in rows_in(table))


def files_in(table: Path) -> list[Path]:
    """The files that a table shows."""
    return [
        table / str(path) for path in Reader(str(table)).get_add_actions(flatten=True)["path"].to_pylist()
    ]


def own_table(
    place: Path, pipeline: PipelineId, key: tuple[str, ...] = (), *, epoch: int = 1, uid: str = ""
) -> DeltaSink:
    """The table of a sink that names no target."""
    context = SinkContext(
        pipeline=pipeline,
        uid=StageUid(uid or place.name),
        name=str(place),
        key=key,
        is_complete=False,
        table_dir=place.parent,
        work_dir=place.parent.parent / "staged" / place.name,
        attempt=lambda: AttemptId(LINEAGE, CoordinatorEpoch(epoch)),
    )
    return DeltaSink(DeltaTable(), context)


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A completed checkpoint as a test remembers it: what storage would hold, and the rows the table must show."""

    checkpoint: int
    batch: int | None
    snapshot: TableSnapshot
    committables: Mapping[str, bytes]
    rows: list[Row]


@dataclass
class Attempt:
    """One attempt's stage writing a table of columns k and v, with an oracle of the rows it has processed."""

    place: Path
    stage_dir: Path
    pipeline: PipelineId = SALES
    key: tuple[str, ...] = ()
    epoch: int = 1
    next_batch: int = 0
    processed: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sink = own_table(self.place, self.pipeline, self.key, epoch=self.epoch)

    def batch(self, *files: Sequence[Row]) -> None:
        """Prepare a micro-batch, with a Parquet file for each list of rows."""
        attempt = AttemptId(LINEAGE, CoordinatorEpoch(self.epoch))
        staged = self.sink.staged
        staging = Staging(staged.root, staged.folder(attempt.epoch))
        tables = [pa.table({"k": [k for k, _ in rows], "v": [v for _, v in rows]}) for rows in files]
        write_committable(self.stage_dir, stage(staging, attempt, self.next_batch, tables))
        self.next_batch += 1
        self.processed.extend(row for file in files for row in file)

    def cut(self, checkpoint: int) -> Cut:
        """What a checkpoint that is taken now holds of the sink."""
        batch = self.next_batch - 1 if self.next_batch else None
        taken = cut_of_sink(self.sink, self.stage_dir, None if batch is None else BatchId(batch))
        assert taken.snapshot is not None
        names = [file.path for file in taken.files]
        return Cut(
            checkpoint=checkpoint,
            batch=batch,
            snapshot=taken.snapshot,
            committables={name: (self.stage_dir / name).read_bytes() for name in names},
            rows=sorted(dict(self.processed).items()) if self.key else sorted(self.processed),
        )

    def publish(self, cut: Cut) -> None:
        """Publish what the cut covers."""
        epoch, number = CoordinatorEpoch(self.epoch), CheckpointId(cut.checkpoint)
        permit = CommitPermit(self.pipeline, epoch, number, object(), lineage=LINEAGE)
        through = None if cut.batch is None else BatchId(cut.batch)
        publish_prepared([Due(self.sink, self.stage_dir, through)], permit)

    def restored(self, cut: Cut, stage_dir: Path, later: LaterRows = LaterRows.SET_ASIDE) -> RolledBack:
        """Bring the table to a cut by a new attempt, with a stage as a restore builds it."""
        shutil.rmtree(stage_dir, ignore_errors=True)
        for name, content in cut.committables.items():
            (stage_dir / name).parent.mkdir(parents=True, exist_ok=True)
            (stage_dir / name).write_bytes(content)
        batches = read_committables(stage_dir, cut.snapshot.prepared)
        number = CheckpointId(cut.checkpoint)
        newer = own_table(self.place, self.pipeline, self.key, epoch=self.epoch + 1)
        return newer.roll_back(
            SinkCut(snapshot=cut.snapshot, batches=tuple(batches), checkpoint_id=number), later
        )
