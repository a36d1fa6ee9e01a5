"""The checkpoints of a pipeline as one external asset, and the metadata of its events, most important first.

Asset key ``[<pipeline>, "checkpoints"]`` with dynamic partitions: a key per completed checkpoint or savepoint that is
still retained. A failed checkpoint is an observation and a failed asset check, never a partition, so the asset is
green again after the next success.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.paths import snapshot_key
from dagster_ckpt.core.units import ago, duration, milliseconds, moment, size
from dagster_ckpt.dagster.names import PIPELINE_TAG
from dagster_ckpt.dagster.reporting import Untold
from dagster_ckpt.dagster.supervision import outstanding_stages

if TYPE_CHECKING:
    from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics
    from dagster_ckpt.core.coordinator.effects import CheckpointFailed
    from dagster_ckpt.core.model import StageSnapshot
    from dagster_ckpt.spark.source.positions import SourceLag
    from dagster_ckpt.spark.streaming.progress import StreamProgress

MOST_PARTITIONS = 200
"""Rows of the table of positions: it is stored with every checkpoint."""

Shown = dict[str, dg.MetadataValue[Any]]


class Restorable(StrEnum):
    """Restorability of a checkpoint: metadata ``restorable`` of its partition, the newest event counts."""

    NOT_YET = "not yet verified"
    VERIFIED = "verified"
    """Every file was read back, and Spark started every stage from it, in a scratch directory."""
    BROKEN = "broken"


def completed_metadata(
    metadata: CheckpointMetadata,
    *,
    location: str,
    link: str | None,
    positions: Sequence[SourceLag] = (),
    history: Sequence[CheckpointStatistics] = (),
    page: str = "",
    readers: str = "",
) -> Mapping[str, dg.MetadataValue[Any]]:
    """Return the metadata of a completed checkpoint's materialization, in this order."""
    stages = metadata.stages
    key = snapshot_key(metadata.kind, metadata.checkpoint_id)
    full = sum(s.metrics.bytes_full for s in stages)
    new = sum(s.metrics.bytes_new for s in stages)
    took = max(0.0, metadata.completed_at - metadata.triggered_at)
    return {
        **({"restore": dg.MetadataValue.md(f"[Restore from {key} →]({link})")} if link else {}),
        "snapshot": dg.MetadataValue.text(named(key, metadata.name, metadata.completed_at)),
        "took": dg.MetadataValue.text(f"{duration(took)} ({_parts(stages)})"),
        "size": dg.MetadataValue.text(f"{size(full)}, {size(new)} of it new"),
        **_said_about(metadata),
        **({"readers": dg.MetadataValue.text(readers)} if readers else {}),
        **(
            {"set aside": dg.MetadataValue.text("; ".join(aside))}
            if (aside := metadata.rows_set_aside)
            else {}
        ),
        **_refused(stages),
        "stages": stage_table(stages),
        **position_metadata(positions),
        **history_metadata(history, page=page),
        "restorable": dg.MetadataValue.text(Restorable.NOT_YET.value),
        "kind": dg.MetadataValue.text(metadata.kind.value),
        "attempt": dg.MetadataValue.text(str(metadata.epoch)),
        **({"run": dg.MetadataValue.dagster_run(metadata.run_id)} if metadata.run_id else {}),
        "location": dg.MetadataValue.path(location),
        "duration_s": dg.MetadataValue.float(round(took, 3)),
        "alignment_s": dg.MetadataValue.float(round(_worst(stages, "alignment_ms") / 1e3, 3)),
        "bytes_full": dg.MetadataValue.int(full),
        "bytes_new": dg.MetadataValue.int(new),
    }


def named(key: str, name: str, at: float) -> str:
    """Return a snapshot as people speak of it: ``savepoint-000007 · before Tuesday · 2026-11-17 14:03:21 UTC``."""
    return " · ".join([key, *([name] if name else []), moment(at)])


def _said_about(metadata: CheckpointMetadata) -> Shown:
    return {
        **{n: dg.MetadataValue.text(v) for n in ("name", "note") if (v := getattr(metadata, n))},
        **({"labels": dg.MetadataValue.json(dict(metadata.labels))} if metadata.labels else {}),
    }


def _refused(stages: Sequence[StageSnapshot]) -> Shown:
    told = [f"`{s.uid}`: {as_text(said)}" for s in stages if (said := s.metrics.refused_rows)]
    return {"rows": dg.MetadataValue.md("; ".join(told))} if told else {}


def _parts(stages: Sequence[StageSnapshot]) -> str:
    parts = (("alignment", "alignment_ms"), ("sync", "sync_ms"), ("async", "async_ms"))
    return ", ".join(f"{name} {milliseconds(_worst(stages, field))}" for name, field in parts)


def _worst(stages: Sequence[StageSnapshot], field: str) -> float:
    return max((float(getattr(s.metrics, field)) for s in stages), default=0.0)


# --- tables -----------------------------------------------------------------------------------------------------


def stage_table(stages: Sequence[StageSnapshot]) -> dg.MarkdownMetadataValue:
    """Return one row per stage: batch, subtasks, sizes, times."""
    return _table(
        ("stage", "batch", "subtasks", "size", "new", "alignment", "sync", "async"),
        (
            (
                f"`{s.uid}` (FINISHED)" if s.finished else f"`{s.uid}`",
                "-" if s.batch_id is None else str(s.batch_id),
                str(s.parallelism),
                size(s.metrics.bytes_full),
                size(s.metrics.bytes_new),
                milliseconds(s.metrics.alignment_ms),
                milliseconds(s.metrics.sync_ms),
                milliseconds(s.metrics.async_ms),
            )
            for s in stages
        ),
    )


def as_text(sentence: str) -> str:
    """Return a sentence for Markdown as it is: what its author wrote makes no link or picture."""
    return re.sub(r"([\\\[\]<>`])", r"\\\1", sentence)


def _table(heads: Sequence[str], rows: Any) -> dg.MarkdownMetadataValue:
    lines = ["|".join(heads), "|".join("---" for _ in heads), *("|".join(map(_cell, row)) for row in rows)]
    return dg.MetadataValue.md("\n".join(f"|{line}|" for line in lines))


_QUANTITY = re.compile(r"([0-9][0-9.,]*) (B|kB|MB|GB|TB|PB|ms|s|min|h|d)\b")


def _cell(text: str) -> str:
    """Return text for one cell; a number stays with its unit on one line."""
    return _QUANTITY.sub("\\1\u00a0\\2", " ".join(text.split())).replace("|", "\\|")


def position_metadata(positions: Sequence[SourceLag]) -> Shown:
    """Return the offsets of sources in their topics, by partition, and how far behind all of them are together."""
    from dagster_ckpt.spark.source.positions import total_lag

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


def history_metadata(
    rows: Sequence[CheckpointStatistics], *, page: str = "", now: float | None = None
) -> Mapping[str, dg.MetadataValue[Any]]:
    """Return the latest checkpoints as one table, failed ones included; nothing where there is none."""
    if not rows:
        return {}
    moment = time.time() if now is None else now
    table = _table(
        ("snapshot", "triggered", "status", "took", "size", "new", "what went wrong"),
        (
            (
                f"`{snapshot_key(row.kind, row.checkpoint_id)}`"
                + (f" {row.trigger.name}" if row.trigger.name else ""),
                f"{datetime.fromtimestamp(row.triggered_at, UTC):%H:%M:%S}, {ago(moment - row.triggered_at)}",
                row.status.value.replace("_", " "),
                duration(row.duration),
                size(row.bytes_full),
                size(row.bytes_new),
                f"{row.failure_reason} {row.failure_message}".strip(),
            )
            for row in rows
        ),
    )
    return {"history": table, **page_metadata(page)}


def page_metadata(page: str) -> Shown:
    """Return the link to the checkpoint page, where it is served."""
    return {"page": dg.MetadataValue.url(page)} if page else {}


def stream_metadata(seen: StreamProgress, pending: str) -> dict[str, Any]:
    """Return how a stream is going."""
    return {
        "pending": pending,
        "stages": dg.MetadataValue.md(seen.table()),
        "checkpoints": f"{seen.completed:,} completed, {seen.failed:,} failed; {seen.restarts:,} restarts",
        "rows_per_second": sum(stage.rows_per_second for stage in seen.stages),
        "backlog": sum(stage.backlog for stage in seen.stages),
    }


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
