"""Every stateful operator goes on row for row, restored without its old directory, and spread over other partitions."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dagster_ckpt.adapters.fsspec_storage import FsspecCheckpointStorage
from dagster_ckpt.spark.snapshot.rescale import rescale_stage
from dagster_ckpt.spark.snapshot.restore import build_stage_directory
from tests.removal import remove_tree
from tests.spark.snapshot import capture_workloads as w
from tests.spark.snapshot.operator_workloads import EVERY, ROCKS2, Operators, with_time_to_live, write_events
from tests.spark.snapshot.snapshot_help import take
from tests.sweeps import third

AT = 1
"""The batch that is captured; late rows come after it."""


@pytest.mark.parametrize("operators", third(EVERY), ids=lambda operators: operators.name)
def test_operators_restored_and_spread_go_on_as_if_nothing_had_happened(
    spark: SparkSession, tmp_path: Path, operators: Operators
) -> None:
    operators.state.apply(spark)
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    for number in range(operators.files):
        write_events(tmp_path / "a", number)
        write_events(tmp_path / "b", number, seed=1)
    undisturbed = w.start(operators.build(spark, tmp_path), "append", tmp_path / "stage").finish()
    expected = [rows for rows in undisturbed.after(AT).values() if rows]
    assert expected, "rows came after the capture"
    assert _late_rows(undisturbed) > 0

    one = take(FsspecCheckpointStorage((tmp_path / "storage").as_uri()), tmp_path / "stage", 1, batch=AT)
    remove_tree(tmp_path / "stage")
    for name, counts in (("restored", ()), ("spread", (5, 2))):
        target = tmp_path / name
        build_stage_directory(one.stored, one.snapshot, target_dir=target, new_query_id=str(uuid.uuid4()))
        for partitions in counts:
            assert rescale_stage(spark, stage_dir=target, partitions=partitions).after == partitions
        continued = w.start(operators.build(spark, tmp_path), "append", target).finish()
        assert [rows for rows in continued.batches.values() if rows] == expected, name


@pytest.mark.nightly
def test_state_with_a_time_to_live_is_restored_and_runs_out_as_before(
    spark: SparkSession, tmp_path: Path
) -> None:
    # With a clock of its own Spark runs batches without data for ever: the query would never have processed all.
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    ROCKS2.apply(spark)
    try:
        for number in range(3):
            write_events(tmp_path / "a", number)
        undisturbed = w.start(with_time_to_live(spark, tmp_path), "append", tmp_path / "stage").finish()
        one = take(FsspecCheckpointStorage((tmp_path / "storage").as_uri()), tmp_path / "stage", 1, batch=AT)
        remove_tree(tmp_path / "stage")
        for name, counts in (("restored", ()), ("spread", (5, 2))):
            target = tmp_path / name
            build_stage_directory(one.stored, one.snapshot, target_dir=target, new_query_id=str(uuid.uuid4()))
            for partitions in counts:
                rescale_stage(spark, stage_dir=target, partitions=partitions)
            continued = w.start(with_time_to_live(spark, tmp_path), "append", target).finish()
            expected = [rows for rows in undisturbed.after(AT).values() if rows]
            assert [rows for rows in continued.batches.values() if rows] == expected, name
            told = [row[2] for rows in continued.batches.values() for row in rows]
            assert told
            assert all(10_000 < number < 1_000_000 for number in told), (
                "an hour has not passed, a millisecond has"
            )
    finally:
        spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")


def _late_rows(recorded: w.Recorded) -> int:
    progress = recorded.query.recentProgress
    return sum(op["numRowsDroppedByWatermark"] for one in progress for op in one["stateOperators"])
