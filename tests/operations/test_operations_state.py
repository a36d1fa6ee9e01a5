"""State of saved copies read by Spark: the same rows as the live query's, whatever the session is set to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dagster_ckpt.adapters.fsspec_storage import FsspecCheckpointStorage, open_storage
from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore
from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.errors import InvalidRequest, NotFound
from dagster_ckpt.operations.deployment import Deployment
from dagster_ckpt.operations.snapshots.adopt import adopt_checkpoint
from dagster_ckpt.operations.snapshots.catalog import find_snapshot
from dagster_ckpt.operations.snapshots.diff import diff_snapshots
from dagster_ckpt.operations.snapshots.inspect import KeyChangeKind, diff_state, open_state, state_tables
from dagster_ckpt.spark.snapshot.restore import build_stage_directory
from dagster_ckpt.spark.snapshot.upload import UploadMode
from tests.spark.snapshot import capture_workloads as w
from tests.spark.snapshot.snapshot_help import Taken, take
from tests.sweeps import third

CASES = [
    (w.AGGREGATION, w.HDFS, w.ROCKS2, ["0"]),
    (w.AGGREGATION, w.ROCKS1, w.HDFS, ["0"]),
    (w.AGGREGATION, w.ROCKS2, w.HDFS, ["0"]),
    (w.DROP_DUPLICATES, w.ROCKS2, w.HDFS, ["0"]),
    (w.JOIN, w.HDFS, w.ROCKS2, ["0/left", "0/right"]),
    (w.JOIN, w.ROCKS2, w.HDFS, ["0/left", "0/right"]),
    (w.JOIN, w.ROCKS2_JOIN3, w.HDFS, ["0/left", "0/right"]),
    (w.WITH_STATE_IN_PANDAS, w.HDFS, w.ROCKS2, ["0"]),
    (w.TRANSFORM_WITH_STATE, w.ROCKS2, w.HDFS, ["0/seen", "0/total"]),
]


@pytest.mark.parametrize("case", third(CASES), ids=lambda case: f"{case[0].name}-{case[1].name}")
def test_saved_state_is_read_whatever_the_session_is_set_to(
    spark: SparkSession, tmp_path: Path, case: tuple[w.Kind, w.StateFormat, w.StateFormat, list[str]]
) -> None:
    kind, state, other, names = case
    taken = saved(spark, tmp_path, kind, state, batches=(3,))[0]
    expected = w.state_rows(spark, tmp_path / "stage/query", kind, batch=taken.batch)
    other.apply(spark)
    assert [table.name for table in state_tables(taken.stored, "totals")] == names
    with open_state(spark, taken.stored, "totals", scratch=tmp_path) as opened:
        found = {
            table.name: sorted((tuple(row) for row in opened.frame(table.name).collect()), key=str)
            for table in opened.tables
        }
        directory = opened.directory
    assert not directory.exists()
    assert sorted(map(str, found.values())) == sorted(map(str, expected))
    assert all(found.values())


def saved(
    spark: SparkSession, folder: Path, kind: w.Kind, state: w.StateFormat, *, batches: tuple[int, ...]
) -> list[Taken]:
    """Snapshots of a query at these batches, each self-contained."""
    state.apply(spark)
    storage = FsspecCheckpointStorage((folder / "storage").as_uri())
    for number in range(max(batches) + 1):
        w.write_input(folder / "a", number)
        w.write_input(folder / "b", number, seed=5)
    w.start(kind.build(spark, folder), kind.mode, folder / "stage").finish()
    return [
        take(storage, folder / "stage", number, batch=batch, mode=UploadMode.SELF_CONTAINED)
        for number, batch in enumerate(batches, start=1)
    ]


def test_a_stage_without_state_says_so_and_an_unknown_table_names_the_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    stateless = saved(spark, tmp_path / "one", w.STATELESS, w.ROCKS2, batches=(1,))[0]
    with (
        open_state(spark, stateless.stored, "totals") as opened,
        pytest.raises(NotFound, match="keeps no state"),
    ):
        opened.frame()
    join = saved(spark, tmp_path / "two", w.JOIN, w.ROCKS2, batches=(1,))[0]
    with open_state(spark, join.stored, "totals") as opened:
        with pytest.raises(InvalidRequest, match="name one: 0/left, 0/right"):
            opened.frame()
        with pytest.raises(NotFound, match="There are: 0/left, 0/right"):
            opened.frame("7")


# --- keys ---------------------------------------------------------------------------------------------------


def test_keys_added_and_changed_are_those_the_input_says(spark: SparkSession, tmp_path: Path) -> None:
    """The reference is recomputed from the input files."""
    before, after = saved(spark, tmp_path, w.AGGREGATION, w.ROCKS2, batches=(0, 1))

    def totals(upto: int) -> dict[int, tuple[int, int]]:
        rows = [row for number in range(upto + 1) for row in w.write_input(tmp_path / "again", number)]
        return {k: (sum(a == k for a, _ in rows), sum(v for a, v in rows if a == k)) for k, _ in rows}

    old, new = totals(0), totals(1)
    (table,) = diff_state(spark, before.stored, after.stored, "totals", examples=100, scratch=tmp_path)
    assert (table.before, table.after) == (len(old), len(new))
    assert table.added == len(new.keys() - old.keys())
    assert table.changed == len([k for k in old if old[k] != new[k]])
    assert table.removed == 0
    changed = [e for e in table.examples if e.kind is KeyChangeKind.CHANGED]
    assert {json.loads(e.key)["k"] for e in changed} == {k for k in old if old[k] != new[k]}
    (back,) = diff_state(spark, after.stored, before.stored, "totals")
    assert (back.added, back.changed, back.removed) == (table.removed, table.changed, table.added)
    (same,) = diff_state(spark, after.stored, after.stored, "totals")
    assert same.is_same


def test_keys_of_new_rows_are_added(spark: SparkSession, tmp_path: Path) -> None:
    before, after = saved(spark, tmp_path, w.DROP_DUPLICATES, w.HDFS, batches=(0, 2))
    (table,) = diff_state(spark, before.stored, after.stored, "totals")
    assert table.added == table.after - table.before > 0
    assert (table.changed, table.removed) == (0, 0)


@pytest.mark.parametrize("kind", third([w.JOIN, w.TRANSFORM_WITH_STATE]), ids=lambda kind: kind.name)
def test_several_values_of_a_key_are_compared_as_one(
    spark: SparkSession, tmp_path: Path, kind: w.Kind
) -> None:
    before, after = saved(spark, tmp_path, kind, w.ROCKS2, batches=(1, 3))
    found = diff_state(spark, before.stored, after.stored, "totals")
    assert len(found) == 2
    assert not all(table.is_same for table in found)
    for table in found:
        assert table.after == table.before + table.added - table.removed
    assert all(table.is_same for table in diff_state(spark, after.stored, after.stored, "totals"))


def test_state_kept_by_two_providers_is_compared(spark: SparkSession, tmp_path: Path) -> None:
    (hdfs,) = saved(spark, tmp_path / "hdfs", w.AGGREGATION, w.HDFS, batches=(2,))
    (rocks,) = saved(spark, tmp_path / "rocks", w.AGGREGATION, w.ROCKS2, batches=(2,))
    (table,) = diff_state(spark, hdfs.stored, rocks.stored, "totals")
    assert table.before == table.after == w.KEYS
    assert table.is_same
    (stage,) = diff_snapshots(hdfs.stored, rocks.stored).stages
    assert "spark.sql.streaming.stateStore.providerClass" in {d.name for d in stage.conf}


# --- adopting -----------------------------------------------------------------------------------------------


def test_a_query_that_spark_ran_alone_goes_on_from_the_savepoint_it_became(
    spark: SparkSession, tmp_path: Path
) -> None:
    w.ROCKS2.apply(spark)
    for number in range(3):
        w.write_input(tmp_path / "a", number)
    theirs = w.start(w.AGGREGATION.build(spark, tmp_path), "update", tmp_path / "theirs").finish()
    deployment = Deployment(
        store=SqlCoordinatorStore(f"sqlite:///{tmp_path / 'coordinator.db'}"),
        storage=open_storage(str(tmp_path / "checkpoints")),
        open_storage=open_storage,
        savepoint_dir=str(tmp_path / "savepoints"),
    )
    done = adopt_checkpoint(
        deployment,
        pipeline=PipelineId("sales"),
        directories={StageUid("totals"): tmp_path / "theirs/query"},
        now=1.0,
    )
    assert done.stages[0].query_id == theirs.query.id
    stored = find_snapshot(deployment, done.savepoint.key).stored
    build_stage_directory(stored, stored.metadata.stages[0], target_dir=tmp_path / "ours")
    w.write_input(tmp_path / "a", 3)
    ours = w.start(w.AGGREGATION.build(spark, tmp_path), "update", tmp_path / "ours").finish()
    assert list(ours.batches) == [3], "only what is new was read"
    theirs_on = w.start(w.AGGREGATION.build(spark, tmp_path), "update", tmp_path / "theirs").finish()
    assert ours.batches == theirs_on.batches
    deployment.store.close()  # type: ignore[attr-defined]
