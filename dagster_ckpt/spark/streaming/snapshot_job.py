"""The asynchronous part of a stage's snapshot, in a thread of its own: wait for the cut's commit, store, acknowledge.

The query runs on meanwhile. A storage that hangs keeps its threads and nothing else: they are daemons, their number
per stage is bounded, and the checkpoint fails by its timeout.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import BatchId, CheckpointId, LogPosition, StageUid
from dagster_ckpt.core.subtask.effects import DeclineCheckpoint
from dagster_ckpt.errors import CheckpointError, Declined, Fenced, in_words
from dagster_ckpt.spark.channel.in_flight import Span, plan_in_flight, spans_in_flight
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.channel.positions import CommittedBatches
from dagster_ckpt.spark.snapshot.take import Cut, SnapshotOutcome, StageSnapshotter

if TYPE_CHECKING:
    from dagster_ckpt.core.alignment import Decline
    from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
    from dagster_ckpt.spark.sink.phases import SinkPart

_LOOK_EVERY = 0.005


def room(max_concurrent: int) -> int:
    """Return how many snapshots of one stage may be in progress; with more, something hangs.

    Those of pending checkpoints, of completed ones whose tables are published, one more of each for a savepoint.
    """
    return 2 * max_concurrent + 2


@dataclass
class SnapshotJob:
    """Snapshot in progress."""

    cut: Cut
    """As the barrier loop knows it when the barrier is in the stage's own log: its batch may not be committed yet."""
    holds: bool
    """Readers stood on the barriers (exactly-once); else they may have passed them."""
    snapshotter: StageSnapshotter
    batches: CommittedBatches
    inputs: Mapping[StageUid, ChannelLog]
    sink_cut: Callable[[BatchId | None], SinkPart]
    retries: int
    done: Callable[[SnapshotJob, SnapshotOutcome | None], None]
    """Told at the end, in the job's thread; None: it was canceled, and has nothing to say."""
    run_apart: Callable[[Callable[[], None]], None]
    """Runs what it is given in a thread of its own."""
    canceled: threading.Event = field(default_factory=threading.Event)
    _all_barriers: threading.Event = field(default_factory=threading.Event)
    _arrived: dict[StageUid, LogPosition] = field(default_factory=dict)
    _alignment_ms: float | None = None

    def start(self) -> None:
        """Run in a daemon thread."""
        self.run_apart(self._run)

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
            return self.snapshotter.decline(self.cut.checkpoint_id, in_words(error))
        return self.snapshotter.take_retrying(lambda: cut, retries=self.retries, wait=self.canceled.wait)

    def _wait(self) -> bool:
        """Wait for the cut's commit and the last barrier; False when the checkpoint is over before that."""
        while not self._is_ready():
            if self.canceled.wait(_LOOK_EVERY):
                return False
            if not self.snapshotter.coordinator.is_pending(self.cut.checkpoint_id):
                return False
        return not self.canceled.is_set()

    def _is_ready(self) -> bool:
        batch = self.cut.batch_id
        if batch is not None and not self.batches.is_committed(batch):
            return False
        return not self.cut.recording or self._all_barriers.is_set()

    def _cut(self) -> Cut:
        """Return the cut with what is known now that it is committed and every barrier has arrived."""
        barriers = {**self.cut.input_positions, **self._arrived}
        files = plan_in_flight(self._spans(barriers))
        sink = self.sink_cut(self.cut.batch_id)
        return replace(
            self.cut,
            input_positions=barriers,
            alignment_ms=self.cut.alignment_ms if self._alignment_ms is None else self._alignment_ms,
            table=sink.snapshot,
            flush=sink.flush,
            extra_files=(*sink.files, *files),
            persisted_in_flight=sum(file.size for file in files),
        )

    def _spans(self, barriers: Mapping[StageUid, LogPosition]) -> list[Span]:
        """Return the spans in flight, having checked that only recorded inputs have rows before their barriers."""
        if not self.holds:
            return []
        spans = spans_in_flight(self.batches.positions_at(self.cut.batch_id), barriers, self.inputs)
        for span in spans:
            if span.upstream not in self.cut.recording:
                raise Declined(
                    f"batch {self.cut.batch_id} has not read {span.upstream} from {span.start} up to its barrier at "
                    f"{span.stop}: not a cut"
                )
        return spans


@dataclass(kw_only=True)
class SnapshotJobs:
    """The snapshots of one stage that are in progress; used by the barrier loop's thread, but for ``needed_from``."""

    uid: StageUid
    _running: dict[CheckpointId, SnapshotJob] = field(default_factory=dict)
    _pinned: dict[CheckpointId, Mapping[StageUid, LogPosition]] = field(default_factory=dict)
    """Where the inputs' readers stood: a snapshot may have to store what lies behind that."""

    def __contains__(self, checkpoint_id: CheckpointId) -> bool:
        return checkpoint_id in self._running

    def check_room(self, most: int, *, published: Set[CheckpointId]) -> None:
        """Raise CheckpointError where so many snapshots have not ended that something hangs, and say what.

        ``published``: completed checkpoints whose tables are being published, which the last snapshot's thread does.
        """
        if len(self._running) < most:
            return
        behind = sorted(published & self._running.keys())
        if behind:
            raise CheckpointError(
                f"the tables of {len(behind)} earlier checkpoints, {behind[0]} the first, are still being published: "
                "their commits are behind. Raise the interval of checkpoints"
            )
        raise CheckpointError(
            f"{len(self._running)} earlier snapshots of {self.uid} have not ended: checkpoint storage hangs"
        )

    def add(self, job: SnapshotJob, positions: Mapping[StageUid, LogPosition]) -> None:
        """Note a job that is about to start, and where the readers stand."""
        self._pinned[job.cut.checkpoint_id] = positions
        self._running[job.cut.checkpoint_id] = job

    def ended(self, checkpoint_id: CheckpointId) -> None:
        """Forget a job whose thread has ended."""
        self._running.pop(checkpoint_id, None)
        self._pinned.pop(checkpoint_id, None)

    def barriers_arrived(
        self, checkpoint_id: CheckpointId, barriers: Mapping[StageUid, LogPosition], alignment_ms: float
    ) -> None:
        """Complete the in-flight data of a job, if there is one."""
        job = self._running.get(checkpoint_id)
        if job is not None:
            job.barriers_arrived(barriers, alignment_ms)

    def cancel(self, checkpoint_id: CheckpointId) -> None:
        """Tell a job to stop where it is."""
        job = self._running.get(checkpoint_id)
        if job is not None:
            job.canceled.set()

    def cancel_all(self) -> None:
        """Tell every job to stop where it is."""
        for job in self._running.values():
            job.canceled.set()

    def needed_from(self, positions: Mapping[StageUid, LogPosition]) -> dict[StageUid, LogPosition]:
        """Return ``positions``, moved back to the first entry a job may still have to store."""
        needed = dict(positions)
        for pinned in list(self._pinned.values()):
            for uid, position in pinned.items():
                needed[uid] = min(needed.get(uid, position), position)
        return needed


def decline_later(snapshotter: StageSnapshotter, effect: DeclineCheckpoint | Decline) -> None:
    """Decline a checkpoint, which asks the coordinator store: the barrier loop does not wait for it."""
    message = effect.message if isinstance(effect, DeclineCheckpoint) else effect.reason.text

    def decline() -> None:
        with suppress(CheckpointError):
            snapshotter.decline(effect.checkpoint_id, message, reason=effect.reason)

    threading.Thread(target=decline, name="decline", daemon=True).start()


def confirm_later(coordinator: CheckpointCoordinator, number: CheckpointId, uid: StageUid) -> None:
    """Tell the coordinator, which asks its store, that a stage is done with a checkpoint that was given up."""

    def confirm() -> None:
        with suppress(CheckpointError):
            coordinator.confirm_aborted(number, uid)

    threading.Thread(target=confirm, name="confirm-aborted", daemon=True).start()
