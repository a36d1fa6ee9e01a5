"""A pipeline's checkpoint statistics, from the store alone: counts, summary and history, whoever ran and ended."""

from __future__ import annotations

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.checkpoint.statistics import (
    HISTORY_SIZE,
    SUMMARY_WINDOW,
    StatisticsSnapshot,
    snapshot_of,
)
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.operations.deployment import Deployment
from dagster_ckpt.operations.records import load_record
from dagster_ckpt.runtime.record_store import RecordStore

__all__ = ["StatisticsSnapshot", "checkpoint_statistics", "statistics_of"]


def checkpoint_statistics(
    deployment: Deployment,
    pipeline: PipelineId,
    *,
    window: int = SUMMARY_WINDOW,
    history_size: int = HISTORY_SIZE,
) -> StatisticsSnapshot:
    """Return the figures of Flink's checkpoint page: counts, a summary of the last ``window``, the newest rows.

    Rows that a newer version wrote and this one cannot read are left out. Raises NotFound, Corrupt, Unavailable.
    """
    record = load_record(deployment.store, pipeline)
    return statistics_of(deployment, record, window=window, history_size=history_size)


def statistics_of(
    deployment: Deployment, record: CoordinatorRecord, *, window: int, history_size: int
) -> StatisticsSnapshot:
    """Return the same for a record that was read already. Raises Unavailable."""
    rows = RecordStore(deployment.store).statistics(PipelineId(record.pipeline), limit=window)
    return snapshot_of(
        rows.values(),
        counts=record.counts,
        history_size=history_size,
        restored_id=record.restored_id,
        restored_at=record.restored_at,
    )
