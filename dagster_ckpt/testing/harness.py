"""CoordinatorHarness: a whole checkpoint coordinator in memory, for scenarios in a handful of lines.

The coordinator is the real one, over a memory store, a memory storage, a clock that stands still, deletions that run
when the test lets them, and tasks that the test plays::

    h = CoordinatorHarness(stages={"source": 1, "sink": 1}, edges=[("source", "sink")])
    first = h.checkpoint()                    # triggered, not acknowledged
    h.acknowledge(first, "source")
    h.acknowledge(first, "sink")
    assert h.completed == [first]

Tasks run from the start (``running=False`` leaves that to the test). When a checkpoint is aborted, tasks confirm
that they stopped writing at once, as real stages do; ``confirm_aborts = False`` keeps them silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

from dagster_ckpt.core.config import CheckpointConfig, RestoreOptions
from dagster_ckpt.core.events import CoordinatorEvent
from dagster_ckpt.core.graph import StageSpec
from dagster_ckpt.core.ids import CheckpointId, ExecutionAttempt, StageUid
from dagster_ckpt.core.messages import (
    NotifyAborted,
)
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.outcomes import Queued, Rejected, Triggered, TriggerOutcome
from dagster_ckpt.core.paths import CheckpointPaths
from dagster_ckpt.core.properties import RunStatus
from dagster_ckpt.core.recovery import DirectoryState
from dagster_ckpt.core.requests import CheckpointRequest, RequestOrigin, SnapshotScope
from dagster_ckpt.core.state import AckDurability
from dagster_ckpt.core.tasks import StageStatus
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ports import CheckpointStorage, CoordinatorStore
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.runtime.opening import Ownership
from dagster_ckpt.testing.background import ManualBackground
from dagster_ckpt.testing.clock import ManualClock
from dagster_ckpt.testing.gateway import RecordingGateway
from dagster_ckpt.testing.harness_answers import HarnessAnswers
from dagster_ckpt.testing.harness_events import HarnessEvents
from dagster_ckpt.testing.harness_faults import HarnessFaults
from dagster_ckpt.testing.harness_graph import EdgeLike, build_graph, number_of, one_of
from dagster_ckpt.testing.participants import Answering, RecordingHook, RecordingOperatorCoordinator

__all__ = ["Answering", "CoordinatorHarness", "RecordingHook", "RecordingOperatorCoordinator"]


class CoordinatorHarness(HarnessAnswers):
    """One attempt of a pipeline, played by the test. ``settings`` are those of CheckpointConfig and RestoreOptions."""

    def __init__(
        self,
        *,
        stages: Mapping[str, int] | Sequence[StageSpec] = {"task": 1},
        edges: Sequence[EdgeLike] = (),
        pipeline: str = "pipeline",
        union_state: Iterable[str] = (),
        hooks: Sequence[RecordingHook] = (),
        coordinators: Sequence[RecordingOperatorCoordinator] = (),
        running: bool = True,
        owner: str = "run-1",
        root: str = "",
        ownership: Ownership | str = Ownership.ATTACH,
        restore_from: str = "latest",
        restore: RestoreOptions | None = None,
        directory: DirectoryState | str = DirectoryState.INTACT,
        acks: AckDurability | str = AckDurability.PER_STAGE,
        seed: int = 0,
        world: CoordinatorHarness | None = None,
        store: CoordinatorStore | None = None,
        storage: CheckpointStorage | None = None,
        **settings: Any,
    ) -> None:
        HarnessFaults.__init__(self, world=world, store=store, storage=storage)
        HarnessEvents.__init__(self)
        self.graph = build_graph(pipeline, stages, edges, frozenset(union_state))
        of_restore = {
            name: settings.pop(name) for name in RestoreOptions.model_fields.keys() & settings.keys()
        }
        self.config = CheckpointConfig.of(**settings)
        self.paths = CheckpointPaths(self.graph.pipeline)
        self.clock: ManualClock = world.clock if world is not None else ManualClock()
        self.gateway = RecordingGateway()
        self.gateway.on_aborted = self._confirm
        self.background = ManualBackground()
        self.hooks = list(hooks)
        self._drivers = list(coordinators)
        self.coordinators = {c.uid: c for c in coordinators}
        self.owner, self._root = owner, root
        self.confirm_aborts = True
        """Tasks confirm at once that they stopped writing for an aborted checkpoint."""
        self.directory = one_of(DirectoryState, directory, "directory")
        """What a new attempt finds of the previous working directory."""
        self.events: list[CoordinatorEvent] = []
        """Everything the listeners were told, in order."""
        self._random: Random = getattr(world, "_random", None) or Random(seed)
        self._acks = one_of(AckDurability, acks, "acks")
        self._restore = restore or RestoreOptions.of(restore_from=restore_from, **of_restore)
        self.coordinator = self._open(one_of(Ownership, ownership, "ownership"))
        if running:
            self.run()

    # --- attempts -------------------------------------------------------------------------------------------

    def _open(self, ownership: Ownership = Ownership.ATTACH) -> CheckpointCoordinator:
        return CheckpointCoordinator.open(
            graph=self.graph,
            config=self.config,
            store=self.store,
            storage=self.storage,
            open_storage=self.storage_at,
            gateway=self.gateway,
            clock=self.clock,
            owner=self.owner,
            root=self._root,
            ownership=ownership,
            restore=self._restore,
            listeners=[self.events.append],
            random=self._random,
            hooks=self.hooks,
            coordinators=self._gated(self._drivers),
            background=self.background,
            directory_state=lambda path: self.directory,
            acks=self._acks,
        )

    def run(self, working_directory: str | None = None) -> None:
        """Report the run as RUNNING, its stages restored."""
        self.coordinator.started(working_directory or f"/work/{self.owner}")

    def crash(self) -> None:
        """End the process: everything volatile is lost, queued deletions too. Go on with ``recover``."""
        self.background.forget()
        self.faults.disarm()

    def recover(self) -> CheckpointCoordinator:
        """Open the coordinator again for the same run: it attaches to the epoch the run holds."""
        self.coordinator = self._open()
        return self.coordinator

    def another_process(self) -> CoordinatorHarness:
        """Return a second process of the same run (Dagster's multiprocess executor)."""
        return self._beside(self.owner, "latest", running=False)

    def next_attempt(
        self, owner: str = "run-2", *, restore_from: str = "latest", running: bool = True, **options: Any
    ) -> CoordinatorHarness:
        """Return a newer attempt of the pipeline over the same store and storage: this one is fenced.

        ``options``: ``claim_mode`` and whatever else RestoreOptions has, ``hooks``, ``coordinators``, ``stages``,
        ``edges``, settings; ``root``: the run that this one is another try of. Raises InvalidRequest for the owner
        of this one: its processes attach to this attempt.
        """
        if owner == self.owner:
            raise InvalidRequest(
                f"run {owner!r} holds this attempt already: a newer one has another owner "
                "(restart() begins a new attempt of the same run, another_process() takes part in this one)"
            )
        return self._beside(owner, restore_from, running=running, **options)

    def restart(self, **options: Any) -> CoordinatorHarness:
        """Return a new attempt of the same run, as a stream begins one after a failure: this one is fenced.

        What the run has completed beats what it was to restore. Raises Fenced where a newer run owns the pipeline.
        """
        begun = {
            "root": self._root,
            "restore": self._restore,
            "ownership": Ownership.RESTART,
            "running": True,
        }
        return self._beside(self.owner, "latest", **{**begun, **options})

    def _beside(self, owner: str, restore_from: str, **options: Any) -> CoordinatorHarness:
        inherited: dict[str, Any] = {
            "stages": self.graph.stages,
            "edges": self.graph.edges,
            "pipeline": self.graph.pipeline,
            **self.config.model_dump(exclude_unset=True),
        }
        return CoordinatorHarness(
            **{**inherited, **options},
            owner=owner,
            restore_from=restore_from,
            world=self,
        )

    def close(self, status: RunStatus | str = RunStatus.SUSPENDED, *, clean: bool = True) -> None:
        """End the attempt: SUSPENDED, FINISHED, CANCELED or FAILED."""
        self.coordinator.close(one_of(RunStatus, status, "status"), clean=clean)

    def fail_over(self, message: str = "") -> None:
        """Let the stages restart within the attempt: everything pending fails with JOB_FAILOVER_REGION."""
        self.coordinator.fail_over(message)

    def dispose(self, savepoint_id: int) -> None:
        """Delete a savepoint."""
        self.coordinator.dispose_savepoint(number_of(savepoint_id))

    # --- time -----------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let time pass, stopping at every timer that falls due on the way. Raises InvalidRequest: backwards."""
        if seconds < 0:
            raise InvalidRequest(f"time does not run backwards: advance({seconds})")
        end = self.clock.monotonic() + seconds
        next_at = self.coordinator.poll()
        while next_at is not None and next_at <= end:
            self.clock.advance(max(0.0, next_at - self.clock.monotonic()))
            next_at = self.coordinator.poll()
        self.clock.advance(max(0.0, end - self.clock.monotonic()))
        self.coordinator.poll()

    def expire(self, checkpoint_id: int) -> None:
        """Let time pass until the checkpoint's timeout is over."""
        deadline = self.coordinator.deadline_of(number_of(checkpoint_id))
        self.advance(max(0.0, deadline - self.clock.monotonic()))

    def start_periodic(self) -> None:
        """Switch the periodic scheduler on."""
        self.coordinator.start_scheduler()

    def stop_periodic(self) -> None:
        """Switch it off."""
        self.coordinator.stop_scheduler()

    def backlog(self, *stages: str) -> None:
        """Say which stages work off a backlog now; none: no stage does."""
        self.coordinator.report_backlog(StageUid(s) for s in stages)

    # --- requests -------------------------------------------------------------------------------------------

    def trigger(
        self,
        kind: CheckpointKind | str = CheckpointKind.CHECKPOINT,
        *,
        periodic: bool = False,
        scope: SnapshotScope | str = SnapshotScope.CONFIGURED,
        target: str = "",
        **fields: Any,
    ) -> TriggerOutcome:
        """Request a checkpoint or savepoint; a savepoint without a target goes to ``memory://savepoints``."""
        kind = one_of(CheckpointKind, kind, "kind")
        if kind.is_savepoint and not target and not self.config.savepoint_dir:
            target = "memory://savepoints"
        origin = RequestOrigin.PERIODIC if periodic else RequestOrigin.MANUAL
        wanted = one_of(SnapshotScope, scope, "scope")
        request = CheckpointRequest(kind=kind, origin=origin, scope=wanted, target=target, **fields)
        return self.coordinator.trigger(request)

    def checkpoint(self, **fields: Any) -> CheckpointId:
        """Trigger a checkpoint and return its id. Raises AssertionError when it is queued or rejected."""
        return self._id_of(self.trigger(**fields))

    def savepoint(self, **fields: Any) -> CheckpointId:
        """Trigger a savepoint and return its id. Raises AssertionError when it is queued or rejected."""
        return self._id_of(self.trigger(CheckpointKind.SAVEPOINT, **fields))

    def stop_with_savepoint(self, *, drain: bool = False, **fields: Any) -> TriggerOutcome:
        """Begin a stop-with-savepoint, to suspend or (``drain``) to terminate; it goes where a savepoint goes."""
        suspend, terminate = CheckpointKind.SYNC_SAVEPOINT_SUSPEND, CheckpointKind.SYNC_SAVEPOINT_TERMINATE
        target = "" if self.config.savepoint_dir else "memory://savepoints"
        request = CheckpointRequest(kind=terminate if drain else suspend, **{"target": target, **fields})
        return self.coordinator.stop_with_savepoint(request)

    def completed_checkpoint(self, **fields: Any) -> CheckpointId:
        """Trigger a checkpoint, acknowledge all of it, return its id."""
        number = self.checkpoint(**fields)
        self.acknowledge_all(number)
        return number

    def completed_savepoint(self, **fields: Any) -> CheckpointId:
        """Trigger a savepoint, acknowledge all of it, return its id."""
        number = self.savepoint(**fields)
        self.acknowledge_all(number)
        return number

    @staticmethod
    def _id_of(outcome: TriggerOutcome) -> CheckpointId:
        match outcome:
            case Triggered(number):
                return number
            case Queued(_, number):
                why = f"it is queued as request {number}, see max_concurrent_checkpoints"
            case Rejected(reason, message):
                why = f"{reason.name}: {message}"
        raise AssertionError(f"not triggered: {why}")

    # --- tasks ----------------------------------------------------------------------------------------------

    def report(self, stage: str, status: StageStatus | str, subtask: int | None = None) -> None:
        """Report the status of a stage or of one subtask."""
        self.coordinator.report_stage(StageUid(stage), one_of(StageStatus, status, "status"), subtask)

    def fail_task(self, stage: str, subtask: int = 0) -> None:
        """Let a task fail."""
        self.report(stage, StageStatus.FAILED, subtask)

    def finish(self, stage: str, subtask: int | None = None) -> None:
        """Let a stage, or one subtask, finish."""
        self.report(stage, StageStatus.FINISHED, subtask)

    def restart_task(self, stage: str, subtask: int = 0) -> ExecutionAttempt:
        """Deploy and run a new try of a task (one that runs is canceled first); return its identity."""
        if not self.status(stage, subtask).is_over:
            self.report(stage, StageStatus.CANCELED, subtask)
        self.report(stage, StageStatus.DEPLOYING, subtask)
        self.report(stage, StageStatus.RUNNING, subtask)
        return self.attempt(stage, subtask)

    def end_of_data(self, stage: str, subtask: int | None = None) -> None:
        """Let a stage, or one subtask, reach the end of its bounded input."""
        self.coordinator.report_end_of_data(StageUid(stage), subtask)

    def confirm_aborted(self, checkpoint_id: int, stage: str) -> None:
        """Let a stage say that it writes nothing more for an aborted checkpoint."""
        self.check_task(stage)
        self.coordinator.confirm_aborted(number_of(checkpoint_id), StageUid(stage))

    def _confirm(self, message: NotifyAborted) -> None:
        if self.confirm_aborts and hasattr(self, "coordinator"):
            for stage in self.graph.stages:
                self.coordinator.confirm_aborted(message.checkpoint_id, stage.uid)
