"""Progress of a streaming run, per stage and per pending checkpoint; now and then it is written down and told."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.units import counted, duration, milliseconds
from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.spark.snapshot.batch_notes import note_late
from dagster_ckpt.spark.stage_report import recent_checkpoints

if TYPE_CHECKING:
    from dagster_ckpt.core.checkpoint.record import PendingRecord
    from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics
    from dagster_ckpt.spark.streaming.run import StreamingRun
    from dagster_ckpt.spark.streaming.running_stage import RunningStage

PROGRESS_FILE = "progress.json"
LONG_PENDING = 60.0
"""Seconds after which a pending checkpoint is worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStageProgress:
    """One stage at one moment; times in seconds."""

    uid: StageUid
    status: str
    """running | held | ended (all its input has, and is processed) | finished (and a checkpoint has that)."""
    batch_id: int | None = None
    """Last committed micro-batch."""
    rows_per_second: float = 0.0
    """Input rows, over the batches since the last look."""
    rows: int = 0
    """Input rows since the run started."""
    backlog: int = 0
    """Entries with rows in its inputs' logs that it has not read."""
    busy: float = 0.0
    """Share of the time since the last look in which it worked on batches, 0 to 1."""
    last_batch_ms: float = 0.0
    blocked: Mapping[str, float] = field(default_factory=dict)
    """Inputs that stand on a barrier, and for how long."""
    inputs: tuple[str, ...] = ()
    """Stages it reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingProgress:
    """Pending checkpoint."""

    checkpoint_id: int
    age: float
    """Seconds since its trigger."""
    acknowledged: tuple[str, ...] = ()
    outstanding: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamProgress:
    """The run at one moment."""

    at: float
    """Seconds since the Unix epoch."""
    stages: tuple[RunningStageProgress, ...] = ()
    pending: tuple[PendingProgress, ...] = ()
    publishing: Mapping[int, float] = field(default_factory=dict)
    """Completed checkpoints whose tables are being published, and for how long."""
    completed: int = 0
    failed: int = 0
    restarts: int = 0

    def to_json(self) -> str:
        """Return the progress as JSON for programs."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def line(self) -> str:
        """Return the progress as one line of a log."""
        rate, rows = sum(s.rows_per_second for s in self.stages), sum(s.rows for s in self.stages)
        backlog = sum(s.backlog for s in self.stages)
        slowest = max(self.stages, key=lambda s: s.last_batch_ms, default=None)
        failed = f", {self.failed:,} failed" if self.failed else ""
        said = [
            f"{counted(len(self.stages), 'stage')}, {rate:,.0f} rows/s, {counted(rows, 'row')} in all",
            f"{counted(backlog, 'entry', 'entries')} waiting" if backlog else "",
            f"slowest batch {milliseconds(slowest.last_batch_ms)} ({slowest.uid})"
            if slowest and rows
            else "",
            f"{counted(self.completed, 'checkpoint')} completed{failed}",
            *self.lines(),
        ]
        return "; ".join(filter(None, said))

    def hanging(self, *, after: float) -> list[str]:
        """Return a sentence per checkpoint that has waited so many seconds: which stage for what, or its tables."""
        told = [
            f"the tables of checkpoint {number} have been published for {duration(age)}: later checkpoints wait for "
            "these commits"
            for number, age in self.publishing.items()
            if age >= after
        ]
        for pending in self.pending:
            late = [stage for stage in self.stages if stage.uid in pending.outstanding]
            why = [waits for stage in late if (waits := _waits(stage, pending.outstanding))]
            if pending.age >= after and why:
                told.append(
                    f"checkpoint {pending.checkpoint_id} has waited {duration(pending.age)}: {'; '.join(why)}"
                )
        return told

    def is_quiet_since(self, before: StreamProgress) -> bool:
        """Return whether nobody misses anything who has seen ``before``: no rows, failures, restarts or long waits."""
        ages = [*(p.age for p in self.pending), *self.publishing.values()]
        return _standing(self) == _standing(before) and all(age < LONG_PENDING for age in ages)

    def table(self) -> str:
        """Return the progress as a Markdown table for people."""
        head = "| stage | batch | rows/s | backlog | busy | last batch | blocked |\n|---|---|---|---|---|---|---|"
        rows = (
            f"| {s.uid} | {'-' if s.batch_id is None else s.batch_id} | {s.rows_per_second:,.0f} | {s.backlog} "
            f"| {s.busy:.0%} | {milliseconds(s.last_batch_ms)} | {_blocked(s.blocked)} |"
            for s in self.stages
        )
        return "\n".join([head, *rows])

    def lines(self) -> list[str]:
        """Return one sentence per pending checkpoint."""
        return [
            f"checkpoint {p.checkpoint_id}: {duration(p.age)}, acknowledged by "
            f"{', '.join(p.acknowledged) or 'nobody'}, outstanding {', '.join(p.outstanding) or 'nothing'}"
            for p in self.pending
        ]


def _waits(stage: RunningStageProgress, outstanding: Sequence[str]) -> str:
    """Return a sentence on an outstanding stage: its missing input, or its batch; empty: an earlier one is awaited."""
    missing = [uid for uid in stage.inputs if uid not in stage.blocked]
    if stage.blocked and missing:
        held = ", ".join(f"{uid} since {duration(seconds)}" for uid, seconds in stage.blocked.items())
        return f"{stage.uid} waits for the barrier of {', '.join(missing)} and holds {held}"
    if any(uid in outstanding for uid in stage.inputs):
        return ""
    batch = "its first batch" if stage.batch_id is None else f"the batch after {stage.batch_id}"
    return f"{stage.uid} has not acknowledged: it works on {batch} or stores its part"


def _standing(seen: StreamProgress) -> tuple[object, ...]:
    stages = tuple((s.uid, s.status, s.rows, s.backlog) for s in seen.stages)
    return stages, seen.failed, seen.restarts


def _blocked(blocked: Mapping[str, float]) -> str:
    return ", ".join(f"{uid} for {duration(seconds)}" for uid, seconds in blocked.items()) or "-"


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
