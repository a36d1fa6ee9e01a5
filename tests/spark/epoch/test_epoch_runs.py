"""Epoch runs of a real pipeline on real Spark, as Dagster runs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_ckpt import (
    CheckpointedPipeline,
    checkpointed_pipeline,
    load_table,
    spark_sink,
    spark_source,
)
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId, StageUid
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.dagster.reports.asset import SUCCEEDED_CHECK
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.tables.engine import Engine
from dagster_ckpt.spark.attempt import sinks
from dagster_ckpt.spark.attempt.sinks_at_start import SinksAtStart
from dagster_ckpt.spark.sink.port import AttemptId, SinkCut
from tests.lab.lab import Lab, failure_text
from tests.spark.epoch.small_pipeline import CUSTOMERS, ORDERS, Feed, read_lines, read_totals, shop
from tests.tables import rows_in


def breaks(**_inputs: Any) -> Any:
    raise RuntimeError("a mistake in the stage")


publish = Engine.publish


def refuses_totals(engine: Engine[Any], *given: Any) -> object:
    if engine.backend.key:
        raise ValueError("the totals cannot be written")
    return publish(engine, *given)


def test_each_epoch_publishes_every_row_once_and_ends_with_a_checkpoint(
    lab: Lab, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = shop(feed.folder)
    lab.succeeds(pipeline)
    feed.check(lab.tables)
    assert lab.partitions(pipeline) == ["chk-000001"]

    feed.order(("ann", 1))
    feed.order(("zoe", 9))  # her customer record arrives an epoch later
    lab.succeeds(pipeline)
    feed.check(lab.tables)

    feed.customer("zoe", "ch")
    with monkeypatch.context() as patched:  # a run whose rows nobody can see is no success
        patched.setattr(Engine, "publish", refuses_totals)
        unseen = lab.run(pipeline)
    assert not unseen.success
    assert "tables do not show its rows yet" in failure_text(unseen)
    told = lab.materializations(pipeline)[0]
    late = (
        "table totals does not show its rows yet: the totals cannot be written. Mend there what refuses them and run "
        "the pipeline again, or set these rows aside (dagster-ckpt set-aside shop --sink totals -f CODE.py --yes)"
    )
    assert (told.description, told.metadata["not_published"].value) == (
        f"checkpoint 3 completed; {late}",
        late,
    )
    checks = {one.check_name: one for one in unseen.get_asset_check_evaluations()}
    assert checks[SUCCEEDED_CHECK].metadata["not_published"].value == late
    assert read_lines(lab.tables) == feed.expected_lines()
    lab.succeeds(pipeline)
    feed.check(lab.tables)
    newest = lab.materializations(pipeline)[0]
    assert str(newest.metadata["snapshot"].value).startswith("chk-000004 · ")
    assert 0 < newest.metadata["bytes_new"].value <= newest.metadata["bytes_full"].value


@pytest.mark.nightly
def test_a_run_with_nothing_new_changes_no_table_and_still_takes_its_checkpoint(lab: Lab, feed: Feed) -> None:
    pipeline = shop(feed.folder)
    lab.succeeds(pipeline)
    lab.succeeds(pipeline)
    feed.check(lab.tables)
    assert lab.partitions(pipeline) == ["chk-000001", "chk-000002"]

    newest = lab.materializations(pipeline)[0].metadata["location"].value
    (lab.folder / "coordinator.db").unlink()  # the store is lost; tables remember the attempts of before
    feed.order(("ann", 3))
    lab.succeeds(pipeline, restore_from=str(newest))
    feed.check(lab.tables)


@pytest.mark.nightly
def test_the_pipelines_own_checkpoint_given_as_a_relative_path_is_its_own_and_recorded_as_absolute(
    lab: Lab, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = shop(feed.folder)
    lab.succeeds(pipeline)
    folder = lab.record(pipeline).completed[0].location.folder
    monkeypatch.chdir(lab.folder)
    lab.succeeds(pipeline, restore_from=f"work/../checkpoints/{folder}")
    first, second = lab.record(pipeline).completed
    assert (first.checkpoint_id, second.checkpoint_id) == (1, 2)
    assert not first.properties.unclaimed, "it was taken for a stranger's"
    assert first.location.base_uri == f"file://{lab.folder}/checkpoints"


@pytest.mark.nightly
def test_a_run_that_failed_after_a_restore_from_a_relative_path_is_tried_again_from_any_folder(
    lab: Lab, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = shop(feed.folder)
    lab.succeeds(pipeline)
    folder = lab.record(pipeline).completed[0].location.folder
    shutil.copytree(lab.folder / "checkpoints", tmp_path / "copied")
    totals = replace(pipeline.stages[StageUid("totals")], fn=breaks)
    broken = replace(pipeline, stages={**pipeline.stages, totals.uid: totals})
    monkeypatch.chdir(tmp_path)
    lab.fails(broken, restore_from=f"copied/{folder}")
    monkeypatch.chdir(lab.folder)
    lab.succeeds(pipeline)
    assert lab.record(pipeline).completed[0].location.uri == f"file://{tmp_path}/copied/{folder}"
    feed.check(lab.tables)


def test_a_clean_working_directory_is_adopted_and_an_explicit_restore_builds_a_new_one(
    lab: Lab, feed: Feed
) -> None:
    pipeline = shop(feed.folder)
    lab.run(pipeline)
    lab.run(pipeline)
    adopted = lab.record(pipeline).working_directory
    assert adopted.endswith("attempt-1")
    lab.succeeds(pipeline, restore_from="chk-2")
    assert lab.record(pipeline).working_directory.endswith("attempt-3")
    feed.check(lab.tables)


def test_going_back_to_an_older_checkpoint_takes_later_rows_away_and_replays_them_once(
    lab: Lab, feed: Feed
) -> None:
    pipeline = shop(feed.folder)
    lab.run(pipeline)
    early = feed.expected_totals()
    feed.order(("bob", 100), ("ann", 200))
    lab.run(pipeline)
    feed.order(("bob", 1000))
    lab.run(pipeline)
    feed.check(lab.tables)
    loaded = load_table(pipeline, "totals", coordinator=lab.coordinator, as_of="chk-1").to_arrow()
    assert {row.pop("country"): tuple(row.values()) for row in loaded.to_pylist()} == early
    lab.succeeds(pipeline, restore_from="chk-1")
    feed.check(lab.tables)


@pytest.mark.nightly
def test_going_back_to_before_files_that_are_gone_is_refused_unless_their_rows_are_to_be_left_out(
    lab: Lab, feed: Feed
) -> None:
    """Their rows were set aside, Spark passed over the files, and the run succeeded without them."""
    pipeline = shop(feed.folder)
    lab.succeeds(pipeline)
    feed.order(("ann", 3))
    lab.succeeds(pipeline)
    newest = max((feed.folder / "orders").glob("*.json"))
    newest.unlink()
    lab.fails(pipeline, f" after it, first {newest} is gone", restore_from="chk-1")
    feed.check(lab.tables)
    lab.succeeds(pipeline, restore_from="chk-1", allow_missing_files=True)
    feed.orders.pop()
    feed.check(lab.tables)


def test_starting_without_state_empties_the_tables_first(lab: Lab, feed: Feed) -> None:
    pipeline = shop(feed.folder)
    lab.run(pipeline)
    lab.succeeds(pipeline, restore_from="none")
    feed.check(lab.tables)


def test_a_savepoint_restores_without_the_coordinator_store_and_into_a_fork(lab: Lab, feed: Feed) -> None:
    pipeline = shop(feed.folder)
    lab.run(pipeline)
    lab.succeeds(pipeline, job="shop_savepoint", ops={"savepoint": {"name": "before"}})
    location = lab.materializations(pipeline)[0].metadata["location"].value
    assert lab.materializations(pipeline)[0].metadata["name"].value == "before"

    feed.order(("ann", 50))
    lab.succeeds(pipeline)
    fork_tables = lab.folder / "fork"
    fork = pipeline.fork("shop_fork", table_dir=str(fork_tables))
    totals = replace(fork.stages[StageUid("totals")], fn=breaks)
    broken = replace(fork, stages={**fork.stages, totals.uid: totals})
    lab.fails(broken, restore_from=str(location), fork=True)
    lab.succeeds(fork)  # tried again by its store alone
    feed.order(("bob", 60))
    newest = lab.record(pipeline).completed[-1].location.uri
    lab.fails(fork, "has rows already: give the fork a table of its own", restore_from=newest, fork=True)
    # Its next run went on from the refused snapshot: a state that had read rows which its own table does not have.
    for one in (fork, pipeline):
        lab.succeeds(one)
    feed.check(fork_tables)
    feed.check(lab.tables)


def at_start(mine: sinks.PipelineSinks) -> SinksAtStart:
    silent: Any = SimpleNamespace(info=str, warn=str)
    return SinksAtStart(sinks=mine, reporter=silent, before=silent)


def cut_at(snapshot: TableSnapshot) -> SinkCut:
    return SinkCut(snapshot=snapshot, batches=(), checkpoint_id=CheckpointId(8))


def test_a_renamed_sink_is_told_where_its_rows_are(feed: Feed, tmp_path: Path) -> None:
    pipeline = shop(feed.folder)
    mine = sinks.PipelineSinks(
        session=lambda: pytest.fail("nothing is computed here"),
        pipeline=pipeline,
        table_dir=tmp_path,
        work_dir=tmp_path / "work",
        attempt_id=lambda: AttemptId("", CoordinatorEpoch(1)),
    )
    table = mine.of(StageUid("totals"))
    before = cut_at(TableSnapshot(uri=str(tmp_path / "sums"), head=7))
    with pytest.raises(InvalidRequest, match=r"rows of the restore point: they are in .*table='sums'"):
        at_start(mine).refusals._refuse_another_table(StageUid("totals"), table, before)
    at_start(mine).refusals._refuse_another_table(
        StageUid("totals"), table, cut_at(TableSnapshot(uri=table.place, head=7))
    )


def test_rows_do_not_leave_the_table_of_a_sink_that_was_renamed_without_its_old_uid(
    lab: Lab, feed: Feed
) -> None:
    """All of them passed for newer than the restore point, and reading went on behind them: the run succeeded."""
    pipeline = shop(feed.folder)
    for _ in range(2):
        lab.succeeds(pipeline)
    renamed = lines_as(pipeline, "rows")
    lab.fails(
        renamed,
        "name the old one (previous_uids=['lines'])",
        restore_from="chk-2",
        allow_non_restored_state=True,
    )
    assert read_lines(lab.tables) == feed.expected_lines()
    named = lines_as(pipeline, "rows", previous_uids=(StageUid("lines"),))
    feed.order(("bob", 8))
    lab.succeeds(named)
    feed.check(lab.tables)


@pytest.mark.nightly
def test_a_pipeline_that_says_its_former_name_goes_on_from_a_snapshot_of_that(lab: Lab, feed: Feed) -> None:
    old = shop(feed.folder, num_retained=2)
    for _ in range(2):
        lab.succeeds(old)
    first, second = (one.location.uri for one in lab.record(old).completed)
    stranger = replace(old, name=PipelineId("store"))
    new = replace(stranger, previous_names=(old.name,))
    feed.order(("bob", 8))
    for pipeline, restore, said in (
        (stranger, {"restore_from": second}, "name the old one in its code (previous_names=['shop'])"),
        (stranger, {"restore_from": "none"}, "name the old one (previous_names=['shop'])"),
        (
            new,
            {},
            f"restore_from the newest snapshot of 'shop', by its URI (the newest snapshot found is {second}",
        ),
    ):
        lab.fails(pipeline, said, **restore)
    result = lab.run(new, restore_from=second)
    assert result.success, failure_text(result)
    feed.check(lab.tables)
    lab.fails(old, "belongs to another history")
    feed.order(("ann", 9))
    for restore in ({}, {"restore_from": first}):
        result = lab.run(new, **restore)
        assert result.success, failure_text(result)
        feed.check(lab.tables)


def test_sinks_that_exchange_their_tables_are_refused(lab: Lab, feed: Feed) -> None:
    """Each took the other's batches for its own: rows with numbers that the table had seen were left out."""

    def names(customers: str, orders: str = "") -> CheckpointedPipeline:
        @spark_source
        def made(spark):  # type: ignore[no-untyped-def]
            frame = spark.readStream.schema(ORDERS).option("maxFilesPerTrigger", 1)
            return frame.json(str(feed.folder / "orders")).select("customer")

        @spark_source
        def known(spark):  # type: ignore[no-untyped-def]
            frame = spark.readStream.schema(CUSTOMERS).json(str(feed.folder / "customers"))
            return frame.selectExpr("name AS customer")

        @spark_sink(table=orders)
        def ordered(made):  # type: ignore[no-untyped-def]
            return made

        @spark_sink(table=customers)
        def listed(known):  # type: ignore[no-untyped-def]
            return known

        @checkpointed_pipeline(name="names")
        def pipeline() -> None:
            if orders:
                ordered(made())
            listed(known())

        return pipeline  # type: ignore[no-any-return]

    for _ in range(3):
        feed.order(("ann", 1))
    right = names("customers", "orders")
    lab.succeeds(right)
    feed.customer("eve", "fr")
    for more in ({}, {"restore_from": "chk-1"}):
        lab.fails(
            names("orders", "customers"),
            "and there are the rows of sink 'listed': its own would pass for published",
            **more,
        )
    alone = lab.run(names("orders"), allow_non_restored_state=True)
    assert "and there are the rows of sink 'ordered'" in failure_text(alone), "also of one that is gone"
    lab.succeeds(right)
    found = sorted(row["customer"] for row in rows_in(lab.tables / "customers"))
    assert found == ["ann", "bob", "eve"]


def lines_as(pipeline: CheckpointedPipeline, uid: str, **changes: Any) -> CheckpointedPipeline:
    """The shop with its sink ``lines`` under another uid, on the same table."""
    new = StageUid(uid)
    stages, upstream = dict(pipeline.stages), dict(pipeline.upstream)
    stages[new] = replace(stages.pop(StageUid("lines")), uid=new, **changes)
    upstream[new] = upstream.pop(StageUid("lines"))
    return replace(pipeline, stages=stages, upstream=upstream)


@pytest.mark.nightly
def test_starting_without_state_on_tables_that_keep_their_rows_publishes_all_of_them_again(
    lab: Lab, feed: Feed
) -> None:
    pipeline = shop(feed.folder)
    lab.succeeds(pipeline)
    lab.succeeds(pipeline, restore_from="none", roll_back_tables=False)
    assert read_lines(lab.tables) == feed.expected_lines() + feed.expected_lines()
    assert read_totals(lab.tables) == feed.expected_totals()
