"""Plain programs: runs without a Dagster instance, with the same store and snapshots as the pipeline's jobs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    CheckpointedPipeline,
    Fenced,
    InvalidRequest,
    NotFound,
    Unavailable,
    run_epoch,
    run_stream,
)
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.ext.tables.engine import Engine
from dagster_ckpt.programs import EpochEnd, StreamEnd
from dagster_ckpt.spark.streaming.run import StoppedWithSavepoint
from dagster_ckpt.spark.streaming.service import StreamingService
from tests.lab.lab import Lab
from tests.lab.pipelines import reads, sink, wired
from tests.progress import wait_until
from tests.spark.epoch.small_pipeline import (
    ORDERS,
    Feed,
    breakable,
    numbers_of,
    read_lines,
    read_totals,
    shop,
)


def refused(pipeline: CheckpointedPipeline, **coordinator: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        run_epoch(pipeline, coordinator=CheckpointCoordinatorResource(**coordinator))
    return str(caught.value)


def test_places_that_nothing_names_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    said = refused(shop(tmp_path), store_url=f"sqlite:///{tmp_path / 'store.db'}", work_dir=str(tmp_path))
    assert said == (
        "outside of Dagster nothing says where checkpoint_dir and savepoint_dir and table_dir are: give the "
        "coordinator base_dir, or each of them"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named_by_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    said = refused(shop(tmp_path), base_dir=str(tmp_path / "lab"), work_dir=str(tmp_path / "file" / "work"))
    assert said.startswith("`work_dir`: the folder ")
    assert not (tmp_path / "lab").exists()


def test_config_of_a_stage_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidRequest, match="config of stage 'order': pipeline 'shop' has the stages orders, "
    ):
        run_epoch(
            shop(tmp_path),
            coordinator=CheckpointCoordinatorResource(base_dir=str(tmp_path / "lab")),
            stages={"order": {"x": 1}},
        )


def test_a_plain_program_and_dagsters_job_go_on_from_one_another(
    lab: Lab, feed: Feed, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = shop(feed.folder)
    monkeypatch.setenv("PLACE", str(lab.folder))
    where = CheckpointCoordinatorResource(base_dir=dg.EnvVar("PLACE"), table_dir=str(lab.tables))
    first = run_epoch(pipeline, coordinator=where, spark=spark)
    assert first.checkpoint is not None
    assert first.checkpoint.uri.endswith("shop/chk-1")
    assert lab.record(pipeline).status is RunStatus.SUSPENDED
    assert lab.record(pipeline).owner == first.run_id
    assert read_lines(lab.tables) == feed.expected_lines()

    feed.order(("ann", 3))
    lab.succeeds(pipeline)
    feed.order(("bob", 4))
    third = run_epoch(pipeline, coordinator=where, spark=spark, settings={"num_retained": 1})
    feed.check(lab.tables)
    assert [known.checkpoint_id for known in lab.record(pipeline).completed] == [3]

    with pytest.raises(NotFound, match="savepoint-9"):
        run_epoch(pipeline, coordinator=where, spark=spark, restore={"restore_from": "savepoint-9"})
    assert third.checkpoint is not None
    back = run_epoch(pipeline, coordinator=where, spark=spark, restore={"restore_from": third.checkpoint.uri})
    assert back.checkpoint is not None
    assert read_totals(lab.tables) == feed.expected_totals()


def test_a_stream_in_a_plain_program_is_stopped_from_anywhere_and_an_epoch_goes_on(
    lab: Lab, feed: Feed, spark: SparkSession
) -> None:
    pipeline = shop(feed.folder)
    stopping = threading.Event()
    ends: list[StreamEnd | BaseException] = []

    def stream() -> None:
        try:
            ends.append(
                run_stream(
                    pipeline,
                    coordinator=lab.coordinator,
                    spark=spark,
                    settings={"interval": 0.2},
                    stopping=stopping,
                )
            )
        except BaseException as error:
            ends.append(error)

    thread = threading.Thread(target=stream)
    thread.start()
    try:
        wait_until(
            lambda: bool(ends) or read_lines(lab.tables) == feed.expected_lines(), "its rows are published"
        )
    finally:
        stopping.set()
        thread.join()
    [end] = ends
    assert isinstance(end, StreamEnd), end
    assert end.interrupted
    feed.order(("ann", 8))
    run_epoch(pipeline, coordinator=lab.coordinator, spark=spark)
    assert read_totals(lab.tables) == feed.expected_totals()


@pytest.mark.nightly
def test_another_try_of_a_failed_run_goes_on_from_its_checkpoint_and_publishes_every_row(
    lab: Lab, feed: Feed, spark: SparkSession, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    pipeline = breakable(feed.folder, broken)
    run_epoch(pipeline, coordinator=lab.coordinator, spark=spark)
    feed.order(("ann", 3))
    broken.touch()
    with pytest.raises(Exception, match="broken"):
        run_epoch(pipeline, coordinator=lab.coordinator, spark=spark, run_id="night")
    failed = lab.record(pipeline)
    assert (failed.owner, failed.status, failed.next_id) == ("night", RunStatus.FAILED, 3), "it was triggered"
    assert "broken" in failed.job_failure
    broken.unlink()
    again = run_epoch(pipeline, coordinator=lab.coordinator, spark=spark, run_id="night")
    assert again.checkpoint is not None
    assert lab.record(pipeline).epoch == failed.epoch + 1
    assert numbers_of(lab.tables / "lines") == [order["number"] for order in feed.orders]


def test_a_second_run_under_the_name_of_one_that_ended_well_processes_what_has_arrived_since(
    lab: Lab, feed: Feed, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It found the marks of the first one's stages, did nothing, and succeeded: also where that had not published."""
    pipeline = breakable(feed.folder, tmp_path / "never")
    where: dict[str, Any] = {"coordinator": lab.coordinator, "spark": spark, "run_id": "night"}
    run_epoch(pipeline, **where)
    feed.order(("ann", 3))
    with monkeypatch.context() as patched:
        patched.setattr(Engine, "publish", refuses)
        with pytest.raises(Unavailable, match="tables do not show its rows yet"):
            run_epoch(pipeline, **where)
    assert len(numbers_of(lab.tables / "lines")) == 2
    end = run_epoch(pipeline, **where)
    assert end.checkpoint is not None
    assert end.checkpoint.uri.endswith("chk-3")
    assert numbers_of(lab.tables / "lines") == [order["number"] for order in feed.orders]


def refuses(*_: Any) -> None:
    raise OSError("the disk is away")


def test_a_stage_may_have_any_name_the_marks_of_a_run_too(lab: Lab, feed: Feed, spark: SparkSession) -> None:
    """A stage named checkpoint took the number of the run's checkpoint for a mark that it had run."""

    pipeline = wired(
        "named",
        reads("orders", ORDERS, feed.folder / "orders"),
        sink("checkpoint", lambda orders: orders.select("number")),
        checkpointing={"operator_chaining": False},
    )

    end = run_epoch(pipeline, coordinator=lab.coordinator, spark=spark)
    assert end.checkpoint is not None
    assert numbers_of(lab.tables / "checkpoint") == [0, 1]


def test_a_stream_that_is_stopped_with_a_savepoint_whose_rows_tables_do_not_show_has_not_ended_well(
    lab: Lab, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a warning in the log of a run that succeeded, and after a stop nobody may run the pipeline again."""
    pipeline = shop(feed.folder)

    def stopped(service: StreamingService) -> StoppedWithSavepoint:
        service.unpublished = {"totals": "the disk is away"}
        return StoppedWithSavepoint("file:///savepoints/savepoint-1")

    monkeypatch.setattr(StreamingService, "run", stopped)
    why = (
        "stopped with savepoint file:///savepoints/savepoint-1, which holds all rows, and the next run publishes the "
        "rest: table totals does not show its rows yet: the disk is away"
    )
    with pytest.raises(Unavailable) as caught:
        run_stream(pipeline, coordinator=lab.coordinator)
    assert str(caught.value) == why
    lab.fails(pipeline, why, job="shop_streaming")


@pytest.mark.nightly
def test_a_second_try_while_the_first_one_lives_fences_it(
    lab: Lab, feed: Feed, spark: SparkSession, tmp_path: Path
) -> None:
    where: dict[str, Any] = {"coordinator": lab.coordinator, "spark": spark, "run_id": "night"}
    seconds: list[EpochEnd] = []

    def another(orders: DataFrame) -> DataFrame:
        if not seconds:
            seconds.append(run_epoch(breakable(feed.folder, tmp_path / "never"), **where))
        return orders

    with pytest.raises(Fenced):
        run_epoch(breakable(feed.folder, tmp_path / "never", passed=another), **where)
    assert [end.checkpoint is not None for end in seconds] == [True]
    assert numbers_of(lab.tables / "lines") == [order["number"] for order in feed.orders]
