"""Checkpoints as Dagster asset events, whoever reports them: the run itself, or a sensor for a run that died."""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg

from dagster_ckpt.assets import (
    SUCCEEDED_CHECK,
    checkpoints_asset_key,
    completed_metadata,
    partition_key,
)
from dagster_ckpt.core.events import CheckpointFailed
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.streaks import outstanding_stages

CheckMetadata = Mapping[str, str | int | float]


def completed_event(
    pipeline: PipelineId, metadata: CheckpointMetadata, *, uri: str, link: str | None
) -> dg.AssetMaterialization:
    """Return the materialization of a completed checkpoint or savepoint."""
    return dg.AssetMaterialization(
        checkpoints_asset_key(pipeline),
        partition=partition_key(metadata),
        description=f"{metadata.kind.value} {metadata.checkpoint_id} completed",
        metadata=dict(completed_metadata(metadata, location=uri, link=link)),
    )


def failure_metadata(event: CheckpointFailed) -> dict[str, str | int | float]:
    """Return what a failed checkpoint shows: reason, message, stages that had not acknowledged, the streak."""
    return {
        "checkpoint": int(event.checkpoint_id),
        "reason": event.reason.name,
        "message": event.message or event.reason.text,
        "stage": ", ".join(outstanding_stages(event.statistics)) or "-",
        "consecutive_failures": event.consecutive_failures,
        "tolerable": event.tolerable,
    }


def failure_sentence(event: CheckpointFailed) -> str:
    """Return a failed checkpoint in one sentence."""
    return (
        f"{event.kind.value} {event.checkpoint_id} failed: {event.message or event.reason.text} "
        f"({event.reason.name}; {event.consecutive_failures} of {event.tolerable} tolerated failures)"
    )


def failed_events(
    pipeline: PipelineId, event: CheckpointFailed
) -> tuple[dg.AssetObservation, dg.AssetCheckEvaluation]:
    """Return a failed checkpoint as an observation of the asset and a failed check, never as a partition."""
    metadata = failure_metadata(event)
    observation = dg.AssetObservation(
        checkpoints_asset_key(pipeline), description=failure_sentence(event), metadata=metadata
    )
    return observation, succeeded_evaluation(pipeline, passed=False, metadata=metadata)


def succeeded_evaluation(
    pipeline: PipelineId, *, passed: bool, metadata: CheckMetadata
) -> dg.AssetCheckEvaluation:
    """Return an evaluation of the check that the last checkpoint completed."""
    return dg.AssetCheckEvaluation(
        asset_key=checkpoints_asset_key(pipeline),
        check_name=SUCCEEDED_CHECK,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        metadata=dict(metadata),
    )
