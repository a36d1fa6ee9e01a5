"""The horizon alarm: people are told days before a retained snapshot stops being restorable, and after."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.restore.horizon import Horizon
from dagster_ckpt.core.supervision.alarms import Alarm, AlarmKind, AlarmState
from dagster_ckpt.core.units import counted
from dagster_ckpt.dagster.checks.horizon import horizon_result
from dagster_ckpt.dagster.reports.asset import HORIZON_CHECK, checkpoints_asset_key
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.sensors.failure_alarm import AlarmMessage
from dagster_ckpt.dagster.sensors.shared import Tick, build_own_sensor
from dagster_ckpt.dagster.sensors.ticks import BoundCoordinator, Cursor, read_cursor
from dagster_ckpt.errors import NotFound, Unavailable
from dagster_ckpt.operations.restores.horizon import NEAR_DAYS, restorability

HOUR = 3600
Notify = Callable[[AlarmMessage], Any]


class HorizonCursor(Cursor):
    """Cursor of the horizon alarm: snapshot → what people know of it, ``near`` or ``gone``."""

    told: dict[str, str] = {}  # noqa: RUF012 - a pydantic field, copied per instance


def build_horizon_alarm(
    pipeline: CheckpointedPipeline,
    *,
    coordinator: CheckpointCoordinatorResource,
    notify: Notify | None = None,
) -> dg.SensorDefinition:
    """Return the sensor that asks hourly; it reports to the check ``checkpoint_horizon`` and calls ``notify``."""
    tick = horizon_tick(pipeline, BoundCoordinator(coordinator), notify=notify)

    return build_own_sensor(
        f"{pipeline.name}_horizon_alarm",
        tick,
        does=f"Tells people {NEAR_DAYS:g} days before a snapshot of `{pipeline.name}` stops being restorable.",
        minimum_interval_seconds=HOUR,
    )


def horizon_tick(
    pipeline: CheckpointedPipeline, standing: BoundCoordinator, *, notify: Notify | None
) -> Tick:
    """Return the sensor's tick for one pipeline, from that pipeline's cursor."""

    def tick(context: dg.SensorEvaluationContext, before: str | None) -> dg.SensorResult | dg.SkipReason:
        resource = standing.of(context.instance)
        told = read_cursor(before, HorizonCursor).told
        try:
            found = restorability(pipeline, resource, now=time.time())
        except NotFound:
            return dg.SkipReason("the pipeline has not run yet")
        except Unavailable as error:
            return dg.SkipReason(f"nothing is known of the snapshots: {error}")
        now = _near(found)
        news = [one for one in found if now.get(one.key, told.get(one.key)) != told.get(one.key)]
        for one in news:
            context.log.warning(one.sentence())
            if notify is not None:
                notify(_message(pipeline.name, one, resource.ui_base_url))
        return _result(pipeline.name, found, told=told, now=now)

    return tick


def _near(found: Sequence[Horizon]) -> dict[str, str]:
    return {one.key: "near" if one.is_restorable else "gone" for one in found if one.is_near(NEAR_DAYS)}


def _result(
    pipeline: PipelineId,
    found: Sequence[Horizon],
    *,
    told: Mapping[str, str],
    now: dict[str, str],
) -> dg.SensorResult:
    """Report the check where anything has changed: also when what was near was disposed of, or is kept longer now."""
    cursor = HorizonCursor(told=now).model_dump_json()
    if now == told:
        known = (
            f"people know of {', '.join(now)}"
            if now
            else f"{counted(len(found), 'snapshot')} can be restored for days"
        )
        return dg.SensorResult(skip_reason=dg.SkipReason(known), cursor=cursor)
    judged = horizon_result(found)
    evaluation = dg.AssetCheckEvaluation(
        asset_key=checkpoints_asset_key(pipeline),
        check_name=HORIZON_CHECK,
        passed=judged.passed,
        severity=judged.severity,
        description=judged.description,
        metadata=judged.metadata,
    )
    return dg.SensorResult(asset_events=[evaluation], cursor=cursor)


def _message(pipeline: PipelineId, one: Horizon, ui_base_url: str) -> AlarmMessage:
    alarm = Alarm(
        kind=AlarmKind.HORIZON,
        state=AlarmState.RAISED,
        failures=0,
        age=None,
        checkpoint_id=None,
        completed_id=0,
        message=one.sentence(),
    )
    base = ui_base_url.rstrip("/")
    return AlarmMessage(
        pipeline=pipeline,
        alarm=alarm,
        run_link="",
        checks_link=f"{base}/assets/{pipeline}/checkpoints?view=checks",
    )
