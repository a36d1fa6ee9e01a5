"""The check ``checkpoint_horizon``: no retained snapshot stops being restorable within days."""

from __future__ import annotations

import time
from collections.abc import Sequence

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.restore.horizon import Horizon
from dagster_ckpt.core.units import counted
from dagster_ckpt.dagster.names import COORDINATOR_KEY
from dagster_ckpt.dagster.reports.asset import HORIZON_CHECK, checkpoints_asset_key
from dagster_ckpt.dagster.resources.pipeline import coordinator_of, own_keys
from dagster_ckpt.errors import NotFound
from dagster_ckpt.operations.restores.horizon import NEAR_DAYS, restorability


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
