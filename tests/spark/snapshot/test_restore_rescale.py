"""A restored stage is spread over another number of state partitions and keeps its state."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dagster_ckpt.adapters.fsspec_storage import FsspecCheckpointStorage
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.snapshot.rescale import rescale_stage
from dagster_ckpt.spark.snapshot.restore import build_stage_directory
from tests.spark.snapshot import capture_workloads as w
from tests.spark.snapshot.snapshot_help import take

FILES = 5


def _restored(spark: SparkSession, tmp_path: Path, kind: w.Kind, *, batch: int) -> tuple[Path, w.Recorded]:
    for number in range(FILES):
        w.write_input(tmp_path / "a", number)
        w.write_input(tmp_path / "b", number, seed=5)
    original = w.start(kind.build(spark, tmp_path), kind.mode, tmp_path / "stage").finish()
    storage = FsspecCheckpointStorage((tmp_path / "storage").as_uri())
    one = take(storage, tmp_path / "stage", 1, batch=batch)
    target = tmp_path / "restored"
    build_stage_directory(one.stored, one.snapshot, target_dir=target, new_query_id=str(uuid.uuid4()))
    return target, original


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (w.AGGREGATION, w.ROCKS2),
        (w.TRANSFORM_WITH_STATE, w.ROCKS2),
        (w.DROP_DUPLICATES, w.ROCKS1),
        (w.JOIN, w.ROCKS2),
    ],
    ids=["aggregation", "transform-with-state", "drop-duplicates-v1", "join"],
)
def test_a_rescaled_stage_has_its_state_and_goes_on_row_for_row(
    spark: SparkSession, tmp_path: Path, kind: w.Kind, state: w.StateFormat
) -> None:
    state.apply(spark)
    target, original = _restored(spark, tmp_path, kind, batch=2)

    result = rescale_stage(spark, stage_dir=target, partitions=3)

    assert (result.before, result.after, result.batch_id) == (2, 3, 3)
    assert result.rows > 0
    continued = w.start(kind.build(spark, tmp_path), kind.mode, target).finish()
    assert {n - 1: rows for n, rows in continued.batches.items()} == original.after(2)
    storage = FsspecCheckpointStorage((tmp_path / "storage").as_uri())
    assert take(storage, target, 2).snapshot.parallelism == 3


def test_rescaling_state_that_spark_cannot_spread_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    w.HDFS.apply(spark)
    target, _ = _restored(spark, tmp_path, w.AGGREGATION, batch=2)
    with pytest.raises(InvalidRequest, match="RocksDB state only"):
        rescale_stage(spark, stage_dir=target, partitions=3)


def test_rescaling_a_stage_that_has_committed_nothing_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="committed no batch"):
        rescale_stage(spark, stage_dir=tmp_path, partitions=3)
