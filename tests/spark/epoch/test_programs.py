"""Plain programs: runs without a Dagster instance, with the same store and snapshots as the pipeline's jobs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    Fenced,
    InvalidRequest,
    NotFound,
    run_epoch,
    run_stream,
)
from dagster_ckpt.core.properties import RunStatus
from dagster_ckpt.programs import EpochEnd, StreamEnd
from tests.progress import wait_until
from tests.spark.epoch.conftest import Lab, failure_text
from tests.spark.epoch.small_pipeline import (
    Feed,
    breakable,
    numbers_of,
    read_lines,
    read_totals,
    shop,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_ckpt import CheckpointedPipeline


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
    result = lab.run(pipeline)
    assert result.success, failure_text(result)
    feed.order(("bob", 4))
    third = run_epoch(pipeline, coordinator=where, spark=spark, settings={"num_retained": 1})
    assert read_lines(lab.tables) == feed.expected_lines()
    assert read_totals(lab.tables) == feed.expected_totals()
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
    broken.unlink()
    again = run_epoch(pipeline, coordinator=lab.coordinator, spark=spark, run_id="night")
    assert again.checkpoint is not None
    assert lab.record(pipeline).epoch == failed.epoch + 1
    assert numbers_of(lab.tables / "lines") == [order["number"] for order in feed.orders]


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
