"""Event loop of the coordinator: decide, store, run effects, delete in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import cast

from dagster_ckpt.core.checkpoint.record import CleanupRecord, CompletedRecord, CoordinatorRecord
from dagster_ckpt.core.checkpoint.statistics import (
    CheckpointStatistics,
    CheckpointStatus,
    StatisticsSnapshot,
    snapshot_of,
)
from dagster_ckpt.core.checkpoint.tables import Moved, ShownTables
from dagster_ckpt.core.coordinator import inputs as i
from dagster_ckpt.core.coordinator.deletions import (
    due_for_cleaning,
    shared_files_free_below,
    with_stored,
)
from dagster_ckpt.core.coordinator.effects import Effect
from dagster_ckpt.core.coordinator.metadata import pending_statistics
from dagster_ckpt.core.coordinator.state import AckDurability, CoordinatorState
from dagster_ckpt.core.coordinator.triggering import is_due
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.messages import AcknowledgeResult
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata, StageSnapshot
from dagster_ckpt.core.paths import SnapshotLocation
from dagster_ckpt.core.restore.choice import Restore, RestoreDecision
from dagster_ckpt.errors import CheckpointError, NotFound
from dagster_ckpt.runtime.attempt_setup import AttemptSetup
from dagster_ckpt.runtime.driver.hooks import HearsAcknowledgements, close_hooks
from dagster_ckpt.runtime.effects import EffectRunner, make_permit
from dagster_ckpt.runtime.engine import AttemptEngine
from dagster_ckpt.runtime.files import Cleaner, SharedFiles
from dagster_ckpt.runtime.record_store import parse_row
from dagster_ckpt.runtime.stored import CheckpointLocation, read_metadata

log = logging.getLogger("dagster_ckpt.coordinator")

CHECK_EVERY_ACK_UP_TO = 4
"""For so many acknowledgements the store is asked each time whether the attempt is fenced …"""
THEN_ONE_ACK_IN = 256
"""… then once in so many, and when a stage is complete: so one costs the same however many there are."""
METADATA_KEPT = 16

_RANK = {status: rank for rank, status in enumerate(CheckpointStatus)}
"""A status further down is a later one."""


class EventLoop:
    """Runs events to their end: decide, store, perform, decide what that led to."""

    def __init__(self, setup: AttemptSetup, state: CoordinatorState, version: int) -> None:
        self.setup = setup
        self.engine = AttemptEngine(
            state=state, version=version, store=setup.records, clock=setup.clock, random=setup.random
        )
        self._shared = SharedFiles(
            pipeline=setup.graph.pipeline,
            highest_not_claimed=state.record.highest_not_claimed,
            storage_at=setup.storage_at,
            read_manifest=setup.read_manifest,
        )
        self._cleaner = Cleaner(
            graph=setup.graph,
            shared=self._shared,
            storage_at=setup.storage_at,
            storage=setup.storage,
        )
        self._runner = EffectRunner(
            setup,
            permit=lambda number: make_permit(self.engine, number),
            check_owner=self.engine.refresh,
            discard=self._discard,
        )
        self._metadata: dict[int, CheckpointMetadata] = {}
        self._deferred: dict[int, tuple[CompletedRecord, ...]] = {}
        self._cleaning = threading.Lock()
        self._heard = 0
        self._asked_for: CheckpointId | None = None
        """The checkpoint at whose first stage the store was asked; it is asked again before its metadata is written."""
        self._parsed: dict[int, tuple[str, CheckpointStatistics | None]] = {}
        self._noted: ShownTables | None = None
        """What all tables show, as noted and not decided yet."""
        self._told = state.record.shown
        self._is_untold = False
        self._held: list[Effect] = []
        """What follows from a pointer that is not stored yet."""

    # --- events and effects ---------------------------------------------------------------------------------

    def submit(self, event: i.Input) -> object:
        """Run one event to its end and return the answer. Raises Fenced, and what the engine raises."""
        before = self.engine.state
        decision = self.engine.commit(event)
        if not isinstance(event, i.MetadataWritten):
            self._is_untold |= isinstance(event, i.Started) and event.shown is not None
            self._follow_up(decision.effects)
            return decision.answer
        self._note_completed(event, before, decision.state)
        self.perform(decision.effects)
        self.submit(i.StagesNotified(CheckpointId(event.metadata.checkpoint_id)))
        return decision.answer

    def _follow_up(self, effects: Iterable[Effect]) -> None:
        self.perform(effects)
        self.settle_shown()
        self._next_in_queue()
        self.clean()

    def _next_in_queue(self) -> None:
        """Give queued requests their turn, one decision each."""
        while is_due(self.engine.state, self.setup.now()):
            self.perform(self.engine.commit(i.QueueDue()).effects)

    def perform(self, effects: Iterable[Effect]) -> None:
        """Perform effects in order, each with everything it leads to."""
        for effect in effects:
            for event in self._runner.perform(effect):
                self.submit(event)

    # --- what tables show -----------------------------------------------------------------------------------

    def note_shown(self, shown: ShownTables) -> None:
        """Note what every table shows; it is decided on once what led to it is performed."""
        self._noted = shown

    def settle_shown(self) -> None:
        """Move the pointer of readers, and tell of it as soon as they find it in the store."""
        shown, self._noted = self._noted, None
        if shown is not None:
            self._is_untold = True
            self._held += self.engine.commit(i.TablesShown(shown)).effects
        stored = self.engine.stored.shown
        if self._is_untold and stored is not None and stored == self.engine.state.record.shown:
            self._is_untold = False
            moved, self._told = Moved(self._told, stored), stored
            held, self._held = self._held, []
            self.perform(held)
            try:
                self.setup.tell_shown(moved)
            except (
                Exception
            ) as error:  # the listener's failure is its own: readers find the pointer all the same
                log.warning("that tables show checkpoint %s was not told: %s", stored.checkpoint_id, error)

    def acknowledge(self, event: i.StageAcked | i.SubtaskAcked) -> AcknowledgeResult:
        """Take an acknowledgement; its shared files are noted first, always, even when it comes too late.

        Except a pending savepoint's: its files are not the coordinator's to keep or to delete.
        """
        ack = event.ack
        if ack.handles:
            progress = self.engine.state.progress.get(ack.checkpoint_id)
            if progress is None or not progress.is_savepoint:
                self._shared.register(ack.checkpoint_id, ack.handles)
        self._check_owner(event)
        if isinstance(event, i.StageAcked):
            result = cast(AcknowledgeResult, self.submit(event))
            self._tell_driver(event, result)
            return result
        decision = self.engine.commit(event)
        if decision.effects:
            self._heard = 0
            self.refresh()
            self._follow_up(decision.effects)
        result = cast(AcknowledgeResult, decision.answer)
        self._tell_driver(event, result)
        return result

    def _tell_driver(self, event: i.StageAcked | i.SubtaskAcked, result: AcknowledgeResult) -> None:
        """Let the stage's driver-side coordinator know who has acknowledged, where it cares."""
        uid = event.ack.attempt.stage
        driver = self.setup.coordinators.get(uid)
        if driver is None or result is not AcknowledgeResult.SUCCESS:
            return
        if not isinstance(driver, HearsAcknowledgements):
            return
        whole_stage = isinstance(event, i.StageAcked)
        subtasks = (
            range(self.setup.graph.by_uid[uid].parallelism) if whole_stage else (event.ack.attempt.subtask,)
        )
        for subtask in subtasks:
            driver.subtask_acknowledged(event.ack.checkpoint_id, subtask)

    def _check_owner(self, event: i.StageAcked | i.SubtaskAcked) -> None:
        """A checkpoint this process does not know may be another process's; a fenced attempt must notice."""
        progress = self.engine.state.progress.get(event.ack.checkpoint_id)
        is_kept = self.engine.state.setup.acks is AckDurability.AT_COMPLETION
        is_first = event.ack.checkpoint_id != self._asked_for
        if progress is None or (is_kept and isinstance(event, i.StageAcked) and is_first):
            self._asked_for = event.ack.checkpoint_id
            self.refresh()
            return
        if isinstance(event, i.SubtaskAcked):
            self._heard += 1
            if self._heard <= CHECK_EVERY_ACK_UP_TO or self._heard % THEN_ONE_ACK_IN == 0:
                self.refresh()

    def refresh(self) -> None:
        """Take up what other processes stored; a store that cannot be reached is asked again later."""
        try:
            self.engine.refresh()
        except OSError as error:
            log.warning("the coordinator store could not be asked: %s", error)

    def draw(self) -> float:
        """A number in [0, 1)."""
        return self.setup.random.random()

    def _note_completed(
        self, event: i.MetadataWritten, before: CoordinatorState, after: CoordinatorState
    ) -> None:
        number = CheckpointId(event.metadata.checkpoint_id)
        if after.record.completed_of(number) is None:
            return
        self._metadata = {**self._metadata, number: event.metadata}
        for old in sorted(self._metadata)[:-METADATA_KEPT]:
            del self._metadata[old]
        if _heard_whole(before, number):
            self._shared.completed(number)

    # --- questions ------------------------------------------------------------------------------------------

    def metadata_of(self, entry: CompletedRecord) -> CheckpointMetadata:
        """Return a completed checkpoint's metadata. Raises NotFound, Corrupt, Unavailable."""
        known = self._metadata.get(entry.checkpoint_id)
        if known is None:
            storage = self.setup.storage_at(entry.location.base_uri)
            known = read_metadata(storage, entry.location.folder, recorded=entry.metadata_checksum)
            self._metadata = {**self._metadata, entry.checkpoint_id: known}
        return known

    def location_of(self, state: CoordinatorState, checkpoint_id: CheckpointId) -> CheckpointLocation:
        """Return where a checkpoint's files go. Raises NotFound."""
        pending = state.record.pending_of(checkpoint_id)
        if pending is not None and pending.location is not None:
            previous = self._previous(state.record, pending.builds_on)
            return self._location(checkpoint_id, pending.location, pending.properties.kind, previous)
        entry = state.record.completed_of(checkpoint_id)
        if entry is None:
            raise NotFound(f"checkpoint {checkpoint_id} is over, or was never triggered: it has no location")
        return self._location(checkpoint_id, entry.location, entry.taken_as or entry.kind, {})

    def _location(
        self,
        checkpoint_id: CheckpointId,
        location: SnapshotLocation,
        kind: CheckpointKind,
        previous: Mapping[StageUid, StageSnapshot],
    ) -> CheckpointLocation:
        return CheckpointLocation(
            checkpoint_id=checkpoint_id,
            kind=kind,
            storage=self.setup.storage_at(location.base_uri),
            folder=location.folder,
            previous=previous,
        )

    def _previous(self, record: CoordinatorRecord, builds_on: int | None) -> dict[StageUid, StageSnapshot]:
        entry = None if builds_on is None else record.completed_of(builds_on)
        if entry is None:
            return {}
        try:
            metadata = self.metadata_of(entry)
        except CheckpointError as error:
            log.warning("checkpoint %s cannot be built on: %s", entry.checkpoint_id, error)
            return {}
        return {StageUid(s.uid): s for s in metadata.stages}

    def statistics(self, window: int, history_size: int) -> StatisticsSnapshot:
        """Return the numbers of the stored history, overlaid with what this process knows better."""
        state = self.engine.state
        rows: dict[int, CheckpointStatistics] = {}
        for row in self.setup.records.rows(self.engine.pipeline, limit=window):
            body, parsed = self._parsed.get(row.checkpoint_id, ("", None))
            if body != row.body:
                parsed = parse_row(row)
                self._parsed[row.checkpoint_id] = (row.body, parsed)
            if parsed is not None:
                rows[row.checkpoint_id] = parsed
        for number, known in state.statistics.items():
            found = rows.get(number)
            if found is None or _RANK[known.status] >= _RANK[found.status]:
                rows[number] = known
        for pending in state.record.pending:
            progress = state.progress.get(CheckpointId(pending.checkpoint_id))
            if progress is not None:
                rows[pending.checkpoint_id] = pending_statistics(state, pending, progress)
        return snapshot_of(
            rows.values(),
            counts=state.record.counts,
            history_size=history_size,
            restored_id=state.record.restored_id,
            restored_at=state.record.restored_at,
        )

    # --- deletions ------------------------------------------------------------------------------------------

    def clean(self) -> None:
        """Begin the deletions that are due and whose reason is stored."""
        if not self.engine.state.record.cleanup:
            return
        with self._cleaning:
            stored = {c.checkpoint_id for c in self.engine.stored.cleanup}
            retained = self.engine.state.record.completed
            due = [
                c
                for c in due_for_cleaning(self.engine.state)
                if c.checkpoint_id in stored and self._deferred.get(c.checkpoint_id) != retained
            ]
            if not due:
                return
            self.engine.commit(i.CleaningBegan(frozenset(CheckpointId(c.checkpoint_id) for c in due)))
        for cleanup in due:
            self.setup.background.submit(partial(self._clean_one, cleanup))

    def _clean_one(self, cleanup: CleanupRecord) -> None:
        state = with_stored(self.engine.state, self.engine.stored)
        gone = self._cleaner.clean(cleanup, state.record, shared_files_free_below(state, cleanup))
        if not gone:
            self._deferred[cleanup.checkpoint_id] = state.record.completed
        try:
            self.submit(i.CleaningEnded(CheckpointId(cleanup.checkpoint_id), gone))
        except CheckpointError as error:
            log.warning("after deleting checkpoint %s: %s", cleanup.checkpoint_id, error)

    def _discard(self, base_uri: str, keys: Sequence[str]) -> None:
        self.setup.background.submit(lambda: self._cleaner.discard(base_uri, keys))

    def register_restored(self, restored: RestoreDecision) -> None:
        """Note the not claimed snapshot a restore brought in; files are read when they are first needed."""
        if isinstance(restored, Restore):
            self._metadata[restored.metadata.checkpoint_id] = restored.metadata

    def shut_down(self) -> None:
        """Finish the deletions, close the hooks."""
        self.setup.background.drain()
        self._flush()
        close_hooks(self.setup.hooks.values())

    def _flush(self) -> None:
        try:
            self.engine.flush()
        except CheckpointError as error:
            log.warning("what was deleted could not be noted: %s", error)


def _heard_whole(state: CoordinatorState, checkpoint_id: CheckpointId) -> bool:
    """True where this process heard every acknowledgement; else the file lists must be read when they matter."""
    pending, progress = state.record.pending_of(checkpoint_id), state.progress.get(checkpoint_id)
    if pending is None or progress is None:
        return False
    return all(part.snapshot is None or part.uid in progress.handles for part in pending.stages)
