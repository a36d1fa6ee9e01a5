"""Which checkpoint a check looks at, and how its answer reaches that checkpoint's partition."""

from __future__ import annotations

import dagster as dg

from dagster_ckpt.assets import Restorable, checkpoints_asset_key
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.record import CoordinatorRecord, parse_record
from dagster_ckpt.errors import NotFound
from dagster_ckpt.operations.catalog import FoundSnapshot, find_snapshot
from dagster_ckpt.resources import CheckpointCoordinatorResource


class CheckConfig(dg.Config):
    """What to check."""

    checkpoint: str = "latest"
    """``latest``, a key such as ``chk-31`` or ``savepoint-7``, or the path or URI of one."""


def record_of(resource: CheckpointCoordinatorResource, pipeline: PipelineId) -> CoordinatorRecord | None:
    """Return the pipeline's record; None: it has not run yet."""
    stored = resource.store().load(pipeline)
    return None if stored is None else parse_record(stored.body)


def target_of(
    resource: CheckpointCoordinatorResource, pipeline: PipelineId, wanted: str
) -> FoundSnapshot | dg.AssetCheckResult:
    """Return the checkpoint ``wanted`` names, or the result of a check that has nothing to look at yet.

    Raises Corrupt, Unavailable, InvalidRequest; NotFound for anything but ``latest``.
    """
    try:
        return find_snapshot(resource.deployment(), wanted, pipeline)
    except NotFound as error:
        if wanted.strip().lower() != "latest":
            raise
        return dg.AssetCheckResult(passed=True, description=str(error))


def report_restorable(
    context: dg.AssetCheckExecutionContext, found: FoundSnapshot, state: Restorable, said: str
) -> None:
    """Show on the checkpoint's own partition whether it can be restored."""
    context.log.info(f"{found.key}: {state.value}: {said}")
    if found.known is None:
        return
    context.op_execution_context.log_event(
        dg.AssetObservation(
            checkpoints_asset_key(found.pipeline),
            partition=found.key,
            description=f"{found.key} is {state.value}: {said}",
            metadata={"restorable": state.value},
        )
    )
