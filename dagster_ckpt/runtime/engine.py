"""Engine: the state of one attempt. Each input is decided, stored, and only then followed by effects.

A decision that changes the durable record is stored before anything follows from it. Losing a race means: reload,
decide again. A store that fails does not stop the pipeline: what only says that a checkpoint is over is kept in
memory and stored with the next change; what must not be lost (an acknowledgement, the end of the attempt) raises.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from random import Random

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics
from dagster_ckpt.core.coordinator import inputs as i
from dagster_ckpt.core.coordinator.completion import rides
from dagster_ckpt.core.coordinator.state import AckDurability, CoordinatorState, Decision, Now, reconciled
from dagster_ckpt.core.coordinator.transitions import decide
from dagster_ckpt.core.ids import CheckpointId, PipelineId
from dagster_ckpt.core.messages import CheckpointFailureReason
from dagster_ckpt.errors import Corrupt, Fenced, OutcomeUnknown, Unavailable
from dagster_ckpt.ports import Clock, Committed
from dagster_ckpt.runtime import record_store as history
from dagster_ckpt.runtime.record_store import LoadedRecord, Overtaken, RecordStore

log = logging.getLogger("dagster_ckpt.coordinator")

MUST_BE_STORED = (
    i.StageAcked,
    i.Started,
    i.TablesChange,
    i.Closing,
    i.TimeoutRearmed,
    i.SavepointDisposed,
    i.HistoryOutdated,
)
"""Inputs whose caller must hear when the store could not take them."""
MAX_UNKNOWN_OUTCOMES = 3
"""So often an unanswered write is tried again before the caller is told."""
PAGES_AT_ONCE = 4
"""Between two renewals of a lease no more of a long history is forgotten: the next one goes on."""
LOOK_AT_AGE = 3600.0
"""Seconds between two looks for rows that are too old: finding the first takes a dozen questions."""
REPLAYED = 1000
"""So many events not yet stored are kept for being decided again on another process's record."""


class AttemptEngine:
    """The state of one attempt and the store it lives in; thread-safe."""

    def __init__(
        self,
        *,
        state: CoordinatorState,
        version: int,
        store: RecordStore,
        clock: Clock,
        random: Random,
    ) -> None:
        self._lock = threading.RLock()
        self._state = state
        self._version = version
        self._store = store
        self._clock = clock
        self._random = random
        self._unsaved: list[i.Input] = []
        self._unsaved_history: dict[int, CheckpointStatistics] = {}
        self._stored = state.record
        self._fenced: Fenced | None = None
        self._look_at_age = 0.0

    @property
    def state(self) -> CoordinatorState:
        """The state at this moment."""
        return self._state

    @property
    def stored(self) -> CoordinatorRecord:
        """The record as last stored or loaded."""
        return self._stored

    @property
    def pipeline(self) -> PipelineId:
        """The pipeline."""
        return self._state.setup.pipeline

    def now(self) -> Now:
        """The moment, by both clocks."""
        return Now(self._clock.now(), self._clock.monotonic())

    def forget_history(self) -> None:
        """Let rows leave the history where newer ones are enough. Raises Fenced, Unavailable."""
        newest = CheckpointId(self._state.record.next_id - 1)
        below = CheckpointId(max(1, newest + 1 - history.KEPT_ROWS))
        if self._clock.monotonic() >= self._look_at_age:
            self._look_at_age = self._clock.monotonic() + LOOK_AT_AGE
            old = self._clock.now() - history.KEPT_SECONDS
            below = max(below, self._store.first_since(self.pipeline, old, newest=newest))
        for _ in range(PAGES_AT_ONCE):
            found = self._store.outdated(self.pipeline, self._state.record, below=below)
            if found is None:
                return
            self.commit(found)

    # --- one event ------------------------------------------------------------------------------------------

    def commit(self, event: i.Input) -> Decision:
        """Decide ``event`` and store the decision. Raises Fenced, and Unavailable where ``MUST_BE_STORED``."""
        with self._lock:
            if self._fenced is not None:
                raise self._fenced
            if isinstance(event, i.SubtaskAcked):
                return self._commit_subtask(event)
            return self._commit(event)

    def _commit_subtask(self, event: i.SubtaskAcked) -> Decision:
        """Only a late message changes the record; the many others cost no more than the decision."""
        decision = decide(self._state, event, self.now())
        if decision.state.record is self._state.record and not decision.history:
            self._state = decision.state
            return decision
        return self._commit(event)

    def _commit(self, event: i.Input) -> Decision:
        draw = self._random.random()
        doubts = 0
        while True:
            decision = decide(self._state, event, self.now(), draw=draw)
            if not self._must_store(event, decision):
                return self._keep(event, decision)
            try:
                outcome = self._write(decision)
            except OutcomeUnknown as error:
                doubts += 1
                if isinstance(event, MUST_BE_STORED) and doubts < MAX_UNKNOWN_OUTCOMES:
                    self.refresh()
                    continue
                return self._not_stored(event, decision, error)
            except Unavailable as error:
                return self._not_stored(event, decision, error)
            if isinstance(outcome, Committed):
                self._accept(decision, outcome.version)
                return decision
            self._reload(outcome.current)

    def _must_store(self, event: i.Input, decision: Decision) -> bool:
        """A change of what is left to delete alone can wait: doing that work twice does no harm.

        So can a pointer of readers: the one that is stored is shown as well.
        """
        changed = _changed_fields(self._state.record, decision.state.record)
        if isinstance(event, i.TablesShown) and rides(decision.state, self.now()):
            return False
        if isinstance(event, i.StageAcked) and self._state.setup.acks is AckDurability.AT_COMPLETION:
            return bool(set(changed) - {"cleanup", "pending"})
        return bool(set(changed) - {"cleanup"})

    def _keep(self, event: i.Input, decision: Decision) -> Decision:
        if decision.state.record is not self._state.record or decision.history:
            self._remember(event, decision.history)
        self._state = decision.state
        return decision

    def _remember(self, event: i.Input, history: Sequence[CheckpointStatistics]) -> None:
        self._unsaved = [*self._unsaved, event][-REPLAYED:]
        self._unsaved_history |= {row.checkpoint_id: row for row in history}

    def _write(self, decision: Decision) -> Committed | Overtaken:
        record = decision.state.record
        rows = {**self._unsaved_history, **{row.checkpoint_id: row for row in decision.history}}
        written = [history.history_row(self.pipeline, self._state.epoch, row) for row in rows.values()]
        try:
            return self._store.write(
                self.pipeline, self._version, record, written, forgotten=decision.forgotten
            )
        except OutcomeUnknown:
            if self._store.is_written(self.pipeline, self._version, record):
                return Committed(self._version + 1)
            raise

    def _accept(self, decision: Decision, version: int) -> None:
        for line in _transitions(self._stored, decision.state.record):
            log.info("pipeline %s epoch %s: %s", self.pipeline, self._state.epoch, line)
        self._state = decision.state
        self._stored = decision.state.record
        self._version = version
        self._unsaved = []
        self._unsaved_history = {}

    # --- a store that fails ---------------------------------------------------------------------------------

    def _not_stored(
        self, event: i.Input, decision: Decision, error: Unavailable | OutcomeUnknown
    ) -> Decision:
        match event:
            case i.RequestCheckpoint(request) | i.StopRequested(request):
                return self._commit(i.RequestBroken(request, _id_not_stored(error)))
            case i.QueueDue():
                head = self._state.queue.waiting[0]
                return self._commit(i.RequestBroken(head.request, _id_not_stored(error), head.number))
            case i.MetadataWritten(metadata):
                return self._commit(
                    i.CheckpointBroken(
                        CheckpointId(metadata.checkpoint_id),
                        CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE,
                        f"The completed checkpoint could not be stored: {error}",
                        outcome_unknown=isinstance(error, OutcomeUnknown),
                    )
                )
            case _ if isinstance(event, MUST_BE_STORED):
                raise error
        log.warning("pipeline %s: a change is kept in memory, the store failed: %s", self.pipeline, error)
        self._remember(event, decision.history)
        self._state = decision.state
        return decision

    def flush(self) -> None:
        """Store what could wait so far. Raises Fenced, Unavailable."""
        with self._lock:
            while self._unsaved:
                outcome = self._write(Decision(state=self._state))
                if isinstance(outcome, Committed):
                    self._accept(Decision(state=self._state), outcome.version)
                else:
                    self._reload(outcome.current)

    # --- other processes ------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Take up what others stored. Raises Fenced when a newer attempt owns the pipeline; Unavailable."""
        with self._lock:
            if self._fenced is not None:
                raise self._fenced
            stored = self._store.load(self.pipeline)
            if stored is None or stored.version != self._version:
                self._reload(stored)

    def _reload(self, stored: LoadedRecord | None) -> None:
        if stored is None:
            raise Corrupt(
                f"the coordinator's record of pipeline {self.pipeline!r} has vanished: "
                "restore the database of the coordinator store"
            )
        record = stored.record
        if record.epoch != self._state.epoch:
            self._fenced = Fenced(
                f"run {self._state.record.owner!r} (epoch {self._state.epoch}) of pipeline {self.pipeline!r} was "
                f"fenced: run {record.owner!r} owns it with epoch {record.epoch}. This attempt must stop; "
                "nothing it wrote since then counts"
            )
            raise self._fenced
        now = self.now()
        state = reconciled(self._state, record, now)
        for event in self._unsaved:
            state = decide(state, event, now).state
        self._state = state
        self._stored = record
        self._version = stored.version


def _id_not_stored(error: Exception) -> str:
    return f"The checkpoint id could not be stored: {error}"


def _changed_fields(before: CoordinatorRecord, after: CoordinatorRecord) -> list[str]:
    if before is after:
        return []
    was, now = before.__dict__, after.__dict__
    return [name for name in CoordinatorRecord.model_fields if was[name] is not now[name]]


def _transitions(before: CoordinatorRecord, after: CoordinatorRecord) -> list[str]:
    """Return one line per checkpoint whose status changed, for the log."""
    was, now_pending = ({p.checkpoint_id for p in r.pending} for r in (before, after))
    done = {c.checkpoint_id for c in (*after.completed, *after.savepoints)}
    failed = {f.checkpoint_id: f.reason for f in after.failed}
    lines = [f"checkpoint {n}: requested -> pending" for n in sorted(now_pending - was)]
    for number in sorted(was - now_pending):
        ending = "completed" if number in done else f"aborted ({failed.get(number, 'unknown')})"
        lines.append(f"checkpoint {number}: pending -> {ending}")
    return lines
