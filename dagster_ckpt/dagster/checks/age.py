"""The check ``checkpoint_age``: the newest completed checkpoint is young enough."""

from __future__ import annotations

import time
from datetime import timedelta

import dagster as dg

from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.supervision.alarms import AlarmFacts, age_of
from dagster_ckpt.dagster.alarm_facts import alarm_facts
from dagster_ckpt.dagster.asset import AGE_CHECK, checkpoints_asset_key
from dagster_ckpt.dagster.names import COORDINATOR_KEY
from dagster_ckpt.dagster.pipeline_resources import coordinator_of, own_keys


def build_age_check(pipeline: PipelineId, *, max_age: timedelta | None) -> dg.AssetChecksDefinition:
    """Return the check; without ``max_age`` it always passes, and its plot shows the age."""
    bound = f"younger than {max_age}" if max_age is not None else "of any age: no bound is set"

    @dg.asset_check(
        asset=checkpoints_asset_key(pipeline),
        name=AGE_CHECK,
        description=f"The newest completed checkpoint is {bound}.",
        required_resource_keys=own_keys(pipeline, [COORDINATOR_KEY]),
    )
    def checkpoint_age(context) -> dg.AssetCheckResult:  # type: ignore[no-untyped-def]
        resource = coordinator_of(context, pipeline)
        return age_result(alarm_facts(resource.store(), pipeline, now=time.time()), max_age=max_age)

    return checkpoint_age


def age_result(facts: AlarmFacts | None, *, max_age: timedelta | None) -> dg.AssetCheckResult:
    """Return whether the newest completion is young enough; a pipeline that never ran passes."""
    age = None if facts is None else age_of(facts)
    if facts is None or age is None:
        return dg.AssetCheckResult(passed=True, description="the pipeline has not run yet")
    metadata: dict[str, int | float] = {
        "age_s": round(age, 1),
        "latest_completed": facts.streak.completed_id,
    }
    if max_age is not None:
        metadata["max_age_s"] = max_age.total_seconds()
    return dg.AssetCheckResult(
        passed=max_age is None or age <= max_age.total_seconds(),
        severity=dg.AssetCheckSeverity.WARN,
        metadata=metadata,
    )
