"""A running query is captured at batch N; elsewhere it has the state of N and goes on row for row."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dagster_ckpt.adapters.fsspec_storage import FsspecCheckpointStorage
from dagster_ckpt.spark.snapshot.capture import latest_committed_batch, read_offsets
from dagster_ckpt.spark.snapshot.restore import build_stage_directory
from dagster_ckpt.spark.snapshot.upload import UploadMode
from tests.removal import remove_tree
from tests.spark.snapshot import capture_workloads as w
from tests.spark.snapshot.snapshot_help import Taken, take
from tests.sweeps import third

FILES = 9
CAPTURE_AT = (1, 4, 6)
"""Before a first snapshot of the state, after one, and after more changes."""

CASES = [
    (w.AGGREGATION, w.HDFS),
    (w.AGGREGATION, w.ROCKS1),
    (w.AGGREGATION, w.ROCKS1_PLAIN),
    (w.AGGREGATION, w.ROCKS2),
    (w.AGGREGATION, w.ROCKS2_PLAIN),
    (w.GLOBAL_AGGREGATION, w.HDFS),
    (w.GLOBAL_AGGREGATION, w.ROCKS2),
    (w.DROP_DUPLICATES, w.HDFS),
    (w.DROP_DUPLICATES, w.ROCKS2),
    (w.JOIN, w.HDFS),
    (w.JOIN, w.ROCKS1),
    (w.JOIN, w.ROCKS2),
    (w.JOIN, w.ROCKS2_JOIN3),
    (w.WITH_STATE_IN_PANDAS, w.HDFS),
    (w.WITH_STATE_IN_PANDAS, w.ROCKS2),
    (w.TRANSFORM_WITH_STATE, w.ROCKS1),
    (w.TRANSFORM_WITH_STATE, w.ROCKS2),
    (w.STATELESS, w.ROCKS2),
]


@pytest.mark.parametrize(("kind", "state"), third(CASES), ids=lambda either: either.name)
def test_a_query_captured_while_it_runs_on_continues_elsewhere_row_for_row(
    spark: SparkSession, tmp_path: Path, kind: w.Kind, state: w.StateFormat
) -> None:
    state.apply(spark)
    storage = FsspecCheckpointStorage((tmp_path / "storage").as_uri())
    stage = tmp_path / "stage"
    for number in range(FILES):
        w.write_input(tmp_path / "a", number)
        w.write_input(tmp_path / "b", number, seed=5)

    original = w.start(kind.build(spark, tmp_path), kind.mode, stage)
    taken: list[Taken] = []
    for number, batch in enumerate(CAPTURE_AT, start=1):
        original.wait_for(batch + 1)  # a batch begins after the one before it is committed
        previous = taken[-1].upload.entries if taken else ()
        taken.append(take(storage, stage, number, batch=batch, previous=previous))
    original.finish()

    states = {one.number: w.state_rows(spark, stage / "query", kind, batch=one.batch) for one in taken[1:]}
    remove_tree(stage)  # a restored query must need nothing of the directory it was captured in
    for one in taken[1:]:
        elsewhere = tmp_path / f"restored-{one.number}"
        build_stage_directory(one.stored, one.snapshot, target_dir=elsewhere, new_query_id=str(uuid.uuid4()))
        assert latest_committed_batch(elsewhere / "query") == one.batch
        assert w.state_rows(spark, elsewhere / "query", kind) == states[one.number]
    continued = w.start(kind.build(spark, tmp_path), kind.mode, elsewhere).finish()
    expected = original.after(taken[-1].batch)
    assert expected, "the original went on after the capture"
    assert continued.batches == expected


def test_the_state_of_a_captured_batch_is_that_of_its_input(spark: SparkSession, tmp_path: Path) -> None:
    """The reference is recomputed from the input files, not read by Spark."""
    w.ROCKS2.apply(spark)
    storage = FsspecCheckpointStorage((tmp_path / "storage").as_uri())
    rows = [w.write_input(tmp_path / "a", number) for number in range(6)]
    stage = tmp_path / "stage"
    w.start(w.AGGREGATION.build(spark, tmp_path), "update", stage).finish()
    one = take(storage, stage, 1, batch=3, mode=UploadMode.SELF_CONTAINED)
    build_stage_directory(one.stored, one.snapshot, target_dir=tmp_path / "restored")

    (found,) = w.state_rows(spark, tmp_path / "restored/query", w.AGGREGATION)
    seen = json.loads(one.plan.offsets["0"])["logOffset"]
    assert seen == 3
    flat = [row for batch in rows[: seen + 1] for row in batch]
    expected = {k: (sum(a == k for a, _ in flat), sum(v for a, v in flat if a == k)) for k, _ in flat}
    assert {row[0]["k"]: tuple(row[1]) for row in found} == expected
    assert read_offsets(tmp_path / "restored/query", one.batch) == one.plan.offsets
