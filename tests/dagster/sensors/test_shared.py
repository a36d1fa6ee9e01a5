"""Sensors that all pipelines of a code location share: one each, and no pipeline pays for another."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt import (
    AlarmMessage,
    CheckpointCoordinatorResource,
    InvalidRequest,
    PipelineOptions,
    RestartPolicy,
    build_location_definitions,
    build_pipeline_definitions,
)
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.dagster.sensors.shared import BUDGET, SharedCursor, Tick, one_after_the_other
from tests.dagster.conftest import Site
from tests.spark.epoch.small_pipeline import shop


def names(definitions: dg.Definitions) -> set[str]:
    return {sensor.name for sensor in definitions.sensors or ()}


@dataclass(frozen=True)
class Two:
    """Two pipelines with coordinators of their own, in one location."""

    shop: Site
    other: Site
    heard: list[AlarmMessage]


@pytest.fixture
def two(tmp_path: Path, instance: dg.DagsterInstance) -> Two:
    heard: list[AlarmMessage] = []
    first = shop(tmp_path / "feed")
    second = first.fork("other", table_dir=str(tmp_path / "tables"))
    sites = [Site(tmp_path / str(p.name), instance, p) for p in (first, second)]
    made = build_location_definitions(
        (first, second),
        coordinator={site.pipeline.name: site.resource for site in sites},
        options=PipelineOptions(alarm_after_failures=1, notify=heard.append, restart=RestartPolicy()),
    )
    for site in sites:
        site.__dict__["definitions"] = made  # a cached property
    return Two(*sites, heard=heard)


def test_a_location_has_one_of_each_sensor_and_the_same_jobs_and_assets(two: Two) -> None:
    shared, pipelines = two.shop.definitions, [two.shop.pipeline, two.other.pipeline]
    own = build_pipeline_definitions(pipelines)
    assert names(shared) == {
        *("checkpoints_safety_net", "checkpoints_failure_alarm", "checkpoints_horizon_alarm"),
        *("checkpoints_run_failed", "checkpoints_run_canceled"),
        *("shop_restart", "shop_streaming_restart", "other_restart", "other_streaming_restart"),
    }
    assert {job.name for job in shared.jobs or ()} == {job.name for job in own.jobs or ()}  # type: ignore[union-attr]
    assert set(shared.resolve_all_asset_keys()) == set(own.resolve_all_asset_keys())
    dg.Definitions.validate_loadable(shared)
    for job in shared.jobs or ():
        assert {"dagster_ckpt/pipeline", "dagster_ckpt/job"} <= job.tags.keys()  # type: ignore[union-attr]
        assert job.description  # type: ignore[union-attr]


def test_a_list_of_pipelines_is_as_good_as_one_after_the_other(two: Two) -> None:
    pipeline = two.shop.pipeline
    assert names(build_pipeline_definitions([pipeline])) == names(build_pipeline_definitions(pipeline))
    with pytest.raises(InvalidRequest, match="'shop' is no pipeline: give what @checkpointed_pipeline"):
        build_pipeline_definitions(["shop"])  # type: ignore[list-item]
    with pytest.raises(InvalidRequest, match="'shop' is no pipeline"):
        build_location_definitions("shop")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="is no pipeline"):
        build_pipeline_definitions(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"need different names, got \['shop', 'shop'\]"):
        build_location_definitions([pipeline, pipeline])
    with pytest.raises(InvalidRequest, match=r"coordinator is given for \['shopp'\]"):
        build_location_definitions([pipeline], coordinator={"shopp": CheckpointCoordinatorResource()})


def test_no_pipelines_are_no_sensors() -> None:
    assert names(build_location_definitions([])) == set()


def test_the_shared_safety_net_settles_each_pipelines_dead_run_and_keeps_a_cursor_for_each(two: Two) -> None:
    for site in (two.shop, two.other):
        run = site.start_run()
        site.attempt(run).completed_checkpoint()
        site.attempt(run).checkpoint()
        site.instance.report_run_failed(run)
    tick = two.shop.tick("checkpoints_safety_net")
    for site in (two.shop, two.other):
        assert site.record.status is RunStatus.FAILED
        assert site.partitions == ["chk-000001"]
        assert site.materialized() == ["chk-000001"]
    cursor = SharedCursor.model_validate_json(tick.cursor or "")
    assert cursor.pipelines.keys() == {"shop", "other"}
    again = two.shop.tick("checkpoints_safety_net", tick.cursor)
    assert again.said.startswith("shop: ")
    assert "; other: " in again.said
    assert two.other.materialized() == ["chk-000001"]


def test_the_shared_mirror_settles_the_pipeline_whose_run_it_was(two: Two) -> None:
    runs = [site.start_run() for site in (two.shop, two.other)]
    for site, run in zip((two.shop, two.other), runs, strict=True):
        site.attempt(run).checkpoint()
    dead = runs[1]
    two.other.instance.report_run_failed(dead)
    sensor = two.other.definitions.resolve_sensor_def("checkpoints_run_failed")
    event = dg.DagsterEvent(
        event_type_value=dg.DagsterEventType.RUN_FAILURE.value, job_name=dead.job_name, message="killed"
    )
    failed = two.other.instance.get_run_by_id(dead.run_id)
    assert failed is not None
    with dg.build_run_status_sensor_context(
        sensor_name=sensor.name,
        dagster_event=event,
        dagster_instance=two.other.instance,
        dagster_run=failed,
    ) as context:
        sensor(context)
    assert two.other.record.status is RunStatus.FAILED
    assert two.shop.record.status is not RunStatus.FAILED


def test_the_shared_alarm_tells_of_the_pipeline_that_fails(two: Two) -> None:
    attempt = two.other.attempt(two.other.start_run())
    attempt.decline(attempt.checkpoint(), "orders", message="no space left on device")
    cursor = two.shop.tick("checkpoints_failure_alarm").cursor
    two.shop.tick("checkpoints_failure_alarm", cursor)
    assert [message.pipeline for message in two.heard] == ["other"]


# --- one after the other, without pipelines ---------------------------------------------------------------------


def ticked(ticks: dict[str, Tick], cursor: str | None = None, **settings: Any) -> dg.SensorResult:
    with dg.build_sensor_context(cursor=cursor) as context:
        result = one_after_the_other(ticks, **settings)(context)
    assert isinstance(result, dg.SensorResult)
    return result


def counts(_context: dg.SensorEvaluationContext, cursor: str | None) -> dg.SensorResult:
    number = int(cursor or 0) + 1
    return dg.SensorResult(skip_reason=dg.SkipReason(f"tick {number}"), cursor=str(number))


def breaks(_context: dg.SensorEvaluationContext, cursor: str | None) -> dg.SensorResult:
    raise OSError("the hook does not answer")


def test_a_pipeline_that_fails_keeps_its_cursor_and_the_others_go_on() -> None:
    before = SharedCursor(pipelines={"a": "7", "b": "7"}).model_dump_json()
    result = ticked({"a": breaks, "b": counts}, before)
    assert json.loads(result.cursor or "")["pipelines"] == {"a": "7", "b": "8"}
    assert "a: the hook does not answer; b: tick 8" in str(result.skip_reason)


def test_when_all_fail_the_tick_fails() -> None:
    with pytest.raises(OSError, match="does not answer"):
        ticked({"a": breaks, "b": breaks})


def test_those_for_whom_no_time_was_left_are_the_first_of_the_next_tick() -> None:
    moments = iter([0.0, 0.0, BUDGET + 1, BUDGET + 1])
    first = ticked({"a": counts, "b": counts, "c": counts}, clock=lambda: next(moments))
    assert json.loads(first.cursor or "") == {"pipelines": {"a": "1", "b": None, "c": None}, "first": "b"}
    second = ticked({"a": counts, "b": counts, "c": counts}, first.cursor)
    assert "b: tick 1; c: tick 1; a: tick 2" in str(second.skip_reason)


@pytest.mark.parametrize("cursor", ["", "not json", '{"pipelines": 3}', '{"first": "gone"}'])
def test_a_cursor_that_was_reset_or_damaged_is_a_fresh_one(cursor: str) -> None:
    assert json.loads(ticked({"a": counts}, cursor).cursor or "")["pipelines"] == {"a": "1"}
