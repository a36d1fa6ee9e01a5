"""The check ``checkpoint_succeeded``: the last checkpoint completed."""

from __future__ import annotations

import time

import dagster as dg

from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.supervision.alarms import AlarmFacts
from dagster_ckpt.dagster.alarm_facts import alarm_facts
from dagster_ckpt.dagster.asset import SUCCEEDED_CHECK, checkpoints_asset_key
from dagster_ckpt.dagster.names import COORDINATOR_KEY
from dagster_ckpt.dagster.pipeline_resources import coordinator_of, own_keys


def build_succeeded_check(pipeline: PipelineId) -> dg.AssetChecksDefinition:
    """Return the check; runs report it with every checkpoint, executing it reads the coordinator's history."""

    @dg.asset_check(
        asset=checkpoints_asset_key(pipeline),
        name=SUCCEEDED_CHECK,
        description="The last checkpoint completed. Runs report it with every checkpoint; numbers plot over time.",
        required_resource_keys=own_keys(pipeline, [COORDINATOR_KEY]),
    )
    def checkpoint_succeeded(context) -> dg.AssetCheckResult:  # type: ignore[no-untyped-def]
        resource = coordinator_of(context, pipeline)
        facts = alarm_facts(resource.store(), pipeline, now=time.time())
        return succeeded_result(facts)

    return checkpoint_succeeded


def succeeded_result(facts: AlarmFacts | None) -> dg.AssetCheckResult:
    """Return the history's verdict: passed unless checkpoints have failed since the last completion."""
    if facts is None:
        return dg.AssetCheckResult(passed=True, description="the pipeline has not run yet")
    streak = facts.streak
    metadata: dict[str, str | int | float] = {
        "consecutive_failures": streak.count,
        "checkpoint": streak.completed_id if streak.latest is None else streak.latest.checkpoint_id,
        "latest_completed": streak.completed_id,
    }
    if streak.latest is not None:
        metadata["reason"] = streak.latest.failure_reason
        metadata["message"] = streak.latest.failure_message
        metadata["stage"] = ", ".join(streak.stages) or "-"
    return dg.AssetCheckResult(
        passed=streak.count == 0, severity=dg.AssetCheckSeverity.WARN, metadata=metadata
    )
