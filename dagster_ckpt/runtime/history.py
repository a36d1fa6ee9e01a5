"""Codec of a history row: a checkpoint's statistics as they are stored."""

from __future__ import annotations

from dataclasses import replace

from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics, CheckpointStatus
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId
from dagster_ckpt.ports import HistoryRow


def parse_row(row: HistoryRow) -> CheckpointStatistics | None:
    """Return the numbers in a history row; None for one another version wrote (its own columns still stand)."""
    try:
        return CheckpointStatistics.model_validate_json(row.body)
    except ValueError:
        return None


def history_row(pipeline: PipelineId, epoch: int, statistics: CheckpointStatistics) -> HistoryRow:
    """Return the row a checkpoint's numbers are stored as."""
    return HistoryRow(
        pipeline=pipeline,
        checkpoint_id=CheckpointId(statistics.checkpoint_id),
        epoch=CoordinatorEpoch(epoch),
        kind=statistics.kind.noun,
        status=statistics.status.value,
        triggered_at=statistics.triggered_at,
        ended_at=statistics.ended_at,
        body=statistics.trimmed().model_dump_json(),
    )


def with_status(row: HistoryRow, status: CheckpointStatus) -> HistoryRow:
    """Return the row with another status, in its columns and in its numbers (where they can be read)."""
    known = parse_row(row)
    body = row.body if known is None else known.model_copy(update={"status": status}).model_dump_json()
    return replace(row, status=status.value, body=body)
