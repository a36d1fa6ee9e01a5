"""The checks of one snapshot: ``checkpoint_verified``, every file is there with the bytes that were written, and
``checkpoint_restorable``, a restore is tried out with Spark.

Annotations are evaluated: Dagster reads the config class from them.
"""

import time
from typing import TYPE_CHECKING

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
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
from dagster_ckpt.dagster.names import COORDINATOR_KEY, SPARK_KEY
from dagster_ckpt.dagster.reports.asset import RESTORABLE_CHECK, VERIFIED_CHECK, checkpoints_asset_key
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.resources.pipeline import coordinator_of, own_keys, resources_of
from dagster_ckpt.errors import CheckpointError, Corrupt, InvalidRequest, Unavailable

if TYPE_CHECKING:
    from dagster_ckpt.dagster.checks.dry_run import StageTrial
    from dagster_ckpt.operations.snapshots.contents import Verified


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
    from dagster_ckpt.dagster.reports.asset import Restorable
    from dagster_ckpt.operations.snapshots.contents import verify_snapshot

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


def build_restorable_check(pipeline: CheckpointedPipeline) -> dg.AssetChecksDefinition:
    """Return the check that restores into a scratch directory; the pipeline may run meanwhile, untouched."""
    of_stages = (key for stage in pipeline.stages.values() for key in stage.required_resource_keys)

    @dg.asset_check(
        asset=checkpoints_asset_key(pipeline.name),
        name=RESTORABLE_CHECK,
        description=(
            "Spark reads all state of the newest checkpoint (or the one its config names) and starts every stage from "
            "it, in a scratch directory and into a null sink."
        ),
        required_resource_keys=own_keys(pipeline.name, {COORDINATOR_KEY, SPARK_KEY, *of_stages}),
    )
    def checkpoint_restorable(
        context: dg.AssetCheckExecutionContext, config: CheckConfig
    ) -> dg.AssetCheckResult:
        return try_chosen(context.op_execution_context, pipeline, config.checkpoint)

    return checkpoint_restorable


def try_chosen(
    context: dg.OpExecutionContext, pipeline: CheckpointedPipeline, wanted: str
) -> dg.AssetCheckResult:
    """Return how the restore of a snapshot goes in a scratch directory, with those that were found broken before.

    Raises InvalidRequest for a program that starts its queries itself.
    """
    if pipeline.program:
        raise InvalidRequest(
            f"only its program can start the queries of {pipeline.name!r}: preview the restore, and read the snapshot "
            "back with the care job (action: verify)"
        )
    resource = coordinator_of(context, pipeline.name)
    result = _tried(context, resource, pipeline, wanted)
    return with_standing(context, resource, pipeline.name, RESTORABLE_CHECK, result)


def _tried(
    context: dg.OpExecutionContext,
    resource: CheckpointCoordinatorResource,
    pipeline: CheckpointedPipeline,
    wanted: str,
) -> dg.AssetCheckResult:
    """Return how the restore of a snapshot went."""
    from dagster_ckpt.dagster.checks.dry_run import try_restore
    from dagster_ckpt.dagster.reports.asset import Restorable

    began = time.monotonic()
    try:
        found = target_of(resource, pipeline.name, wanted)
    except Unavailable:
        raise
    except CheckpointError as error:
        return unreadable(resource, pipeline.name, wanted, error)
    if isinstance(found, dg.AssetCheckResult):
        return found
    try:
        trials = try_restore(resources_of(context, pipeline.name), pipeline, resource, found)
    except Unavailable:
        raise
    except CheckpointError as error:
        if was_subsumed(resource, pipeline.name, found):
            return subsumed_meanwhile(found.key)
        report_restorable(context, found, Restorable.BROKEN, str(error))
        return dg.AssetCheckResult(passed=False, description=str(error), metadata={"checkpoint": found.key})
    report_restorable(context, found, Restorable.VERIFIED, f"{counted(len(trials), 'stage')} started from it")
    return restorable_result(found.key, trials, seconds=time.monotonic() - began)


def restorable_result(key: str, trials: "tuple[StageTrial, ...]", *, seconds: float) -> dg.AssetCheckResult:
    """Return the result of a restore that went well."""
    table = dg.MetadataValue.table(
        [
            dg.TableRecord(
                {
                    "stage": trial.uid,
                    "state_rows": trial.state_rows,
                    "batches": trial.batches,
                    "seconds": round(trial.seconds, 2),
                }
            )
            for trial in trials
        ]
    )
    return dg.AssetCheckResult(
        passed=True,
        severity=dg.AssetCheckSeverity.ERROR,
        description=f"{key} can be restored",
        metadata={
            "checkpoint": key,
            "stages": table,
            "state_rows": sum(trial.state_rows for trial in trials),
            "seconds": round(seconds, 2),
        },
    )
