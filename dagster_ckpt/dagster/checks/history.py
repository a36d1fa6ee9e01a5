"""Checks of the history: the last checkpoint completed, the newest completed one is young enough.

The check ``checkpoint_horizon``: no retained snapshot stops being restorable within days.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.checkpoint.statistics import COMPLETED
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.restore.horizon import NEAR_DAYS, Horizon
from dagster_ckpt.core.units import counted
from dagster_ckpt.dagster.names import COORDINATOR_KEY
from dagster_ckpt.dagster.reports.asset import (
    AGE_CHECK,
    HORIZON_CHECK,
    LATE_CHECK,
    SUCCEEDED_CHECK,
    checkpoints_asset_key,
)
from dagster_ckpt.dagster.reports.tables import condition_asset_key, condition_checks, condition_evaluations
from dagster_ckpt.dagster.resources.pipeline import coordinator_of, own_keys
from dagster_ckpt.dagster.supervision import AlarmFacts, FailureStreak, age_of, failure_streak
from dagster_ckpt.errors import NotFound
from dagster_ckpt.ports import CoordinatorStore


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


def build_condition_checks(pipeline: CheckpointedPipeline) -> Iterator[dg.AssetChecksDefinition]:
    """Yield a check for each condition on rows, and one for late rows; executing it reads the history."""
    for name, (uid, sql) in condition_checks(pipeline).items():
        meant = f"Rows of stage `{uid}` meet `{sql}`: those of the newest checkpoint, within `at_most`."
        yield _check_of_rows(pipeline, condition_asset_key(pipeline, uid), name, meant)
    meant = "No watermark dropped a row since the checkpoint before, unless its stage keeps late ones."
    yield _check_of_rows(pipeline, checkpoints_asset_key(pipeline.name), LATE_CHECK, meant)


def _check_of_rows(
    pipeline: CheckpointedPipeline, asset: dg.AssetKey, name: str, meant: str
) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=asset,
        name=name,
        description=meant,
        required_resource_keys=own_keys(pipeline.name, [COORDINATOR_KEY]),
    )
    def condition(context) -> dg.AssetCheckResult:  # type: ignore[no-untyped-def]
        from dagster_ckpt.runtime.record_store import RecordStore, parse_row

        rows = RecordStore(coordinator_of(context, pipeline.name).store()).rows(pipeline.name, limit=ROWS)
        newest = next(
            (one for row in rows if (one := parse_row(row)) is not None and one.status in COMPLETED), None
        )
        if newest is None:
            return dg.AssetCheckResult(passed=True, description="the pipeline has not run yet")
        metrics = {stage.uid: stage.metrics for stage in newest.stages}
        told = condition_evaluations(pipeline, metrics, newest.checkpoint_id)
        own = next(one for one in told if one.check_name == name)
        return dg.AssetCheckResult(passed=own.passed, severity=own.severity, metadata=own.metadata)

    return condition


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


ROWS = 25
"""Newest rows of the history a tick looks at, at least."""


def alarm_facts(store: CoordinatorStore, pipeline: PipelineId, *, now: float) -> AlarmFacts | None:
    """Return the history's facts; None for a pipeline that has not run. Its cost does not grow with the history."""
    from dagster_ckpt.runtime.record_store import RecordStore, parse_row

    records = RecordStore(store)
    record = records.record(pipeline)
    if record is None:
        return None
    rows = records.rows(pipeline, limit=ROWS)
    streak = failure_streak(numbers for row in rows if (numbers := parse_row(row)) is not None)
    return AlarmFacts(
        streak=_completed_by_record(streak, record),
        began_at=min((row.triggered_at for row in rows), default=None),
        now=now,
    )


def _completed_by_record(streak: FailureStreak, record: CoordinatorRecord) -> FailureStreak:
    """A streak longer than the rows looked at does not reach the completion before it: the record knows that one."""
    if streak.completed_id:
        return streak
    newest = max((*record.completed, *record.savepoints), key=lambda c: c.checkpoint_id, default=None)
    if newest is None:
        return replace(streak, completed_id=record.latest_completed or 0)
    return replace(streak, completed_id=newest.checkpoint_id, completed_at=newest.completed_at)


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


def build_horizon_check(pipeline: CheckpointedPipeline) -> dg.AssetChecksDefinition:
    """Return the check: what every retained checkpoint and savepoint goes back to is there, and stays for days."""

    @dg.asset_check(
        asset=checkpoints_asset_key(pipeline.name),
        name=HORIZON_CHECK,
        description=(
            f"Files, table versions and source positions that retained snapshots go back to are there, and no clock "
            f"removes them within {NEAR_DAYS:.0f} days."
        ),
        required_resource_keys=own_keys(pipeline.name, [COORDINATOR_KEY]),
    )
    def checkpoint_horizon(context) -> dg.AssetCheckResult:  # type: ignore[no-untyped-def]
        from dagster_ckpt.operations.restores.horizon import restorability

        resource = coordinator_of(context, pipeline.name)
        try:
            found = restorability(pipeline, resource, now=time.time())
        except NotFound:
            return dg.AssetCheckResult(passed=True, description="the pipeline has not run yet")
        return horizon_result(found)

    return checkpoint_horizon


def horizon_result(found: Sequence[Horizon]) -> dg.AssetCheckResult:
    """Return whether every snapshot can be restored for some days; one that is lost already is an error."""
    near = [horizon for horizon in found if horizon.is_near(NEAR_DAYS)]
    is_lost = any(not horizon.is_restorable for horizon in near)
    shown = [
        dg.TableRecord(
            {
                "snapshot": horizon.key,
                "days": "-" if horizon.days is None else f"{horizon.days:.1f}",
                "says": horizon.sentence(),
            }
        )
        for horizon in found
    ]
    return dg.AssetCheckResult(
        passed=not near,
        severity=dg.AssetCheckSeverity.ERROR if is_lost else dg.AssetCheckSeverity.WARN,
        description="; ".join(horizon.sentence() for horizon in near)
        or f"{counted(len(found), 'snapshot')} can be restored",
        metadata={"snapshots": dg.MetadataValue.table(shown)} if shown else {},
    )
