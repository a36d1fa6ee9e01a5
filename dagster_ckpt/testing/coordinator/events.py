"""Events that a stage's driver-side coordinator sends to its subtasks in a scenario."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from enum import StrEnum
from typing import Any

from dagster_ckpt.core.checkpoint.tasks import StageStatus
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.messages import AcknowledgeResult
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.runtime.driver.hooks import ResultPending
from dagster_ckpt.testing.coordinator.world import PlayedAttempt, number_of, one_of, unknown_stage
from dagster_ckpt.testing.flink.gated import GatedCoordinator


class Answering(StrEnum):
    """Answering time of a participant."""

    AT_ONCE = "at_once"
    LATER = "later"
    """The test gives the answer with the harness."""
    FAILS = "fails"


class RecordingHook:
    """A master hook that remembers its calls; state is text."""

    def __init__(
        self, identifier: str, state: Any = "state", answering: Answering | str = Answering.AT_ONCE
    ) -> None:
        self.identifier = identifier
        self.state = state
        """What ``trigger`` returns."""
        self.answering = one_of(Answering, answering, "answering")
        self.error: Exception = RuntimeError(f"hook {identifier} failed")
        """What it raises when it fails."""
        self.on_trigger: Callable[[CheckpointId], None] | None = None
        """Called within ``trigger``: an external system that lets stages acknowledge meanwhile."""
        self.triggered: list[CheckpointId] = []
        self.restored: list[tuple[CheckpointId, Any]] = []
        self.completed_ids: list[CheckpointId] = []
        self.subsumed_ids: list[CheckpointId] = []
        self.aborted_ids: list[CheckpointId] = []
        self.resets = 0
        self.closed = 0

    def trigger(self, checkpoint_id: CheckpointId, timestamp: float) -> Any:
        """Remember the call and answer as told."""
        self.triggered.append(checkpoint_id)
        if self.on_trigger is not None:
            self.on_trigger(checkpoint_id)
        if self.answering is Answering.FAILS:
            raise self.error
        return ResultPending() if self.answering is Answering.LATER else self.state

    def serialize(self, state: Any) -> str:
        """Return text as it is; anything else cannot be stored."""
        if not isinstance(state, str):
            raise TypeError(f"hook {self.identifier} has no serializer for {state!r}")
        return state

    def deserialize(self, text: str) -> Any:
        """Return the text; ``broken`` cannot be read."""
        if text == "broken":
            raise ValueError(f"hook {self.identifier} cannot read its state")
        return text

    def restore(self, checkpoint_id: CheckpointId, state: Any) -> None:
        """Remember what it was restored with."""
        self.restored.append((checkpoint_id, state))

    def complete(self, checkpoint_id: CheckpointId) -> None:
        """Remember."""
        self.completed_ids.append(checkpoint_id)

    def subsumed(self, checkpoint_id: CheckpointId) -> None:
        """Remember."""
        self.subsumed_ids.append(checkpoint_id)

    def aborted(self, checkpoint_id: CheckpointId) -> None:
        """Remember."""
        self.aborted_ids.append(checkpoint_id)

    def reset(self) -> None:
        """Count."""
        self.resets += 1

    def close(self) -> None:
        """Count."""
        self.closed += 1


class RecordingOperatorCoordinator:
    """A stage's driver-side coordinator that remembers its calls."""

    def __init__(
        self, uid: str, state: str | None = "splits", answering: Answering | str = Answering.AT_ONCE
    ) -> None:
        self.uid = StageUid(uid)
        self.state = state
        """What it acknowledges at once."""
        self.answering = one_of(Answering, answering, "answering")
        self.acknowledge: Callable[[CheckpointId, StageUid, str | None], object] | None = None
        """Where an answer goes; the harness sets it."""
        self.asked: list[CheckpointId] = []
        self.completed: list[CheckpointId] = []
        self.aborted: list[CheckpointId] = []
        self.restored: list[tuple[CheckpointId | None, str | None]] = []
        self.resets: list[tuple[CheckpointId | None, int]] = []
        """Checkpoint and subtask, for each that started again."""

    def checkpoint(self, checkpoint_id: CheckpointId) -> None:
        """Remember the call and answer as told."""
        self.asked.append(checkpoint_id)
        if self.answering is Answering.FAILS:
            raise RuntimeError(f"coordinator of {self.uid} failed")
        if self.answering is Answering.AT_ONCE and self.acknowledge is not None:
            self.acknowledge(checkpoint_id, self.uid, self.state)

    def checkpoint_complete(self, checkpoint_id: CheckpointId) -> None:
        """Remember."""
        self.completed.append(checkpoint_id)

    def checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        """Remember."""
        self.aborted.append(checkpoint_id)

    def restore(self, checkpoint_id: CheckpointId | None, state: str | None) -> None:
        """Remember what it was restored with."""
        self.restored.append((checkpoint_id, state))

    def subtask_reset(self, checkpoint_id: CheckpointId | None, subtask: int) -> None:
        """Remember which subtask starts again, and from where."""
        self.resets.append((checkpoint_id, subtask))


class DriverEvents:
    """The driver's side of stages that have a ``RecordingOperatorCoordinator``."""

    def __init__(self, played: PlayedAttempt) -> None:
        self._played = played
        self.confirm_events = True
        """Events arrive at once; else ``confirm_event`` or ``lose_event`` says what becomes of each."""
        self.gates: dict[StageUid, GatedCoordinator] = {}
        self._received: dict[tuple[str, int], list[Any]] = defaultdict(list)
        self._on_the_way: list[tuple[str, int, Any, Future[None]]] = []

    def send_event(self, stage: str, event: Any, subtask: int = 0) -> None:
        """Let a stage's driver-side coordinator send an event to a subtask.

        Raises InvalidRequest where the stage has no coordinator, or no such subtask.
        """
        gate = self.gates.get(StageUid(stage))
        if gate is None:
            there = ", ".join(sorted(self.gates)) or "none"
            raise InvalidRequest(
                f"stage {stage!r} has no coordinator in this scenario: those with one: {there}"
            )
        gate.send(subtask, event)

    def received(self, stage: str, subtask: int = 0) -> list[Any]:
        """Return the events that reached a subtask, in order. Raises NotFound: no such task."""
        self._played.check_task(stage, subtask)
        return list(self._received[stage, subtask])

    @property
    def events_on_the_way(self) -> list[Any]:
        """Events that were sent and neither confirmed nor lost, oldest first."""
        return [event for _, _, event, _ in self._on_the_way]

    def confirm_event(self) -> None:
        """Let the oldest event on its way arrive. Raises InvalidRequest where none is."""
        stage, subtask, event, delivery = self._oldest()
        self._received[stage, subtask].append(event)
        delivery.set_result(None)

    def lose_event(self) -> None:
        """Let the oldest event on its way get lost: its task fails. Raises InvalidRequest where none is."""
        *_, event, delivery = self._oldest()
        delivery.set_exception(RuntimeError(f"event {event!r} was lost"))

    def _oldest(self) -> tuple[str, int, Any, Future[None]]:
        if not self._on_the_way:
            raise InvalidRequest("no event is on its way: set confirm_events = False before it is sent")
        return self._on_the_way.pop(0)

    def fail_coordinator(self, checkpoint_id: int, stage: str, error: Exception | None = None) -> None:
        """Let a stage's driver-side coordinator fail to give its state: its checkpoint fails."""
        self._played.check_task(stage)
        failure = error or RuntimeError(f"the coordinator of stage {stage} failed")
        self._played.coordinator.fail_coordinator(number_of(checkpoint_id), StageUid(stage), failure)

    def acknowledge_coordinator(
        self, checkpoint_id: int, stage: str, state: str | None = "splits"
    ) -> AcknowledgeResult:
        """Acknowledge for a stage's driver-side coordinator.

        Where events sent before are still on their way it is SUCCESS too; the state is taken when they arrive.
        A stage that has no coordinator is UNKNOWN. Raises NotFound: no such stage; InvalidRequest: not text.
        """
        self._played.check_task(stage)
        if not isinstance(state, str | None):
            raise InvalidRequest(f"driver-side state is text or None, got {state!r}")
        number, uid = number_of(checkpoint_id), StageUid(stage)
        gate = self.gates.get(uid)
        if gate is not None and gate.is_asked(number):
            return gate.snapshot_done(number, state) or AcknowledgeResult.SUCCESS
        return self._played.coordinator.acknowledge_coordinator(number, uid, state)

    def gated(self, coordinators: Iterable[RecordingOperatorCoordinator]) -> list[GatedCoordinator]:
        """Put a gate before each coordinator, as a new process does."""
        self._on_the_way.clear()
        gates = [self._gate(one) for one in coordinators]
        self.gates = {gate.uid: gate for gate in gates}
        return gates

    def _gate(self, one: RecordingOperatorCoordinator) -> GatedCoordinator:
        if one.uid not in self._played.graph.by_uid:
            raise unknown_stage(one.uid, self._played.graph.by_uid)
        gate = GatedCoordinator(
            one,
            parallelism=self._played.graph.by_uid[one.uid].parallelism,
            deliver=lambda subtask, event: self._deliver(one.uid, subtask, event),
            acknowledge=self._acknowledged,
            fail=self._failed,
            fail_subtask=lambda subtask, _: self._missed(one.uid, subtask),
        )
        one.acknowledge = lambda number, _uid, state: gate.snapshot_done(number, state)
        return gate

    def _acknowledged(self, number: CheckpointId, uid: StageUid, state: str | None) -> AcknowledgeResult:
        return self._played.coordinator.acknowledge_coordinator(
            number, uid, state
        )  # of now: it is opened after its gates

    def _failed(self, number: CheckpointId, uid: StageUid, error: Exception) -> None:
        self._played.coordinator.fail_coordinator(number, uid, error)

    def _missed(self, uid: StageUid, subtask: int) -> None:
        """A task that runs and missed an event fails, as Flink's do; one that is over missed nothing."""
        if self._played.coordinator.status_of_task(uid, subtask) is StageStatus.RUNNING:
            self._played.coordinator.report_stage(uid, StageStatus.FAILED, subtask)

    def _deliver(self, stage: str, subtask: int, event: Any) -> Future[None]:
        delivery: Future[None] = Future()
        self._on_the_way.append((stage, subtask, event, delivery))
        if self.confirm_events:
            self.confirm_event()
        return delivery
