"""The check ``checkpoint_verified``: every file is there with the bytes that were written.

Annotations are evaluated: Dagster reads the config class from them.
"""

from typing import TYPE_CHECKING

import dagster as dg

from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.units import counted
from dagster_ckpt.dagster.checks.chosen_snapshot import (
    CheckConfig,
    names_one,
    report_restorable,
    subsumed_meanwhile,
    target_of,
    unreadable,
    was_subsumed,
    with_standing,
)
from dagster_ckpt.dagster.names import COORDINATOR_KEY
from dagster_ckpt.dagster.reports.asset import VERIFIED_CHECK, checkpoints_asset_key
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.resources.pipeline import coordinator_of, own_keys
from dagster_ckpt.errors import Corrupt

if TYPE_CHECKING:
    from dagster_ckpt.operations.snapshots.verify import Verified

_SHOWN = 20
"""Problems listed in the result."""


def build_verified_check(pipeline: PipelineId) -> dg.AssetChecksDefinition:
    """Return the check that reads back every file of a checkpoint; it needs no Spark."""

    @dg.asset_check(
        asset=checkpoints_asset_key(pipeline),
        name=VERIFIED_CHECK,
        description="Every file of the newest checkpoint (or the one its config names) is read back and compared.",
        required_resource_keys=own_keys(pipeline, [COORDINATOR_KEY]),
    )
    def checkpoint_verified(
        context: dg.AssetCheckExecutionContext, config: CheckConfig
    ) -> dg.AssetCheckResult:
        return verify_chosen(context.op_execution_context, pipeline, config.checkpoint)

    return checkpoint_verified


def verify_chosen(context: dg.OpExecutionContext, pipeline: PipelineId, wanted: str) -> dg.AssetCheckResult:
    """Return the verdict on a snapshot whose files are read back, with those that were found broken before."""
    resource = coordinator_of(context, pipeline)
    # What is latest on a running stream may be subsumed while it is read: then the next one is, once.
    found = _verify(context, resource, pipeline, wanted) or _verify(context, resource, pipeline, wanted)
    result = found or subsumed_meanwhile(wanted)
    return with_standing(context, resource, pipeline, VERIFIED_CHECK, result)


def _verify(
    context: dg.OpExecutionContext,
    resource: CheckpointCoordinatorResource,
    pipeline: PipelineId,
    wanted: str,
) -> dg.AssetCheckResult | None:
    """Return the verdict; None where the snapshot was subsumed while it was read."""
    from dagster_ckpt.dagster.reports.metadata import Restorable
    from dagster_ckpt.operations.snapshots.verify import verify_snapshot

    try:
        found = target_of(resource, pipeline, wanted)
    except Corrupt as error:
        return unreadable(resource, pipeline, wanted, error)
    if isinstance(found, dg.AssetCheckResult):
        return found
    verified = verify_snapshot(found.stored)
    if not verified.is_intact:
        if was_subsumed(resource, pipeline, found):
            return subsumed_meanwhile(found.key) if names_one(wanted) else None
        problem = verified.problems[0]
        said = f"{problem.path} of stage {problem.stage} is {problem.problem}"
        report_restorable(context, found, Restorable.BROKEN, said)
    return verified_result(found.key, verified)


def verified_result(key: str, verified: "Verified") -> dg.AssetCheckResult:
    """Return the verdict, with one row per file a restore would stumble over."""
    metadata: dict[str, dg.MetadataValue] = {
        "checkpoint": dg.MetadataValue.text(key),
        "location": dg.MetadataValue.path(verified.uri),
        "files": dg.MetadataValue.int(verified.files),
        "bytes": dg.MetadataValue.int(verified.bytes),
        "problems": dg.MetadataValue.int(len(verified.problems)),
    }
    if verified.problems:
        metadata["broken_files"] = dg.MetadataValue.table(
            [
                dg.TableRecord(
                    {"stage": p.stage, "file": p.path, "problem": p.problem.value, "what": p.message}
                )
                for p in verified.problems[:_SHOWN]
            ]
        )
    return dg.AssetCheckResult(
        passed=verified.is_intact,
        severity=dg.AssetCheckSeverity.ERROR,
        description=f"{key}: {counted(verified.files, 'file')}, {len(verified.problems)} of them missing or damaged",
        metadata=metadata,
    )
