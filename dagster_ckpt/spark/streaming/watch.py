"""Looks at a running attempt now and then, writes what it sees to its working directory and tells whoever wants it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.spark.snapshot.batch_notes import note_late
from dagster_ckpt.spark.stage_report import recent_checkpoints
from dagster_ckpt.spark.streaming.progress import (
    PROGRESS_FILE,
    PendingProgress,
    RunningStageProgress,
    StreamProgress,
)

if TYPE_CHECKING:
    from dagster_ckpt.core.checkpoint.record import PendingRecord
    from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics
    from dagster_ckpt.spark.streaming.run import StreamingRun
    from dagster_ckpt.spark.streaming.running_stage import RunningStage

WRITE_EVERY = 2.0


class ProgressWatch:
    """Called often, looks seldom. ``tell`` is called every ``tell_every`` seconds; 0: never.

    It gets the run as it is and the latest ten checkpoints.
    """

    def __init__(
        self,
        *,
        tell: Callable[[StreamProgress, Sequence[CheckpointStatistics]], None] = lambda *_: None,
        tell_every: float = 30.0,
        look_on: Callable[[StreamProgress], None] = lambda _: None,
    ) -> None:
        """``look_on`` is called with every look."""
        self._tell = tell
        self._look_on = look_on
        self._tell_every = tell_every
        self._looked_at = time.monotonic()
        self._told_at = time.monotonic()
        self.latest: StreamProgress | None = None

    def tick(self, run: StreamingRun, *, restarts: int) -> None:
        """Look if it is time; a look that fails says nothing."""
        now = time.monotonic()
        if now - self._looked_at < WRITE_EVERY:
            return
        seconds, self._looked_at = now - self._looked_at, now
        self.latest = seen = look(run, seconds=seconds, restarts=restarts)
        with suppress(OSError):
            replace_whole(run.attempt.root / PROGRESS_FILE, seen.to_json().encode())
        self._look_on(seen)
        if self._tell_every and now - self._told_at >= self._tell_every:
            self._told_at = now
            self._tell(seen, recent_checkpoints(run.coordinator))


def look(run: StreamingRun, *, seconds: float, restarts: int = 0) -> StreamProgress:
    """Return the run as it is; rates are over the last ``seconds``."""
    record = run.coordinator.record
    now, moment = run.clock.now(), run.clock.monotonic()
    return StreamProgress(
        at=now,
        stages=tuple(_stage(stage, seconds, now) for stage in run.stages.values()),
        pending=tuple(_pending(pending, now) for pending in record.pending),
        publishing={n: moment - since for n, since in run.coordinator.notifying.items()},
        completed=record.counts.completed,
        failed=record.counts.failed,
        restarts=restarts,
    )


def _stage(stage: RunningStage, seconds: float, now: float) -> RunningStageProgress:
    late = stage.meter.take(stage.new_progress())
    with suppress(OSError):  # a newer attempt has removed the directory
        note_late(stage.stage_query.directory, late)
    rate, busy = stage.meter.rates(seconds)
    worker = stage.worker
    return RunningStageProgress(
        uid=stage.uid,
        status=_status(stage),
        batch_id=worker.batches.current.batch,
        rows_per_second=rate,
        rows=stage.meter.rows,
        backlog=sum(channel.backlog for channel in worker.inputs.values()),
        busy=busy,
        last_batch_ms=stage.meter.last_batch_ms,
        inputs=tuple(map(str, worker.inputs)),
        blocked={str(uid): now - since for uid, since in dict(worker.blocked_since).items()},
    )


def _status(stage: RunningStage) -> str:
    if stage.has_finished or stage.is_over:
        return "finished"
    if stage.is_ended:
        return "ended"
    return "held" if stage.gate.is_held else "running"


def _pending(pending: PendingRecord, now: float) -> PendingProgress:
    done = tuple(StageUid(s.uid) for s in pending.stages if s.snapshot is not None or s.finished)
    return PendingProgress(
        checkpoint_id=pending.checkpoint_id,
        age=now - pending.triggered_at,
        acknowledged=done,
        outstanding=tuple(s.uid for s in pending.stages if s.uid not in done),
    )
