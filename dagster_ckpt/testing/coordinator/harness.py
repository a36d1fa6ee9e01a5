"""``CoordinatorHarness``: a whole checkpoint coordinator in memory, for scenarios in a handful of lines.

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

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, Unpack, overload

from dagster_ckpt.core.checkpoint.statistics import HISTORY_SIZE
from dagster_ckpt.core.config import CheckpointConfig, RestoreOptions
from dagster_ckpt.core.coordinator.state import AckDurability
from dagster_ckpt.core.graph import StageSpec
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.core.restore.facts import DirectoryState, Seen
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ports import CheckpointStorage, CoordinatorStore
from dagster_ckpt.runtime.attempt_setup import AttemptSetup, Ownership
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.runtime.driver.hooks import MasterHook, distinct_coordinators, distinct_hooks
from dagster_ckpt.testing.coordinator.events import (
    Answering,
    DriverEvents,
    RecordingHook,
    RecordingOperatorCoordinator,
)
from dagster_ckpt.testing.coordinator.readings import Readings
from dagster_ckpt.testing.coordinator.settings import AttemptOptions, Settings
from dagster_ckpt.testing.coordinator.tasks import Requests, Tasks
from dagster_ckpt.testing.coordinator.world import (
    EdgeLike,
    Faults,
    PlayedAttempt,
    ScenarioWorld,
    build_graph,
    number_of,
    one_of,
)

__all__ = ["Answering", "CoordinatorHarness", "RecordingHook", "RecordingOperatorCoordinator"]


T = TypeVar("T")


class Delegated(Generic[T]):
    """Attribute of the harness that one of its parts has: ``h.trigger`` is ``h.requests.trigger``.

    ``pending = Delegated(lambda h: h.read.pending)``: what type checkers know of the part holds for the name as well.
    """

    def __init__(self, find: Callable[[CoordinatorHarness], T]) -> None:
        self._find = find

    @overload
    def __get__(self, harness: None, owner: Any = None) -> Delegated[T]: ...

    @overload
    def __get__(self, harness: CoordinatorHarness, owner: Any = None) -> T: ...

    def __get__(self, harness: CoordinatorHarness | None, owner: Any = None) -> Delegated[T] | T:
        return self if harness is None else self._find(harness)


class CoordinatorHarness:
    """One attempt of a pipeline, played by the test. ``settings`` are those of CheckpointConfig and RestoreOptions.

    What it is made of, each with its names on the harness itself as well: ``read`` (what it shows), ``tasks`` (what
    tasks answer and go through), ``driver`` (driver-side coordinators and their events), ``faults`` (what fails),
    ``requests`` (what users and the timer ask for).
    """

    def __init__(
        self,
        *,
        stages: Mapping[str, int] | Sequence[StageSpec] = {"task": 1},
        edges: Sequence[EdgeLike] = (),
        pipeline: str = "pipeline",
        union_state: Iterable[str] = (),
        hooks: Sequence[MasterHook] = (),
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
        world: ScenarioWorld | None = None,
        store: CoordinatorStore | None = None,
        storage: CheckpointStorage | None = None,
        seen: Sequence[Seen] = (),
        strict_history: bool = False,
        history_size: int = HISTORY_SIZE,
        **settings: Unpack[Settings],
    ) -> None:
        given: dict[str, Any] = {**settings}
        of_restore = {name: given.pop(name) for name in RestoreOptions.model_fields.keys() & given.keys()}
        self.config = CheckpointConfig.of(**given)
        self.world = world or ScenarioWorld.of(store, storage, seed)
        self._played = PlayedAttempt(
            graph=build_graph(pipeline, stages, edges, frozenset(union_state)), world=self.world
        )
        self.faults = Faults(self._played)
        self.read = Readings(self._played, history_size)
        self.tasks = Tasks(self._played, self.faults, self.read)
        self.driver = DriverEvents(self._played)
        self.requests = Requests(self._played, self.config, self.tasks)
        self.hooks = list(hooks)
        self._drivers = list(coordinators)
        self.coordinators: dict[str, RecordingOperatorCoordinator] = {c.uid: c for c in coordinators}
        self.owner, self._root = owner, root
        self.directory = one_of(DirectoryState, directory, "directory")
        """What a new attempt finds of the previous working directory."""
        self._seen, self._strict_history = seen, strict_history
        """What sinks and working directory have seen; whether being behind it matters: Flink has no such rule."""
        self._acks = one_of(AckDurability, acks, "acks")
        self._restore = restore or RestoreOptions.of(restore_from=restore_from, **of_restore)
        self._open(one_of(Ownership, ownership, "ownership"))
        if running:
            self.run()

    # --- attempts -------------------------------------------------------------------------------------------

    def _open(self, ownership: Ownership = Ownership.ATTACH) -> CheckpointCoordinator:
        setup = AttemptSetup(
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
            restore=self._restore if self._strict_history else self._adopting(),
            seen=lambda: self._seen,
            new_lineage=self.world.new_lineage,
            listeners=[self.events.append],
            random=self.world.random,
            hooks=distinct_hooks(self.hooks),
            coordinators=distinct_coordinators(self.driver.gated(self._drivers), self.graph),
            background=self.background,
            directory_state=lambda _path, _record: self.directory,
            acks=self._acks,
            tell_shown=self.moved.append,
        )
        opened = CheckpointCoordinator.open(setup)
        self._played.opened = opened
        return opened

    def _adopting(self) -> RestoreOptions:
        return self._restore.model_copy(update={"adopt_history": True})

    def run(self, working_directory: str | None = None) -> None:
        """Report the run as RUNNING, its stages restored."""
        self.coordinator.started(working_directory or f"/work/{self.owner}")

    def crash(self) -> None:
        """End the process: everything volatile is lost, queued deletions too. Go on with ``recover``."""
        self.background.forget()
        self.faults.disarm()

    def recover(self) -> CheckpointCoordinator:
        """Open the coordinator again for the same run: it attaches to the epoch the run holds."""
        return self._open()

    def another_process(self) -> CoordinatorHarness:
        """Return a second process of the same run (Dagster's multiprocess executor)."""
        return self._beside(self.owner, "latest", running=False)

    def next_attempt(
        self,
        owner: str = "run-2",
        *,
        restore_from: str = "latest",
        running: bool = True,
        **options: Unpack[AttemptOptions],
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

    def restart(self, *, running: bool = True, **options: Unpack[AttemptOptions]) -> CoordinatorHarness:
        """Return a new attempt of the same run, as a stream begins one after a failure: this one is fenced.

        What the run has completed beats what it was to restore. Raises Fenced where a newer run owns the pipeline.
        """
        begun: AttemptOptions = {
            "root": self._root,
            "restore": self._restore,
            "ownership": Ownership.RESTART,
        }
        return self._beside(self.owner, "latest", running=running, **{**begun, **options})

    def _beside(self, owner: str, restore_from: str, **options: Any) -> CoordinatorHarness:
        inherited: dict[str, Any] = {
            "stages": self.graph.stages,
            "edges": self.graph.edges,
            "pipeline": self.graph.pipeline,
            "seen": self._seen,
            "strict_history": self._strict_history,
            "history_size": self.read.history_size,
            **self.config.model_dump(exclude_unset=True),
        }
        return CoordinatorHarness(
            **{**inherited, **options},
            owner=owner,
            restore_from=restore_from,
            world=self.world,
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
        """Say which stages have a backlog now; none: no stage does."""
        self.coordinator.report_backlog(StageUid(s) for s in stages)

    # --- names of the parts ---------------------------------------------------------------------------------

    coordinator = Delegated(lambda h: h._played.coordinator)
    graph = Delegated(lambda h: h._played.graph)
    gateway = Delegated(lambda h: h._played.gateway)
    background = Delegated(lambda h: h._played.background)
    events = Delegated(lambda h: h._played.events)
    moved = Delegated(lambda h: h._played.moved)
    paths = Delegated(lambda h: h._played.paths)

    clock = Delegated(lambda h: h.world.clock)
    memory_store = Delegated(lambda h: h.world.memory_store)
    memory_storages = Delegated(lambda h: h.world.memory_storages)

    record = Delegated(lambda h: h.read.record)
    pending = Delegated(lambda h: h.read.pending)
    completed = Delegated(lambda h: h.read.completed)
    savepoints = Delegated(lambda h: h.read.savepoints)
    queued = Delegated(lambda h: h.read.queued)
    subsumed = Delegated(lambda h: h.read.subsumed)
    discarded = Delegated(lambda h: h.read.discarded)
    failures = Delegated(lambda h: h.read.failures)
    rejected = Delegated(lambda h: h.read.rejected)
    job_failures = Delegated(lambda h: h.read.job_failures)
    failure_counter = Delegated(lambda h: h.read.failure_counter)
    triggering = Delegated(lambda h: h.read.triggering)
    is_scheduling = Delegated(lambda h: h.read.is_scheduling)
    next_periodic = Delegated(lambda h: h.read.next_periodic)
    restored = Delegated(lambda h: h.read.restored)
    match = Delegated(lambda h: h.read.match)
    stop_outcome = Delegated(lambda h: h.read.stop_outcome)
    outcome = Delegated(lambda h: h.read.outcome)
    kind = Delegated(lambda h: h.read.kind)
    outstanding = Delegated(lambda h: h.read.outstanding)
    properties = Delegated(lambda h: h.read.properties)
    plan = Delegated(lambda h: h.read.plan)
    status = Delegated(lambda h: h.read.status)
    files = Delegated(lambda h: h.read.files)
    is_stored = Delegated(lambda h: h.read.is_stored)
    removed = Delegated(lambda h: h.read.removed)
    metadata = Delegated(lambda h: h.read.metadata)
    triggered = Delegated(lambda h: h.read.triggered)
    options = Delegated(lambda h: h.read.options)
    notices = Delegated(lambda h: h.read.notices)
    completes = Delegated(lambda h: h.read.completes)
    aborts = Delegated(lambda h: h.read.aborts)
    statistics = Delegated(lambda h: h.read.statistics)
    gauges = Delegated(lambda h: h.read.gauges)

    attempt = Delegated(lambda h: h.tasks.attempt)
    private = Delegated(lambda h: h.tasks.private)
    shared = Delegated(lambda h: h.tasks.shared)
    acknowledge = Delegated(lambda h: h.tasks.acknowledge)
    acknowledge_stage = Delegated(lambda h: h.tasks.acknowledge_stage)
    acknowledge_all = Delegated(lambda h: h.tasks.acknowledge_all)
    answer_hook = Delegated(lambda h: h.tasks.answer_hook)
    fail_hook = Delegated(lambda h: h.tasks.fail_hook)
    decline = Delegated(lambda h: h.tasks.decline)
    report = Delegated(lambda h: h.tasks.report)
    fail_task = Delegated(lambda h: h.tasks.fail_task)
    finish = Delegated(lambda h: h.tasks.finish)
    restart_task = Delegated(lambda h: h.tasks.restart_task)
    end_of_data = Delegated(lambda h: h.tasks.end_of_data)
    confirm_aborted = Delegated(lambda h: h.tasks.confirm_aborted)

    trigger = Delegated(lambda h: h.requests.trigger)
    checkpoint = Delegated(lambda h: h.requests.checkpoint)
    savepoint = Delegated(lambda h: h.requests.savepoint)
    completed_checkpoint = Delegated(lambda h: h.requests.completed_checkpoint)
    completed_savepoint = Delegated(lambda h: h.requests.completed_savepoint)
    stop_with_savepoint = Delegated(lambda h: h.requests.stop_with_savepoint)

    gates = Delegated(lambda h: h.driver.gates)
    send_event = Delegated(lambda h: h.driver.send_event)
    received = Delegated(lambda h: h.driver.received)
    events_on_the_way = Delegated(lambda h: h.driver.events_on_the_way)
    confirm_event = Delegated(lambda h: h.driver.confirm_event)
    lose_event = Delegated(lambda h: h.driver.lose_event)
    fail_coordinator = Delegated(lambda h: h.driver.fail_coordinator)
    acknowledge_coordinator = Delegated(lambda h: h.driver.acknowledge_coordinator)

    calls = Delegated(lambda h: h.faults.calls)
    store = Delegated(lambda h: h.faults.store)
    storage = Delegated(lambda h: h.faults.storage)
    storage_at = Delegated(lambda h: h.faults.storage_at)
    fail_next_metadata_write = Delegated(lambda h: h.faults.fail_next_metadata_write)
    die_at_next_metadata_write = Delegated(lambda h: h.faults.die_at_next_metadata_write)
    live_on = Delegated(lambda h: h.faults.live_on)
    fail_next_location = Delegated(lambda h: h.faults.fail_next_location)
    fail_next_deletion = Delegated(lambda h: h.faults.fail_next_deletion)
    damage = Delegated(lambda h: h.faults.damage)
    block_deletions = Delegated(lambda h: h.faults.block_deletions)
    release_deletions = Delegated(lambda h: h.faults.release_deletions)
    fail_next_store = Delegated(lambda h: h.faults.fail_next_store)
    lose_next_store = Delegated(lambda h: h.faults.lose_next_store)
    lose_next_store_answer = Delegated(lambda h: h.faults.lose_next_store_answer)
    fail_next_trigger = Delegated(lambda h: h.faults.fail_next_trigger)

    @property
    def confirm_aborts(self) -> bool:
        """Tasks confirm at once that they stopped writing for an aborted checkpoint."""
        return self.tasks.confirm_aborts

    @confirm_aborts.setter
    def confirm_aborts(self, at_once: bool) -> None:
        self.tasks.confirm_aborts = at_once

    @property
    def confirm_events(self) -> bool:
        """Events of driver-side coordinators arrive at once."""
        return self.driver.confirm_events

    @confirm_events.setter
    def confirm_events(self, at_once: bool) -> None:
        self.driver.confirm_events = at_once
