"""The checkpoints of a pipeline as one external asset, and what its events say.

Asset key ``[<pipeline>, "checkpoints"]`` with dynamic partitions: a key per completed checkpoint or savepoint that is
still retained. A failed checkpoint is an observation and a failed asset check, never a partition, so the asset is
green again after the next success.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import dagster as dg

from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.paths import snapshot_key
from dagster_ckpt.core.supervision.alarms import outstanding_stages
from dagster_ckpt.core.supervision.reporting import Untold
from dagster_ckpt.dagster.names import PIPELINE_TAG

if TYPE_CHECKING:
    from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics
    from dagster_ckpt.core.coordinator.effects import CheckpointFailed
    from dagster_ckpt.spark.source.positions import SourceLag

SUCCEEDED_CHECK = "checkpoint_succeeded"
VERIFIED_CHECK = "checkpoint_verified"
RESTORABLE_CHECK = "checkpoint_restorable"
AGE_CHECK = "checkpoint_age"
HORIZON_CHECK = "checkpoint_horizon"
LATE_CHECK = "late_rows"
UNPUBLISHED = "not_published"
"""Metadata of a completed checkpoint whose tables do not show its rows yet."""


def checkpoints_asset_key(pipeline: PipelineId) -> dg.AssetKey:
    """Return the key of a pipeline's checkpoints asset."""
    return dg.AssetKey([pipeline, "checkpoints"])


def checkpoints_partitions(pipeline: PipelineId) -> dg.DynamicPartitionsDefinition:
    """Return the partitions definition whose keys are the retained checkpoints and savepoints."""
    return dg.DynamicPartitionsDefinition(name=f"{pipeline}/checkpoints")


def partition_key(metadata: CheckpointMetadata) -> str:
    """Return the partition key of a checkpoint (``chk-000031``) or savepoint (``savepoint-000007``)."""
    return snapshot_key(metadata.kind, metadata.checkpoint_id)


def build_checkpoints_asset(
    pipeline: PipelineId,
    *,
    job_name: str,
    group_name: str = "checkpoints",
    owners: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
    freshness_policy: dg.FreshnessPolicy | None = None,
    page: str = "",
) -> dg.AssetSpec:
    """Return the external asset that stands for a pipeline's checkpoints."""
    from dagster_ckpt.dagster.reports.metadata import page_metadata

    return dg.AssetSpec(
        checkpoints_asset_key(pipeline),
        description=(
            f"Completed checkpoints and savepoints of pipeline `{pipeline}`: one partition each while it is retained. "
            f"Taken by runs of `{job_name}`; its events carry a link that restores from them."
        ),
        partitions_def=checkpoints_partitions(pipeline),
        group_name=group_name,
        kinds={"spark", "checkpoint"},
        owners=list(owners),
        tags={PIPELINE_TAG: pipeline, **(tags or {})},
        freshness_policy=freshness_policy,
        metadata=page_metadata(page),
    )


CheckMetadata = Mapping[str, str | int | float]


def completed_event(
    pipeline: PipelineId,
    metadata: CheckpointMetadata,
    *,
    uri: str,
    link: str | None,
    late: str = "",
    positions: Sequence[SourceLag] = (),
    since: Untold | None = None,
    history: Sequence[CheckpointStatistics] = (),
    page: str = "",
    readers: str = "",
) -> dg.AssetMaterialization:
    """Return the materialization of a completed checkpoint or savepoint.

    ``late``: which tables do not show its rows yet, and why (``not_published``). ``since``: what has completed since
    the last one that was told, this one included. ``page``: where the checkpoint page is served. ``readers``: whose
    tables readers find, of a fork and of a pipeline that a fork serves.
    """
    from dagster_ckpt.dagster.reports.metadata import completed_metadata

    completed = f"{metadata.kind.value} {metadata.checkpoint_id} completed"
    if since is not None and since.checkpoints > 1:
        completed += f", with {since.checkpoints - 1:,} before it since the last report"
    return dg.AssetMaterialization(
        checkpoints_asset_key(pipeline),
        partition=partition_key(metadata),
        description=f"{completed}; {late}" if late else completed,
        metadata={
            **({UNPUBLISHED: dg.MetadataValue.text(late)} if late else {}),
            **completed_metadata(
                metadata,
                location=uri,
                link=link,
                positions=positions,
                history=history,
                page=page,
                readers=readers,
            ),
            **({} if since is None else {"bytes_new": dg.MetadataValue.int(since.bytes_new)}),
        },
    )


def unchanged_event(
    event: dg.AssetMaterialization, why: str = "nothing has changed since the one before"
) -> dg.AssetObservation:
    """Return a completed checkpoint that is no news: it is observed, and so starts nothing downstream."""
    return dg.AssetObservation(
        event.asset_key,
        partition=event.partition,
        description=f"{event.description}; {why}",
        metadata=event.metadata,
    )


def failure_metadata(event: CheckpointFailed) -> dict[str, str | int | float]:
    """Return the metadata of a failed checkpoint: reason, message, stages that had not acknowledged, the streak."""
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
