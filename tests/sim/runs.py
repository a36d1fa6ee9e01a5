"""Runs of a world: streams, epochs in one process or in one for each op, and snapshots of a pipeline that is idle.

They are what a plain program, and Dagster's ops with a process each, make of the library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from dagster_ckpt import CheckpointedPipeline
from dagster_ckpt.core.config import CheckpointConfig, RestoreOptions
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.core.supervision.ownership import ConcurrentRuns, OwnerState
from dagster_ckpt.errors import CheckpointError, Fenced
from dagster_ckpt.ports import SystemClock
from dagster_ckpt.runtime.attempt_setup import Admit, Ownership, admit_anyone
from dagster_ckpt.runtime.record_store import RecordStore
from dagster_ckpt.runtime.turn import RunTurn, StillAlive, unknown_state
from dagster_ckpt.spark.attempt.pipeline_setup import PipelineSetup
from dagster_ckpt.spark.epoch.attempt import EpochAttempt
from dagster_ckpt.spark.epoch.run import FailRun, RetryStage
from dagster_ckpt.spark.streaming.restart import ExponentialDelay
from dagster_ckpt.spark.streaming.running_stage import StreamingSettings
from dagster_ckpt.spark.streaming.service import StreamingService
from dagster_ckpt.testing.faulty import FaultyStorage, FaultyStore
from tests.sim.judge import Judge
from tests.sim.outside import Table
from tests.sim.queries import session
from tests.sim.scheduler import Process

if TYPE_CHECKING:
    from tests.sim.world import World

CHECKPOINTS, SAVEPOINTS = "memory://checkpoints", "memory://savepoints"
RESTORE, COMPLETE = "restore", "complete"
RETRIES = 2
"""How often a stage is tried again where storage fails."""


class Lines:
    """A reporter that the trace hears."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name

    def info(self, message: str) -> None:
        self._world.scheduler.note(f"{self._name} says {message}")

    def warn(self, message: str) -> None:
        self._world.scheduler.note(f"{self._name} warns {message}")


@dataclass
class Branch:
    """A pipeline of the world, with all that is its own: the first one, or a fork of that."""

    name: PipelineId
    pipeline: CheckpointedPipeline
    tables: Mapping[str, Table]
    judge: Judge
    restore: dict[str, Any] = field(default_factory=dict)
    """What its runs begin from, until one of them has a checkpoint, or was refused."""
    processes: list[Process] = field(default_factory=list)
    last: Run | None = None
    is_given_up: bool = False
    """A fork that was told to begin elsewhere."""

    @property
    def alive(self) -> list[Process]:
        """Processes of its runs that have not ended."""
        return [one for one in self.processes if not one.is_dead]


@dataclass(kw_only=True)
class Run:
    """A run, in whichever of its processes; ``waits``: for its turn, else it takes the pipeline over."""

    world: World
    branch: Branch
    name: str
    kind: str
    waits: bool
    restore: Mapping[str, Any]
    machine: str
    root: str = ""
    over: set[str] = field(default_factory=set)
    """Ops that have ended well, in this run or the one that it executes again."""
    begun: set[str] = field(default_factory=set)

    def start(self) -> Process:
        """Begin its first process."""
        if self.kind != "ops":
            return self._spawn("main", getattr(self, f"_{self.kind}"))
        return self._begin_op(self.first[0])

    # --- ops with a process each --------------------------------------------------------------------------------

    @property
    def before(self) -> dict[str, set[str]]:
        """Every op and those it comes after."""
        pipeline = self.branch.pipeline
        stages = {str(uid): {*map(str, pipeline.upstream[uid])} or {RESTORE} for uid in pipeline.stages}
        ends = {str(uid) for uid in pipeline.stages if not pipeline.consumers(uid)}
        return {RESTORE: set(), **stages, COMPLETE: ends}

    @property
    def first(self) -> list[str]:
        """Ops that could begin now, and have not."""
        left = self.before.keys() - self.over - self.begun
        return sorted(op for op in left if self.before[op] <= self.over)

    def _begin_op(self, op: str, tried: int = 0, after: float = 0.0) -> Process:
        opens = not self.begun
        self.begun.add(op)
        return self._spawn(op, lambda process: self._op(process, op, tried, opens=opens), after)

    def _op(self, process: Process, op: str, tried: int, *, opens: bool) -> None:
        attempt = self._taken(process, EpochAttempt, opens or self._refuse)
        try:
            self._work(attempt, op, tried)
        except RetryStage:
            attempt.pass_on()
            if tried >= RETRIES:
                raise
            self._begin_op(op, tried + 1, 0.5 * 2**tried)
            return
        except BaseException as error:
            attempt.close_after_failure(error)
            raise
        attempt.pass_on()
        self.over.add(op)
        for one in self.first:
            self._begin_op(one)

    def _work(self, attempt: EpochAttempt, op: str, tried: int) -> None:
        match op:
            case "restore":
                _ = attempt.directory
            case "complete":
                attempt.complete()
            case uid:
                epoch = attempt.epoch(has_turn=lambda one: one == uid)
                epoch.run_stage(uid, retries_left=max(0, RETRIES - tried))  # type: ignore[arg-type]

    def _refuse(self, record: Any) -> NoReturn:
        raise Fenced(f"run {self.name} was fenced by {record.owner}")

    # --- runs of one process ------------------------------------------------------------------------------------

    def _epoch(self, process: Process) -> None:
        attempt = self._taken(process, lambda setup: EpochAttempt(setup, ownership=Ownership.NEW_ATTEMPT))
        try:
            _ = attempt.directory
            attempt.run_all(retries=RETRIES, pause=0.5)
            attempt.complete()
        except BaseException as error:
            attempt.close_after_failure(error)
            raise
        attempt.close_after_failure()

    def _snapshot(self, process: Process) -> None:
        attempt = self._taken(process, EpochAttempt, patience=20.0)
        try:
            attempt.take_snapshot(
                CheckpointRequest(kind=CheckpointKind.SAVEPOINT, target=SAVEPOINTS, request_id=self.name)
            )
        finally:
            attempt.close_after_failure()

    def _stream(self, process: Process) -> None:
        strategy = ExponentialDelay(initial=0.5, maximum=4.0, attempts=8)
        settings = StreamingSettings(tidy_tables_every=5.0)
        end = self._taken(
            process, lambda setup: StreamingService(setup=setup, strategy=strategy, settings=settings).run()
        )
        Lines(self.world, self.name).info(f"ended: {end!r}"[:200])

    # --- parts ----------------------------------------------------------------------------------------------------

    def _spawn(self, name: str, work: Callable[[Process], None], after: float = 0.0) -> Process:
        world = self.world
        process = Process(self.name, world.random.choice([0.0, 0.0, 0.0, -3600.0, 3600.0]), is_run=True)
        self.branch.processes.append(process)

        def main() -> None:
            try:
                work(process)
            except (CheckpointError, FailRun, RetryStage) as error:
                world.refused += 1
                Lines(world, self.name).warn(f"refused: {error}"[:400])
                if not isinstance(error, StillAlive):
                    self.branch.restore = {}
                self.branch.is_given_up |= "never published the rows that the snapshot" in str(error)
            world.over(process)

        world.threads.append(world.scheduler.spawn(process, name, main, after))
        return process

    def _taken(
        self,
        process: Process,
        begin: Callable[[PipelineSetup], Any],
        admit: Admit | bool = True,
        *,
        patience: float | None = None,
    ) -> Any:
        """Begin in the run's turn, at once where it takes over, or as the process of an op that admits nobody."""
        world, store = self.world, FaultyStore(self.world.store, self.world.weather)
        if callable(admit):
            return begin(self._setup(store, admit))
        if not self.waits:
            return begin(self._setup(store, admit_anyone))
        turn = RunTurn(
            records=RecordStore(store),
            pipeline=self.branch.name,
            run_id=self.name,
            root=self.root or self.name,
            say=Lines(world, self.name).info,
            choice=ConcurrentRuns.QUEUE,
            how_to_stop="stop it",
            clock=SystemClock(),
            sleep=lambda seconds: world.scheduler.wait("turn", seconds) and None,
            patience=patience,
            state_of=self._seen if "ops" in world.runs else unknown_state,
        )
        return turn.take(lambda one: begin(self._setup(store, one)))

    def _seen(self, name: str) -> OwnerState:
        """What Dagster knows of a run: it ends with the last of its processes."""
        found = [one.is_dead for one in self.branch.processes if one.name == name]
        return OwnerState.FAILED if found and all(found) else OwnerState.ALIVE

    def _setup(self, store: Any, admit: Admit) -> PipelineSetup:
        world = self.world
        outside = {uri: FaultyStorage(storage, world.weather) for uri, storage in world.storages.items()}
        config = CheckpointConfig.of(**world.settings)
        return PipelineSetup(
            pipeline=self.branch.pipeline,
            config=config if self.kind == "stream" else config.of_epoch,
            store=store,
            storage=outside[CHECKPOINTS],
            open_storage=lambda uri: outside[uri],
            spark=lambda: session(world.kept),
            work_dir=world.folder / self.machine,
            table_dir=world.folder / "tables",
            owner=self.name,
            root=self.root or self.name,
            reporter=Lines(world, self.name),
            restore=RestoreOptions.of(**self.restore),
            storage_retries=2,
            admit=admit,
            clock=SystemClock(),
        )
