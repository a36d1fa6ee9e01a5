"""The attempt of an attached program: its coordinator, which polls in threads of the program, and its requests.

A stage that was not there before makes the next attempt of the same run, since a graph is fixed within one.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from dagster_ckpt.core.checkpoint.lease import Lease
from dagster_ckpt.core.checkpoint.requests import effective_interval
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.coordinator.admission import request_of
from dagster_ckpt.core.coordinator.effects import CheckpointCompleted, CoordinatorEvent, StageAcknowledged
from dagster_ckpt.core.coordinator.state import AckDurability
from dagster_ckpt.core.ids import BatchId, PipelineId, StageUid
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import CheckpointRequest, Completed, Failed, Rejected, RunStatus, Triggered
from dagster_ckpt.core.restore.facts import DirectoryState
from dagster_ckpt.core.units import duration
from dagster_ckpt.errors import CheckpointError, Declined, Fenced, InvalidRequest
from dagster_ckpt.ext.attach.cuts import ProgramCuts, chosen_cuts
from dagster_ckpt.ext.attach.owner import ProgramOwner
from dagster_ckpt.ext.attach.program import AttachedProgram, ProgramDirectory
from dagster_ckpt.operations.deployment import Deployment
from dagster_ckpt.runtime.attempt_setup import AttemptSetup
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.runtime.mailbox import Mailbox
from dagster_ckpt.spark.snapshot.capture import sweep_pins
from dagster_ckpt.spark.streaming.background import DaemonBackground, Poller

log = logging.getLogger("dagster_ckpt.attach")

CONFIRMED_WITHIN = 60.0
"""Seconds in which a savepoint that was asked for in the program, or its last checkpoint, has to be complete."""
ASK_EVERY = 0.5
"""Seconds after which a checkpoint that is waited for is looked at where the coordinator has told nothing."""
BETWEEN_BATCHES_WITHIN = 10.0
"""Seconds in which a query that is stopped for a savepoint is waited for to be between two batches."""


@dataclass(kw_only=True)
class ProgramAttempt:
    """Attempts of one process of an attached program, one after the other; thread-safe."""

    deployment: Deployment
    pipeline: PipelineId
    directory: ProgramDirectory
    config: CheckpointConfig
    owner: ProgramOwner
    root: str
    """First of the tries that this run is one of."""
    is_running: Callable[[StageUid], bool] = lambda _uid: False
    count_late: Callable[[StageUid], None] = lambda _uid: None
    stop_queries: Callable[[float], None] = lambda _within: None
    """Stops all; seconds in which each is waited for to be between two batches."""
    listeners: tuple[Callable[[CoordinatorEvent], None], ...] = ()
    began: Callable[[ProgramAttempt], None] = lambda _attempt: None
    """Called when the pipeline is owned."""
    ended: Callable[[], None] = lambda: None
    """Called when somebody has stopped the program with a savepoint, which is complete."""
    is_periodic: bool = True
    """False: checkpoints are only taken on request."""
    stopped_with: str = ""
    """Savepoint with which it was stopped; empty: it was not."""
    _program: AttachedProgram = field(default_factory=AttachedProgram)
    coordinator: CheckpointCoordinator | None = None
    """Coordinator of the newest attempt, ended or not."""
    unpublished: Mapping[str, str] = field(default_factory=dict)
    """None: Spark's sinks show their rows themselves."""
    _coordinator: CheckpointCoordinator | None = None
    _cuts: ProgramCuts | None = None
    _poller: Poller | None = None
    _latest: Mapping[StageUid, BatchId | None] = field(default_factory=dict)
    """Cut of the latest checkpoint."""
    _ending: threading.Thread | None = None
    """It stops the program for somebody who has asked for that."""
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _news: threading.Event = field(default_factory=threading.Event)
    """Set when the coordinator has told that a checkpoint has begun or is over."""

    @property
    def is_open(self) -> bool:
        """True while the pipeline is owned."""
        return self._coordinator is not None

    def change(self, program: AttachedProgram) -> None:
        """Go on with what is known of the program now; a new attempt where it has other stages.

        Raises Fenced where another copy of the program is alive; InvalidRequest when it was stopped with a savepoint.
        """
        if self.stopped_with:
            raise InvalidRequest(
                f"{self.pipeline} was stopped with savepoint {self.stopped_with}, and starts no query any more: "
                "start the program again, and it goes on"
            )
        with self._lock:
            is_same = [s.uid for s in self._program.stages] == [s.uid for s in program.stages]
            self._program = program
            if self._cuts is not None and is_same and self.is_open:
                self._cuts.program = program
            elif program.stages:
                self._open()

    def close(self, *, is_last: bool = True) -> None:
        """End the attempt; ``is_last``: with a last checkpoint where something is new."""
        if self._ending is not None and self._ending is not threading.current_thread():
            self._ending.join(
                CONFIRMED_WITHIN
            )  # a program that ends with its queries is not ahead of its savepoint
        with suppress(CheckpointError):
            if (
                is_last
                and self.is_open
                and chosen_cuts(self._program, self.directory, self.is_running) != self._latest
            ):
                self.confirmed(CheckpointRequest(note="last checkpoint of the program"))
        with self._lock:
            self._stop_polling()
            coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            with suppress(CheckpointError):  # the lease ends by itself
                coordinator.close(RunStatus.SUSPENDED, clean=True)

    def _open(self) -> None:
        if self._coordinator is not None:
            self._stop_polling()
            self._coordinator.hand_over()
        else:
            for stage in self._program.stages:
                sweep_pins(self.directory.stage(stage.uid).root)
        cuts = ProgramCuts(
            program=self._program,
            directory=self.directory,
            is_running=self.is_running,
            count_late=self.count_late,
        )
        coordinator = CheckpointCoordinator.open(self._setup(cuts))
        coordinator.started(str(self.directory.root))
        cuts.opened(coordinator)
        self.coordinator = self._coordinator = coordinator
        self._cuts = cuts
        self.began(self)
        if self.is_periodic and effective_interval(self.config):
            coordinator.start_scheduler()
        self._poller = Poller(self._poll, on_error=self._poll_failed)
        self._poller.start()

    def _setup(self, cuts: ProgramCuts) -> AttemptSetup:
        return self.owner.setup(
            self.deployment,
            config=self.config,
            root=self.root,
            listeners=(self._heard, *self.listeners),
            graph=self._program.graph(self.pipeline),
            gateway=cuts,
            directory_state=lambda *_: DirectoryState.LASTING,
            acks=AckDurability.AT_COMPLETION,
            background=DaemonBackground(),
            lease=Lease(reads_mailbox=True),
        )

    def _stop_polling(self) -> None:
        if self._poller is not None:
            self._poller.stop()
        if self._cuts is not None:
            self._cuts.close()

    # --- while it lasts -----------------------------------------------------------------------------------------

    def _poll(self) -> float | None:
        coordinator = self._coordinator
        if coordinator is None:
            return None
        self._serve(coordinator)
        due = coordinator.poll()
        if coordinator.failure:
            log.error(
                "%s: more checkpoints failed than are tolerated: %s", self.pipeline, coordinator.failure
            )
            with self._lock:
                if coordinator is self._coordinator:
                    self._open()
        return due

    def _poll_failed(self, error: Exception) -> None:
        if not isinstance(error, Fenced):
            log.warning("%s: %s", self.pipeline, error)
            return
        with self._lock:
            if self._coordinator is None:
                return
            self._stop_polling()
            self._coordinator = None
        log.error("%s: its queries are stopped: %s", self.pipeline, error)
        self.stop_queries(0.0)

    def _heard(self, event: CoordinatorEvent) -> None:
        if not isinstance(event, StageAcknowledged):
            self._news.set()
        match event:
            case CheckpointCompleted(kind=kind) if kind.is_savepoint:
                log.info("savepoint %s is complete: %s", event.checkpoint_id, event.uri)
            case CheckpointCompleted():
                log.debug("checkpoint %s is complete: %s", event.checkpoint_id, event.uri)
                stages = event.metadata.stages
                self._latest = {
                    StageUid(s.uid): None if s.batch_id is None else BatchId(s.batch_id) for s in stages
                }
            case _:
                pass

    def confirmed(self, request: CheckpointRequest) -> Completed:
        """Take a checkpoint or savepoint now, and return it. Raises Declined where it failed."""
        coordinator = self._coordinator
        if coordinator is None:
            raise Declined("the program has started no query yet: there is nothing to take")
        asked = replace(request, request_id=request.request_id or uuid.uuid4().hex)
        outcome = coordinator.trigger(asked)
        until = time.monotonic() + CONFIRMED_WITHIN
        while time.monotonic() < until:
            if isinstance(outcome, Rejected):
                raise Declined(f"no {request.kind.noun} was taken: {outcome.message}")
            if isinstance(outcome, Triggered):
                match coordinator.status_of(outcome.id):
                    case Completed() as done:
                        return done
                    case Failed() as failed:
                        raise Declined(f"the {request.kind.noun} failed: {failed.message}")
                    case _:
                        pass
            self._news.wait(ASK_EVERY)  # each look asks the store
            self._news.clear()
            if not isinstance(outcome, Triggered):
                outcome = coordinator.outcome_of_request(asked.request_id)
        raise Declined(
            f"the {request.kind.noun} is not complete after {duration(CONFIRMED_WITHIN)}: it goes on"
        )

    # --- what other processes ask for ---------------------------------------------------------------------------

    def _serve(self, coordinator: CheckpointCoordinator) -> None:
        ends = [mail for mail in coordinator.record.mailbox if mail.kind.is_synchronous]
        drains = [m.request_id for m in ends if m.kind is CheckpointKind.SYNC_SAVEPOINT_TERMINATE]
        if drains:
            why = "Spark's queries know no end of their sources: stop it without drain"
            coordinator.mail_taken(frozenset(drains), dict.fromkeys(drains, why))
        elif ends and self._ending is None:
            asked = replace(request_of(ends[0]), kind=CheckpointKind.SAVEPOINT)
            self._ending = threading.Thread(target=self._end, args=(coordinator, asked), daemon=True)
            self._ending.start()
        if not ends:
            Mailbox(tell=log.info).serve(coordinator)

    def _end(self, coordinator: CheckpointCoordinator, asked: CheckpointRequest) -> None:
        """Stop the queries, take the savepoint that was asked for, and end."""
        log.info("another process stops %s with a savepoint", self.pipeline)
        try:
            self.stop_queries(BETWEEN_BATCHES_WITHIN)
            done = self.confirmed(asked)
        except CheckpointError as error:
            log.error("%s: its queries are stopped, and there is no savepoint: %s", self.pipeline, error)
            with suppress(CheckpointError):
                refused = {asked.request_id: f"{error} (its queries are stopped)"}
                coordinator.mail_taken(frozenset(refused), refused)
            self._ending = None
        else:
            self.stopped_with = done.location.uri
            with suppress(CheckpointError):
                coordinator.mail_taken(frozenset((asked.request_id,)), {})
            self.close(is_last=False)
        self.ended()
