"""Alarms: people are told once when checkpoints fail or grow old, and once when that is over.

The horizon alarm: people are told days before a retained snapshot stops being restorable, and after.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.restore.horizon import NEAR_DAYS, Horizon
from dagster_ckpt.core.units import counted
from dagster_ckpt.dagster.checks.history import alarm_facts, horizon_result
from dagster_ckpt.dagster.reports.asset import (
    AGE_CHECK,
    HORIZON_CHECK,
    checkpoints_asset_key,
    succeeded_evaluation,
)
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.sensors.shared import (
    BoundCoordinator,
    Cursor,
    Tick,
    build_own_sensor,
    read_cursor,
    run_link,
)
from dagster_ckpt.dagster.supervision import (
    Alarm,
    AlarmFacts,
    AlarmKind,
    AlarmPolicy,
    AlarmState,
    OpenEpisodes,
    age_of,
    judge_alarms,
)
from dagster_ckpt.errors import NotFound, Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmMessage:
    """Message for a ``notify`` hook."""

    pipeline: str
    alarm: Alarm
    run_link: str
    """Address of the run whose checkpoint failed last; empty where there is none. Relative without ``ui_base_url``."""
    checks_link: str
    """Address of the checkpoints asset's checks."""

    @property
    def text(self) -> str:
        """The message in one line, for a chat or a mail's subject."""
        return f"{self.pipeline}: {self.alarm.sentence}"


class AlarmCursor(Cursor):
    """Cursor of the alarm sensor: kind of alarm → newest completed checkpoint when the episode started."""

    failures: int | None = None
    age: int | None = None
    young: bool | None = None
    """What the check of the age says; None: nothing yet."""


def build_failure_alarm(
    pipeline: CheckpointedPipeline,
    *,
    coordinator: CheckpointCoordinatorResource,
    policy: AlarmPolicy,
    notify: Callable[[AlarmMessage], Any] | None = None,
) -> dg.SensorDefinition:
    """Return the sensor that tells people; it reports to the checkpoints asset and calls ``notify``.

    A hook that raises is called again in the next tick: people are told at least once. A cursor that was reset tells
    them again of what is still wrong.
    """

    tick = failure_alarm_tick(pipeline, BoundCoordinator(coordinator), policy=policy, notify=notify)

    return build_own_sensor(
        f"{pipeline.name}_failure_alarm",
        tick,
        does=f"Tells people, once per episode, when checkpoints of `{pipeline.name}` fail or grow old.",
    )


def failure_alarm_tick(
    pipeline: CheckpointedPipeline,
    standing: BoundCoordinator,
    *,
    policy: AlarmPolicy,
    notify: Callable[[AlarmMessage], Any] | None,
) -> Tick:
    """Return the sensor's tick for one pipeline, from that pipeline's cursor."""

    def tick(context: dg.SensorEvaluationContext, before: str | None) -> dg.SensorResult | dg.SkipReason:
        resource = standing.of(context.instance)
        cursor = read_cursor(before, AlarmCursor)
        try:
            facts = alarm_facts(resource.store(), pipeline.name, now=time.time())
        except Unavailable as error:
            return dg.SkipReason(f"nothing is known of the checkpoints: {error}")
        if facts is None:
            return dg.SkipReason("the pipeline has not run yet")
        decision = judge_alarms(policy, facts, OpenEpisodes(failures=cursor.failures, age=cursor.age))
        for alarm in decision.announce:
            context.log.warning(alarm.sentence)
            if notify is not None:
                notify(_message(pipeline.name, alarm, resource.ui_base_url))
        young = _is_young(policy, facts, cursor)
        result = _result(
            pipeline.name, decision.announce, decision.open, facts, resource.ui_base_url, young=young
        )
        if young is None or young == cursor.young or any(a.kind is AlarmKind.AGE for a in decision.announce):
            return result
        evaluation = _age_evaluation(pipeline.name, policy, facts, passed=young)
        return dg.SensorResult(asset_events=[*result.asset_events, evaluation], cursor=result.cursor)

    return tick


def _message(pipeline: PipelineId, alarm: Alarm, ui_base_url: str) -> AlarmMessage:
    base = ui_base_url.rstrip("/")
    return AlarmMessage(
        pipeline=pipeline,
        alarm=alarm,
        run_link=run_link(alarm.run_id, base) if alarm.run_id else "",
        checks_link=f"{base}/assets/{pipeline}/checkpoints?view=checks",
    )


def _result(
    pipeline: PipelineId,
    announced: tuple[Alarm, ...],
    told: OpenEpisodes,
    facts: AlarmFacts,
    ui_base_url: str,
    *,
    young: bool | None,
) -> dg.SensorResult:
    events: list[dg.AssetObservation | dg.AssetCheckEvaluation] = []
    for alarm in announced:
        message = _message(pipeline, alarm, ui_base_url)
        events.append(_observation(pipeline, message))
        events.append(_evaluation(pipeline, alarm))
    standing = [kind for kind, open_ in (("failures", told.failures), ("age", told.age)) if open_ is not None]
    quiet = (
        f"people know ({', '.join(standing)})"
        if standing
        else f"{facts.streak.count} failed since the last success"
    )
    return dg.SensorResult(
        asset_events=events,
        skip_reason=None if events else dg.SkipReason(quiet),
        cursor=AlarmCursor(failures=told.failures, age=told.age, young=young).model_dump_json(),
    )


def _is_young(policy: AlarmPolicy, facts: AlarmFacts, cursor: AlarmCursor) -> bool | None:
    """Return the verdict of the age check; None: there is no bound, or nothing to compare yet."""
    age = age_of(facts)
    return cursor.young if policy.max_age is None or age is None else age <= policy.max_age


def _age_evaluation(
    pipeline: PipelineId, policy: AlarmPolicy, facts: AlarmFacts, *, passed: bool
) -> dg.AssetCheckEvaluation:
    """Return the check's result: Dagster shows one that nobody has evaluated as if nobody looked."""
    return dg.AssetCheckEvaluation(
        asset_key=checkpoints_asset_key(pipeline),
        check_name=AGE_CHECK,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={
            "age_s": round(age_of(facts) or 0.0, 1),
            "max_age_s": policy.max_age or 0.0,
            "latest_completed": facts.streak.completed_id,
        },
    )


def _observation(pipeline: PipelineId, message: AlarmMessage) -> dg.AssetObservation:
    alarm = message.alarm
    metadata: dict[str, Any] = {
        "alarm": f"{alarm.kind.value} {alarm.state.value}",
        "consecutive_failures": alarm.failures,
        "reason": alarm.reason or "-",
        "message": alarm.message or "-",
        "stage": ", ".join(alarm.stages) or "-",
    }
    if alarm.age is not None:
        metadata["age_s"] = round(alarm.age, 1)
    if alarm.run_id:
        metadata["run"] = dg.MetadataValue.dagster_run(alarm.run_id)
    return dg.AssetObservation(checkpoints_asset_key(pipeline), description=alarm.sentence, metadata=metadata)


def _evaluation(pipeline: PipelineId, alarm: Alarm) -> dg.AssetCheckEvaluation:
    passed = alarm.state is AlarmState.CLEARED
    metadata: dict[str, str | int | float] = {
        "consecutive_failures": alarm.failures,
        "message": alarm.sentence,
    }
    if alarm.kind is AlarmKind.FAILURES:
        return succeeded_evaluation(pipeline, passed=passed, metadata=metadata)
    return dg.AssetCheckEvaluation(
        asset_key=checkpoints_asset_key(pipeline),
        check_name=AGE_CHECK,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={**metadata, "age_s": round(alarm.age or 0.0, 1)},
    )


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
        from dagster_ckpt.operations.restores.horizon import restorability

        resource = standing.of(context.instance)
        told = read_cursor(before, HorizonCursor).told
        try:
            found = restorability(pipeline, resource, now=time.time())
        except NotFound:
            return dg.SkipReason("the pipeline has not run yet")
        except Unavailable as error:
            return dg.SkipReason(f"nothing is known of the snapshots: {error}")
        now = {one.key: "near" if one.is_restorable else "gone" for one in found if one.is_near(NEAR_DAYS)}
        news = [one for one in found if now.get(one.key, told.get(one.key)) != told.get(one.key)]
        for one in news:
            context.log.warning(one.sentence())
            if notify is not None:
                notify(_horizon_message(pipeline.name, one, resource.ui_base_url))
        return _horizon_result(pipeline.name, found, told=told, now=now)

    return tick


def _horizon_result(
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


def _horizon_message(pipeline: PipelineId, one: Horizon, ui_base_url: str) -> AlarmMessage:
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
