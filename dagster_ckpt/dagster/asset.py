"""The checkpoints of a pipeline as one external asset, and what its events say.

Asset key ``[<pipeline>, "checkpoints"]`` with dynamic partitions: a key per completed checkpoint or savepoint that is
still retained. A failed checkpoint is an observation and a failed asset check, never a partition, so the asset is
green again after the next success.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import dagster as dg
import yaml

from dagster_ckpt.core.coordinator.events import CheckpointFailed
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.paths import snapshot_key
from dagster_ckpt.core.supervision.alarms import outstanding_stages
from dagster_ckpt.dagster.names import PIPELINE_TAG, RESTORE_TAG
from dagster_ckpt.spark.source.lag import SourceLag, total_lag

if TYPE_CHECKING:
    from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics
    from dagster_ckpt.core.model import StageSnapshot

SUCCEEDED_CHECK = "checkpoint_succeeded"
VERIFIED_CHECK = "checkpoint_verified"
RESTORABLE_CHECK = "checkpoint_restorable"
AGE_CHECK = "checkpoint_age"
HORIZON_CHECK = "checkpoint_horizon"
MOST_PARTITIONS = 200
"""Rows of the table of positions: it is stored with every checkpoint."""
UNPUBLISHED = "not_published"
"""Metadata of a completed checkpoint whose tables do not show its rows yet."""


class Restorable(StrEnum):
    """Restorability of a checkpoint: metadata ``restorable`` of its partition, the newest event counts."""

    NOT_YET = "not yet verified"
    VERIFIED = "verified"
    """Every file was read back, and Spark started every stage from it, in a scratch directory."""
    BROKEN = "broken"


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
) -> dg.AssetSpec:
    """Return the external asset that stands for a pipeline's checkpoints."""
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
    )


def restore_link(
    *,
    job_name: str,
    location: str,
    restore_op: str,
    restore_from: str,
    ui_base_url: str = "",
    further: Mapping[str, object] | None = None,
) -> str:
    """Return the address of a Launchpad pre-filled to start ``job_name`` from a checkpoint, with ``further`` config.

    The route is the UI's own and undocumented; a browser test holds it.
    """
    config = yaml.safe_dump(
        {"ops": {restore_op: {"config": {"restore_from": restore_from, **(further or {})}}}}, sort_keys=False
    )
    query = (
        f"config={quote(config, safe='')}"
        f"&tags[0][key]={quote(RESTORE_TAG, safe='')}&tags[0][value]={quote(restore_from, safe='')}"
    )
    return f"{ui_base_url.rstrip('/')}/locations/{quote(location)}/jobs/{quote(job_name)}/playground/setup?{query}"


def completed_metadata(
    metadata: CheckpointMetadata, *, location: str, link: str | None, positions: Sequence[SourceLag] = ()
) -> Mapping[str, dg.MetadataValue[Any]]:
    """Return what a completed checkpoint's materialization shows; numbers plot over time."""
    stages = metadata.stages
    key = partition_key(metadata)
    values: dict[str, dg.MetadataValue[Any]] = {
        "checkpoint": dg.MetadataValue.int(metadata.checkpoint_id),
        "kind": dg.MetadataValue.text(metadata.kind.value),
        **({"restore": dg.MetadataValue.md(f"[Restore from {key} →]({link})")} if link else {}),
        "duration_ms": dg.MetadataValue.float(
            round((metadata.completed_at - metadata.triggered_at) * 1000, 1)
        ),
        "alignment_ms": dg.MetadataValue.float(_worst(stages, "alignment_ms")),
        "sync_ms": dg.MetadataValue.float(_worst(stages, "sync_ms")),
        "async_ms": dg.MetadataValue.float(_worst(stages, "async_ms")),
        "bytes_full": dg.MetadataValue.int(sum(s.metrics.bytes_full for s in stages)),
        "bytes_new": dg.MetadataValue.int(sum(s.metrics.bytes_new for s in stages)),
        "triggered_at": dg.MetadataValue.timestamp(metadata.triggered_at),
        "completed_at": dg.MetadataValue.timestamp(metadata.completed_at),
        "attempt": dg.MetadataValue.int(metadata.epoch),
        "location": dg.MetadataValue.path(location),
        "restorable": dg.MetadataValue.text(Restorable.NOT_YET.value),
        "stages": stage_table(stages),
        **position_metadata(positions),
    }
    if metadata.run_id:
        values["run"] = dg.MetadataValue.dagster_run(metadata.run_id)
    for name in ("name", "note"):
        if getattr(metadata, name):
            values[name] = dg.MetadataValue.text(getattr(metadata, name))
    if metadata.labels:
        values["labels"] = dg.MetadataValue.json(dict(metadata.labels))
    return values


def _worst(stages: Sequence[StageSnapshot], field: str) -> float:
    return round(max((float(getattr(s.metrics, field)) for s in stages), default=0.0), 1)


def stage_table(stages: Sequence[StageSnapshot]) -> dg.TableMetadataValue:
    """Return one row per stage: batch, subtasks, sizes, times."""
    records = [
        dg.TableRecord(
            {
                "stage": s.uid,
                "batch": "-" if s.batch_id is None else str(s.batch_id),
                "subtasks": s.parallelism,
                "bytes_full": s.metrics.bytes_full,
                "bytes_new": s.metrics.bytes_new,
                "files_full": s.metrics.files_full,
                "files_new": s.metrics.files_new,
                "alignment_ms": round(s.metrics.alignment_ms, 1),
                "sync_ms": round(s.metrics.sync_ms, 1),
                "async_ms": round(s.metrics.async_ms, 1),
            }
        )
        for s in stages
    ]
    return dg.MetadataValue.table(records)


def position_metadata(positions: Sequence[SourceLag]) -> dict[str, dg.MetadataValue[Any]]:
    """Return the offsets of sources in their topics, by partition, and how far behind all of them are together."""
    rows = [
        dg.TableRecord(
            {
                "source": source.stage,
                "topic": one.topic,
                "partition": one.partition,
                "offset": one.offset,
                "latest": "-" if one.latest is None else str(one.latest),
                "lag": "-" if one.lag is None else str(one.lag),
            }
        )
        for source in positions
        for one in source.partitions
    ]
    lag = total_lag(positions)
    return {
        **({"positions": dg.MetadataValue.table(rows[:MOST_PARTITIONS])} if rows else {}),
        **({} if lag is None else {"lag": dg.MetadataValue.int(lag)}),
    }


def history_metadata(rows: Sequence[CheckpointStatistics]) -> Mapping[str, dg.MetadataValue[Any]]:
    """Return the latest checkpoints of a run as a table, failed ones included; nothing where there is none."""
    records = [
        dg.TableRecord(
            {
                "checkpoint": row.checkpoint_id,
                "kind": row.kind.value,
                "status": row.status.value,
                "triggered": datetime.fromtimestamp(row.triggered_at, UTC).isoformat(timespec="seconds"),
                "duration_ms": -1.0 if row.duration is None else round(row.duration * 1e3, 1),
                "bytes_full": row.bytes_full,
                "bytes_new": row.bytes_new,
                "failure": f"{row.failure_reason} {row.failure_message}".strip(),
            }
        )
        for row in rows
    ]
    return {"history": dg.MetadataValue.table(records)} if records else {}


CheckMetadata = Mapping[str, str | int | float]


def completed_event(
    pipeline: PipelineId,
    metadata: CheckpointMetadata,
    *,
    uri: str,
    link: str | None,
    late: str = "",
    positions: Sequence[SourceLag] = (),
) -> dg.AssetMaterialization:
    """Return the materialization of a completed checkpoint or savepoint.

    ``late``: which tables do not show its rows yet, and why (``not_published``).
    """
    completed = f"{metadata.kind.value} {metadata.checkpoint_id} completed"
    return dg.AssetMaterialization(
        checkpoints_asset_key(pipeline),
        partition=partition_key(metadata),
        description=f"{completed}; {late}" if late else completed,
        metadata={
            **completed_metadata(metadata, location=uri, link=link, positions=positions),
            **({UNPUBLISHED: dg.MetadataValue.text(late)} if late else {}),
        },
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
