"""Cuts of an attached program: batches of all its queries that belong together, read from files, and their snapshots.

Readers are cut before the queries they read. A query that nobody reads is cut at its newest committed batch. One that
is read is cut at its newest begun batch: whatever a reader has seen of it is of a batch that was begun before the
reader's own. Its snapshot waits for that batch's commit; the query waits for nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dagster_ckpt.core.ids import BatchId, CheckpointId, StageUid
from dagster_ckpt.core.messages import NotifyAborted, NotifyComplete, TriggerStages
from dagster_ckpt.errors import CheckpointError, Declined, Fenced, in_words
from dagster_ckpt.ext.attach.program import AttachedProgram, AttachedStage, ProgramDirectory
from dagster_ckpt.ext.attach.sinks import may_show, sink_cut
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.spark.snapshot.capture import latest_committed_batch, latest_planned_batch
from dagster_ckpt.spark.snapshot.state_files import Vanished
from dagster_ckpt.spark.snapshot.take import Cut, StageSnapshotter
from dagster_ckpt.spark.streaming.background import ReusedThreads

log = logging.getLogger("dagster_ckpt.attach")

LOOK_EVERY = 0.005
RETRIES = 2


def chosen_cuts(
    program: AttachedProgram, directory: ProgramDirectory, is_running: Callable[[StageUid], bool]
) -> dict[StageUid, BatchId | None]:
    """Return the batch behind which each query is cut, as its files say now. Raises Declined for a ring of readers."""
    cuts: dict[StageUid, BatchId | None] = {}
    for stage in program.readers_first():
        query, uid = directory.stage(stage.uid).query, StageUid(stage.uid)
        cuts[uid] = latest_committed_batch(query)
        if program.may_be_read(stage):
            begun = latest_planned_batch(query)
            # A stopped query shows nothing more of a batch it was stopped in.
            if begun != cuts[uid] and (is_running(uid) or may_show(stage, begun)):
                cuts[uid] = begun
    return cuts


@dataclass(kw_only=True)
class ProgramCuts:
    """Gateway to the queries of an attached program: they hear of nothing, their files are read."""

    program: AttachedProgram
    directory: ProgramDirectory
    is_running: Callable[[StageUid], bool] = lambda _uid: False
    count_late: Callable[[StageUid], None] = lambda _uid: None
    """Counter of rows that watermarks have dropped, as far as Spark has told."""
    coordinator: CheckpointCoordinator | None = None
    """Set once the attempt is open."""
    snapshotters: Mapping[StageUid, StageSnapshotter] = field(default_factory=dict)
    _threads: ReusedThreads = field(default_factory=lambda: ReusedThreads("snapshot"))
    _closed: threading.Event = field(default_factory=threading.Event)

    def opened(self, coordinator: CheckpointCoordinator) -> None:
        """Begin to take snapshots for this attempt."""
        self.coordinator = coordinator
        self.snapshotters = {
            StageUid(stage.uid): StageSnapshotter(
                uid=StageUid(stage.uid), directory=self.directory.stage(stage.uid), coordinator=coordinator
            )
            for stage in self.program.stages
        }

    def close(self) -> None:
        """Take no more; snapshots in progress end by themselves."""
        self._closed.set()
        self._threads.close()

    def trigger(self, message: TriggerStages) -> None:
        """Choose the cut and begin every stage's snapshot. Raises Declined before the attempt is open."""
        if self.coordinator is None:
            raise Declined("the program has started no query yet")
        cuts = chosen_cuts(self.program, self.directory, self.is_running)
        for stage in self.program.stages:
            job = _Job(self, self.coordinator, stage, message.checkpoint_id, cuts[StageUid(stage.uid)])
            self._threads.submit(job.run)

    def notify_complete(self, message: NotifyComplete) -> None:
        """Do nothing: Spark's sinks show their rows already."""

    def notify_aborted(self, message: NotifyAborted) -> None:
        """Do nothing: a snapshot looks itself whether it is wanted."""

    @property
    def is_closed(self) -> bool:
        """True where no snapshot is wanted any more."""
        return self._closed.is_set()


@dataclass(frozen=True, slots=True)
class _Job:
    """Snapshot of one stage for one checkpoint."""

    cuts: ProgramCuts
    coordinator: CheckpointCoordinator
    stage: AttachedStage
    checkpoint_id: CheckpointId
    batch: BatchId | None

    def run(self) -> None:
        try:
            self._run()
        except Fenced:
            pass  # the attempt is over; its poller finds out by itself
        except Exception as error:  # whatever keeps a cut from being taken fails this checkpoint only
            self._decline(error)

    def _run(self) -> None:
        if not self._is_committed():
            return
        self.cuts.count_late(StageUid(self.stage.uid))
        note = self.cuts.directory.stage(self.stage.uid).root / "sink" / f"{self.checkpoint_id}.json"
        try:
            self._snapshotter.take_retrying(lambda: self._cut(note), retries=RETRIES, wait=time.sleep)
        finally:
            note.unlink(missing_ok=True)

    def _is_committed(self) -> bool:
        """Wait for the cut's commit; False where the checkpoint is over before that. Raises Declined."""
        commits = self._query / "commits"
        while self.batch is not None and not (commits / str(self.batch)).exists():
            if self.cuts.is_closed or not self.coordinator.is_pending(self.checkpoint_id):
                return False
            if not self.cuts.is_running(StageUid(self.stage.uid)):
                raise Declined(
                    f"query {self.stage.uid} was stopped within batch {self.batch}, which others may have read from: "
                    "checkpoints go on when it runs again"
                )
            threading.Event().wait(LOOK_EVERY)
        return True

    @property
    def _snapshotter(self) -> StageSnapshotter:
        return self.cuts.snapshotters[StageUid(self.stage.uid)]

    @property
    def _query(self) -> Path:
        return self.cuts.directory.stage(self.stage.uid).query

    def _cut(self, note: Path) -> Cut:
        try:
            sink = sink_cut(self.stage, self.batch, query=self._query, note=note)
        except Vanished as error:
            raise Declined(
                f"stage {self.stage.uid}: the log of its sink changed while it was read: {error}"
            ) from error
        return Cut(
            checkpoint_id=self.checkpoint_id,
            batch_id=self.batch,
            input_positions={},
            output_position=None,
            own_sink=sink.line,
            extra_files=sink.files,
        )

    def _decline(self, error: Exception) -> None:
        text = in_words(error)
        try:
            self._snapshotter.decline(self.checkpoint_id, text)
        except CheckpointError as other:
            log.warning(
                "stage %s took no part in checkpoint %d: %s (%s)",
                self.stage.uid,
                self.checkpoint_id,
                text,
                other,
            )
