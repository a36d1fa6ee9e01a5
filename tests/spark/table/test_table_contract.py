"""The contract of sinks on Parquet tables."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dagster_ckpt.authoring.targets import ParquetTable
from dagster_ckpt.core.ids import BatchId, CheckpointId
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.sink.committables import (
    batches_between,
    committable_paths,
    prepared_batches,
    write_committable,
)
from dagster_ckpt.spark.sink.phases import Due, cut_of_sink, publish_prepared
from dagster_ckpt.spark.sink.port import LaterRows, Sink, SinkContext, SinkCut
from dagster_ckpt.spark.table import buckets, log, publish, roll_back
from dagster_ckpt.spark.table.parquet_sink import ParquetSink
from dagster_ckpt.spark.table.records import BUCKET_COLUMN
from dagster_ckpt.testing import SinkContract, Staging
from dagster_ckpt.testing.sinks.base import FIRST
from dagster_ckpt.testing.sinks.keys import KEYS
from dagster_ckpt.testing.sinks.run import Row, Step, context_in, stage

BUCKETS = 3


class TestParquetSink(SinkContract):
    keys_not_taken = frozenset(
        {"several", *KEYS}
    )  # Spark chooses the bucket of a key, and rows are staged without
    is_atomic = False
    """Files become visible one by one."""
    can_be_raced = False
    can_replace = False
    checks_types = False
    can_load = can_load_cuts = True

    def open(self, context: SinkContext) -> Sink:
        return ParquetSink(ParquetTable(context.name, BUCKETS), context)

    def rows(self, place: str) -> list[Row]:
        found = [pq.read_table(path, partitioning=None) for path in sorted(Path(place).glob("*.parquet"))]
        return [
            row for table in found for row in zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True)
        ]

    def steps(self) -> Sequence[Step]:
        return [
            (publish, "move_whole"),
            (publish, "write_versions"),
            (publish, "show_versions"),
            (roll_back, "move_whole"),
            (roll_back, "show_versions"),
            (buckets, "replace_by_link"),
            (log, "create_durably"),
            (log, "replace_whole"),
        ]

    def staging(self, sink: Sink, context: SinkContext) -> Staging:
        root = Path(sink.place)
        folder = root / "_dagster_ckpt" / "staged" / str(context.attempt().epoch)
        return Staging(root, folder, _with_bucket if context.key else lambda rows: rows)


def _with_bucket(rows: pa.Table) -> pa.Table:
    number = pc.cast(rows["k"], pa.int64())
    bucket = pc.subtract(number, pc.multiply(pc.divide(number, BUCKETS), BUCKETS))
    return rows.append_column(BUCKET_COLUMN, pc.cast(bucket, pa.int32()))


def test_rows_that_a_table_begins_with_are_published_once_by_a_first_run_that_keeps_tables(
    tmp_path: Path,
) -> None:
    """They are batch -1, before any batch of the sink's own query: covered by every cut, also by one of no batch."""
    context = context_in(tmp_path, FIRST)
    contract = TestParquetSink()
    sink = contract.open(context)
    assert isinstance(sink, ParquetSink)
    staging = contract.staging(sink, context)
    stage_dir = tmp_path / "stage"
    table = sink.table.uri

    def prepared(batch: int, row: Row) -> None:
        rows = pa.table({"k": [row[0]], "v": [row[1]]})
        write_committable(stage_dir, stage(staging, FIRST, batch, [rows]))

    def permit(checkpoint: int) -> CommitPermit:
        number = CheckpointId(checkpoint)
        return CommitPermit(context.pipeline, FIRST.epoch, number, object(), lineage=FIRST.lineage)

    first = stage(staging, FIRST, 0, [pa.table({"k": [1], "v": [1]})]).model_copy(update={"batch_id": -1})
    write_committable(stage_dir, first)
    begun = SinkCut(
        snapshot=TableSnapshot(uri=sink.place, prepared=(-1,)),
        batches=(first,),
        checkpoint_id=CheckpointId(1),
    )
    sink.roll_back(begun, LaterRows.KEEP)
    assert contract.rows(table) == []
    assert prepared_batches(stage_dir) == [-1]
    at = cut_of_sink(sink, stage_dir, None).snapshot
    assert at is not None
    assert at.prepared == (-1,)
    (done,) = publish_prepared([Due(sink, stage_dir, None)], permit(2))
    assert done is not None
    assert done.rows == 1
    assert contract.rows(table) == [(1, 1)]
    assert publish_prepared([Due(sink, stage_dir, BatchId(0))], permit(3)) == [None]
    prepared(0, (2, 2))
    assert publish_prepared([Due(sink, stage_dir, BatchId(0))], permit(4)) != [None]
    assert sorted(contract.rows(table)) == [(1, 1), (2, 2)]
    assert batches_between(stage_dir, None, None) == (-1,)
    assert batches_between(stage_dir, None, BatchId(0)) == (-1, 0)
    assert batches_between(stage_dir, -1, BatchId(0)) == (0,)


def test_another_pipelines_table_says_whose_it_is_before_its_numbers_are_compared(tmp_path: Path) -> None:
    """They looked as if this pipeline's store had been lost, with ways out that could help nobody."""
    shop, other = (context_in(tmp_path, FIRST, pipeline=name) for name in ("shop", "other"))
    sink = TestParquetSink().open(shop)
    sink.take_over()
    other = ParquetSink(ParquetTable(sink.place), other)
    with pytest.raises(InvalidRequest, match="belongs to pipeline 'shop': give 'other' a table of its own"):
        other.position()


@pytest.mark.parametrize("lost", ["put back", "removed"])
def test_a_table_that_loses_rows_while_its_pipeline_runs_is_refused_to_cuts_and_publishes(
    tmp_path: Path, lost: str
) -> None:
    """The next checkpoint published what was prepared since, and from then on nothing told of the gap before it."""
    context = context_in(tmp_path, FIRST)
    contract = TestParquetSink()
    sink = contract.open(context)
    staging = contract.staging(sink, context)
    stage_dir, folder = tmp_path / "stage", Path(sink.place)

    def published(number: int) -> None:
        rows = pa.table({"k": [number], "v": [number]})
        write_committable(stage_dir, stage(staging, FIRST, number, [rows]))
        permit = CommitPermit(
            context.pipeline, FIRST.epoch, CheckpointId(number + 1), object(), lineage=FIRST.lineage
        )
        assert cut_of_sink(sink, stage_dir, BatchId(number)).snapshot is not None
        publish_prepared([Due(sink, stage_dir, BatchId(number))], permit)
        for path in committable_paths(stage_dir, [number]):
            path.unlink()  # nothing needs it any more: garbage

    published(0)
    shutil.copytree(folder, tmp_path / "older")
    published(1)
    shutil.rmtree(folder)
    if lost == "put back":
        shutil.copytree(tmp_path / "older", folder)
    with pytest.raises(
        Corrupt, match=r"but checkpoint 2 was published to it: it was put back .* or emptied, while"
    ):
        published(2)
    permit = CommitPermit(context.pipeline, FIRST.epoch, CheckpointId(3), object(), lineage=FIRST.lineage)
    with pytest.raises(Corrupt, match="choose a snapshot with restore_from"):
        publish_prepared([Due(sink, stage_dir, BatchId(2))], permit)
