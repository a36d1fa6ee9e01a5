"""Log lines of the coordinator, in Flink's words: triggered and completed as info, acknowledgements as debug.

Logger ``dagster_ckpt.coordinator``. Source: flink-runtime CheckpointCoordinator's own lines.
"""

from __future__ import annotations

import logging
from typing import assert_never

from dagster_ckpt.core.coordinator.effects import (
    CheckpointCompleted,
    CheckpointDiscarded,
    CheckpointFailed,
    CheckpointRejected,
    CheckpointSubsumed,
    CheckpointTriggered,
    CoordinatorEvent,
    JobFailed,
    StageAcknowledged,
    StopEnded,
)
from dagster_ckpt.core.ids import PipelineId

log = logging.getLogger("dagster_ckpt.coordinator")


def log_event(pipeline: PipelineId, event: CoordinatorEvent) -> None:
    """Log what listeners hear."""
    match event:
        case CheckpointTriggered(checkpoint_id=number, kind=kind, triggered_at=at):
            log.info(
                "Triggering checkpoint %d (type=%s) @ %d for pipeline %s.",
                number,
                kind.name,
                at * 1e3,
                pipeline,
            )
        case CheckpointRejected(reason=reason, message=message):
            log.info("Checkpoint request of pipeline %s rejected (%s): %s", pipeline, reason.name, message)
        case StageAcknowledged(checkpoint_id=number, uid=uid, acknowledged=acknowledged, expected=expected):
            line = "Received acknowledge message for checkpoint %d from stage %s of pipeline %s (%d of %d)."
            log.debug(line, number, uid, pipeline, acknowledged, expected)
        case CheckpointCompleted():
            _log_completed(pipeline, event)
        case CheckpointFailed(checkpoint_id=number, reason=reason, message=message):
            log.warning(
                "Checkpoint %d of pipeline %s failed (%s): %s", number, pipeline, reason.name, message
            )
        case CheckpointSubsumed(checkpoint_id=number):
            log.debug("Checkpoint %d of pipeline %s is subsumed.", number, pipeline)
        case CheckpointDiscarded(checkpoint_id=number):
            log.debug("Checkpoint %d of pipeline %s is discarded: its files are deleted.", number, pipeline)
        case JobFailed(cause=cause):
            log.error("Failing the run of pipeline %s: %s", pipeline, cause)
        case StopEnded(checkpoint_id=number):
            log.info("Stop-with-savepoint of pipeline %s ended (checkpoint %s).", pipeline, number)
        case _:
            assert_never(event)


def _log_completed(pipeline: PipelineId, event: CheckpointCompleted) -> None:
    numbers = event.statistics
    ended = numbers.ended_at or numbers.triggered_at
    log.info(
        "Completed checkpoint %d for pipeline %s (%d bytes, checkpointDuration=%.0f ms, finalizationTime=%.0f ms).",
        event.checkpoint_id,
        pipeline,
        numbers.bytes_full,
        (ended - numbers.triggered_at) * 1e3,
        (ended - (numbers.latest_ack_at or ended)) * 1e3,
    )
