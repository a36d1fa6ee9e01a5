"""The asynchronous part of a stage's snapshot, in a thread of its own: wait for the cut's commit, store, acknowledge.

The query runs on meanwhile. A storage that hangs keeps its threads and nothing else: they are daemons, their number
per stage is bounded, and the checkpoint fails by its timeout.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_ckpt.core.failures import FailureDecision
from dagster_ckpt.core.ids import BatchId, CheckpointId, LogPosition, StageUid
from dagster_ckpt.core.reasons import CheckpointFailureReason
from dagster_ckpt.errors import CheckpointError, Declined, Fenced
from dagster_ckpt.spark.channel_log import ChannelLog
from dagster_ckpt.spark.stage_snapshot import Cut, SnapshotOutcome, StageSnapshotter
from dagster_ckpt.spark.streaming.in_flight import Span, plan_in_flight, spans_in_flight
from dagster_ckpt.spark.streaming.positions import CommittedBatches

if TYPE_CHECKING:
    from dagster_ckpt.spark.tables import SinkCut

MAX_RUNNING = 4
"""Snapshots of one stage that may be underway; with more, storage hangs and a new one is declined at once."""
_LOOK_EVERY = 0.005
_RETRY_PAUSE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCut:
    """What the barrier loop knows of a cut when the barrier is in the stage's own log."""

    checkpoint_id: CheckpointId
    batch_id: BatchId | None
    """The batch before the barrier; it may not be committed yet."""
    output_position: LogPosition
    barriers: Mapping[StageUid, LogPosition]
    """Where this checkpoint's barrier lies in each input, as far as it has arrived."""
    recording: frozenset[StageUid] = frozenset()
    """Inputs whose data up to their barrier belongs to the checkpoint."""
    start_delay_ms: float = 0.0
    alignment_ms: float = 0.0
    holds: bool = True
    """Readers stood on the barriers (exactly-once); else they may have passed them."""


@dataclass
class SnapshotJob:
    """One snapshot underway."""

    cut: StageCut
    snapshotter: StageSnapshotter
    batches: CommittedBatches
    inputs: Mapping[StageUid, ChannelLog]
    sink_cut: Callable[[BatchId | None], SinkCut]
    retries: int
    done: Callable[[SnapshotJob, SnapshotOutcome | None], None]
    """Told at the end, in the job's thread; None: it was cancelled before it wrote anything."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    _all_barriers: threading.Event = field(default_factory=threading.Event)
    _arrived: dict[StageUid, LogPosition] = field(default_factory=dict)
    _alignment_ms: float | None = None

    def start(self) -> None:
        """Run in a daemon thread."""
        name = f"snapshot-{self.snapshotter.uid}-{self.cut.checkpoint_id}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def barriers_arrived(self, barriers: Mapping[StageUid, LogPosition], alignment_ms: float) -> None:
        """Complete the in-flight data: every recorded input's barrier is known now."""
        self._arrived = dict(barriers)
        self._alignment_ms = alignment_ms
        self._all_barriers.set()

    def _run(self) -> None:
        outcome: SnapshotOutcome | None = None
        try:
            outcome = self._take()
        except Fenced:
            pass  # the attempt is over; its supervisor finds out by itself
        except CheckpointError as error:
            outcome = SnapshotOutcome(decision=None, text=str(error))
        finally:
            self.done(self, outcome)

    def _take(self) -> SnapshotOutcome | None:
        if not self._wait():
            return None
        try:
            cut = self._cut()
        except Fenced:
            raise
        except Exception as error:  # whatever keeps the cut from being described fails this checkpoint only
            return self._declined(error)
        left = self.retries
        while True:
            outcome = self.snapshotter.take(cut, retries_left=left)
            if outcome.decision is not FailureDecision.RETRY_OP:
                return outcome
            left -= 1
            if self.cancelled.wait(_RETRY_PAUSE * 2 ** (self.retries - left)):
                return outcome

    def _declined(self, error: Exception) -> SnapshotOutcome:
        text = str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
        decision = self.snapshotter.coordinator.decline(
            self.cut.checkpoint_id,
            self.snapshotter.attempt,
            CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
            text,
            transient=False,
            retries_left=0,
        )
        return SnapshotOutcome(decision=decision, text=text)

    def _wait(self) -> bool:
        """Wait for the cut's commit and the last barrier; False when the checkpoint is over before that."""
        while not self._is_ready():
            if self.cancelled.wait(_LOOK_EVERY):
                return False
            if not self.snapshotter.coordinator.is_pending(self.cut.checkpoint_id):
                return False
        return not self.cancelled.is_set()

    def _is_ready(self) -> bool:
        batch = self.cut.batch_id
        if batch is not None and not self.batches.is_committed(batch):
            return False
        return not self.cut.recording or self._all_barriers.is_set()

    def _cut(self) -> Cut:
        cut = self.cut
        barriers = {**cut.barriers, **self._arrived}
        spans = self._spans(barriers)
        files = plan_in_flight(spans)
        sink = self.sink_cut(cut.batch_id)
        return Cut(
            checkpoint_id=cut.checkpoint_id,
            batch_id=cut.batch_id,
            input_positions=barriers,
            output_position=cut.output_position,
            alignment_ms=cut.alignment_ms if self._alignment_ms is None else self._alignment_ms,
            start_delay_ms=cut.start_delay_ms,
            table=sink.snapshot,
            extra_files=(*sink.files, *files),
            unaligned=bool(cut.recording),
            persisted_in_flight=sum(file.size for file in files),
        )

    def _spans(self, barriers: Mapping[StageUid, LogPosition]) -> list[Span]:
        """Return what is in flight, having checked that only recorded inputs have rows before their barriers."""
        if not self.cut.holds:
            return []
        spans = spans_in_flight(self.batches.positions_at(self.cut.batch_id), barriers, self.inputs)
        for span in spans:
            if span.upstream not in self.cut.recording:
                raise Declined(
                    f"batch {self.cut.batch_id} has not read {span.upstream} from {span.start} up to its barrier at "
                    f"{span.stop}: not a cut"
                )
        return spans
