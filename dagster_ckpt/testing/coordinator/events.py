"""Events that a stage's driver-side coordinator sends to its subtasks in a scenario."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from dagster_ckpt.core.checkpoint.tasks import StageStatus
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.reasons import AcknowledgeResult
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.testing.coordinator.participants import RecordingOperatorCoordinator
from dagster_ckpt.testing.coordinator.world import PlayedAttempt
from dagster_ckpt.testing.flink.gated import GatedCoordinator
from dagster_ckpt.testing.graph import number_of, unknown_stage


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
