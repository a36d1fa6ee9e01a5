"""History rows: a checkpoint's statistics as they are stored, and which rows newer ones make dispensable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord, ForgottenHistory
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics, CheckpointStatus
from dagster_ckpt.core.coordinator.inputs import HistoryOutdated
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId
from dagster_ckpt.ports import HistoryRow

KEPT_ROWS = 10_000
"""Rows of a pipeline's history: some 35 MB of a store, 3 hours of a checkpoint a second, 10 weeks of ten minutes."""
KEPT_SECONDS = 90 * 24 * 3600.0
"""Older rows leave the history though they are fewer."""


def outdated(rows: Sequence[HistoryRow], record: CoordinatorRecord) -> HistoryOutdated | None:
    """Return which of ``rows``, newest first, leave the history, and the new sum of what left it; None: none does.

    The row of a snapshot stays as long as the record knows the snapshot: restorable, pending or being deleted.
    """
    gone = [row for row in reversed(rows) if row.checkpoint_id not in record.known_ids]
    if not gone:
        return None
    ids = tuple(row.checkpoint_id for row in gone)
    return HistoryOutdated(checkpoint_ids=ids, forgotten=_with(record.forgotten, gone))


def _with(forgotten: ForgottenHistory, rows: Sequence[HistoryRow]) -> ForgottenHistory:
    failed = sum(row.status == CheckpointStatus.FAILED for row in rows)
    numbers = [parsed for row in rows if (parsed := parse_row(row)) is not None]
    return ForgottenHistory(
        rows=forgotten.rows + len(rows),
        spans=_joined(*forgotten.spans, *((row.checkpoint_id, row.checkpoint_id + 1) for row in rows)),
        until=max(forgotten.until, *(row.triggered_at for row in rows)),
        completed=forgotten.completed + len(rows) - failed,
        failed=forgotten.failed + failed,
        bytes_new=forgotten.bytes_new + sum(statistics.bytes_new for statistics in numbers),
    )


def _joined(*spans: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """Return ranges in order, those that touch as one."""
    joined: list[tuple[int, int]] = []
    for first, end in sorted(spans):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return tuple(joined)


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
