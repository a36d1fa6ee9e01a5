"""A world: a stream and its successors over one store, one storage and two tables, and everything that happens to them.

Real are coordinator, claim, lease, mailbox, streaming service, barriers, snapshots, channels, restores and sinks.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partialmethod
from pathlib import Path
from typing import Any
from unittest import mock

from dagster_ckpt import CheckpointedPipeline, checkpointed_pipeline, spark_sink, spark_source, spark_stage
from dagster_ckpt.core.config import CheckpointConfig, RestoreOptions
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.core.supervision.ownership import ConcurrentRuns
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.ports import SystemClock
from dagster_ckpt.runtime.attempt_setup import admit_anyone
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.runtime.mailbox import post
from dagster_ckpt.runtime.record_store import RecordStore
from dagster_ckpt.runtime.turn import RunTurn
from dagster_ckpt.spark.attempt.pipeline_setup import PipelineSetup
from dagster_ckpt.spark.attempt.stage_query import StageQuery
from dagster_ckpt.spark.streaming.loop import BarrierLoop, BegunCheckpoint, IsAborted, IsComplete
from dagster_ckpt.spark.streaming.restart import ExponentialDelay
from dagster_ckpt.spark.streaming.running_stage import StreamingSettings
from dagster_ckpt.spark.streaming.service import StreamingService
from dagster_ckpt.testing.faulty import FaultyStorage, FaultyStore
from dagster_ckpt.testing.memory import MemoryCheckpointStorage, MemoryCoordinatorStore
from tests.sim.judge import Finding, Judge
from tests.sim.modules import simulated
from tests.sim.outside import TABLES, Table, TableTarget, Weather
from tests.sim.queries import Reads, RunningQuery, session
from tests.sim.scheduler import Process, Scheduler, Thread, current

NAME = PipelineId("shop")
CHECKPOINTS, SAVEPOINTS = "memory://checkpoints", "memory://savepoints"
QUIET = 400.0
"""Seconds without faults in which everything has to come to its end."""


STEPS = (
    "",
    "",
    "commit",
    "answer to commit",
    "compare_and_set",
    "answer to compare",
    "create",
    "read",
    "list",
    "delete",
)
"""How the steps begin before which a process is struck; empty: all do."""
WHAT = (
    "strike",
    "strike",
    "strike",
    "kill",
    "begin",
    "take over",
    "savepoint",
    "savepoint",
    "stop",
    "restore",
)
"""What happens now and then, beside the weather."""


STORM = (0.1, 0.2, 0.3, 0.4)
"""Shares of calls that fail where faults are to be dense."""


def _never(*_: object) -> Any:
    raise AssertionError("queries are models: no stage function is called")


def pipeline_of(shape: str) -> CheckpointedPipeline:
    """A source, perhaps two stages beside one another, running totals, a table of rows and one by key."""

    @spark_source
    def numbers(spark: Any) -> Any:
        return _never(spark)

    @spark_stage
    def left(numbers: Any) -> Any:
        return _never(numbers)

    @spark_stage
    def right(numbers: Any) -> Any:
        return _never(numbers)

    if shape == "diamond":

        @spark_stage
        def totals(left: Any, right: Any) -> Any:
            return _never(left, right)
    else:

        @spark_stage
        def totals(numbers: Any) -> Any:
            return _never(numbers)

    @spark_sink(to=TableTarget("rows"))
    def rows(feed: Any) -> Any:
        return _never(feed)

    @spark_sink(to=TableTarget("newest"), key=["k"])
    def newest(feed: Any) -> Any:
        return _never(feed)

    @checkpointed_pipeline(name=NAME)
    def shop() -> None:
        read = numbers()
        feed = totals(left(read), right(read)) if shape == "diamond" else totals(read)
        rows(feed)
        newest(feed)

    return shop


def _called(of: Any, played: Any, real: Any, *args: Any, **more: Any) -> Any:
    return played(real, of, *args, **more)


class Lines:
    """A reporter that the trace hears."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name

    def info(self, message: str) -> None:
        self._world.scheduler.note(f"{self._name} says {message}")

    def warn(self, message: str) -> None:
        self._world.scheduler.note(f"{self._name} warns {message}")


class WatchedStore(MemoryCoordinatorStore):
    """The store, which shows every write to the world."""

    def __init__(self, wrote: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self._wrote = wrote

    def compare_and_set(self, pipeline: Any, expected: int, body: str, *rest: Any, **more: Any) -> Any:
        done = super().compare_and_set(pipeline, expected, body, *rest, **more)
        if hasattr(done, "version"):
            self._wrote(json.loads(body))
        return done


class WatchedStorage(MemoryCheckpointStorage):
    """A storage, which shows every deletion to the world."""

    def __init__(self, base_uri: str, deletes: Callable[[str, Any], None]) -> None:
        super().__init__(base_uri)
        self._deletes = deletes

    def delete(self, keys: Any) -> None:
        self._deletes(self.base_uri, keys)
        super().delete(keys)


@dataclass
class Strike:
    """What befalls the process that makes one of the next steps of a kind."""

    step: str
    countdown: int
    is_end: bool
    """It dies; else it stands still for a while."""


class World:
    """One seed's world."""

    def __init__(self, seed: int, folder: Path, *, is_stormy: bool = False) -> None:
        self.seed, self.folder = seed, folder
        self.shares, self.changes = (STORM, 1.0) if is_stormy else ((0.0, 0.02, 0.05, 0.2), 0.5)
        self.scheduler = Scheduler(seed, str(folder))
        self.random = rng = self.scheduler.random
        self.weather = Weather(self.scheduler)
        self.weather.fails = STORM[0] if is_stormy else 0.0
        self.shape = rng.choice(["line", "diamond"])
        self.kept = rng.choice([4, 12, 100])
        unaligned = rng.random() < 0.3
        self.settings: dict[str, Any] = {
            "interval": rng.choice([0.5, 1.0, 3.0]),
            "timeout": rng.choice([5.0, 20.0]),
            "min_pause": rng.choice([0.0, 0.5]),
            "max_concurrent_checkpoints": 1 if unaligned else rng.choice([1, 2]),
            "num_retained": rng.choice([1, 2, 3]),
            "incremental": rng.random() < 0.8,
            "unaligned": unaligned,
            "instant_cuts": rng.random() < 0.5,
            "tolerable_failed_checkpoints": rng.choice([0, 3]),
            "externalized_checkpoint_retention": "retain_on_cancellation",
            "savepoint_dir": SAVEPOINTS,
            "operator_chaining": False,
        }
        self.rate = rng.choice([2.0, 8.0])
        self.ends_at = rng.choice([20.0, 40.0])
        """Moment from which nothing goes wrong any more."""
        self.calls_off = self.ends_at + 5.0
        """Moment from which no row arrives."""
        self.pipeline = pipeline_of(self.shape)
        self.storages = {uri: WatchedStorage(uri, self._deletes) for uri in (CHECKPOINTS, SAVEPOINTS)}
        self.judge = Judge(
            sides=2 if self.shape == "diamond" else 1,
            stages=self.pipeline.stages,
            storages=self.storages,
            note=self.scheduler.note,
        )
        self.store = WatchedStore(self.judge.wrote)
        TABLES.clear()
        for name in ("rows", "newest"):
            (folder / "tables" / name).mkdir(parents=True)
            TABLES[name] = Table(
                name, folder / "tables" / name, self.weather, name == "newest", watch=self.judge.committed
            )
        self.processes: list[Process] = []
        self.threads: list[Thread] = []
        self.strike: Strike | None = None
        self.kills = self.refused = 0
        self.scheduler.on_point = self._on_point

    def _deletes(self, uri: str, keys: Any) -> None:
        self.judge.deletes(uri, keys)

    # --- runs -----------------------------------------------------------------------------------------------------

    def begin(self, *, waits: bool = True, restore: str = "latest", elsewhere: bool = False) -> Process:
        """Start a run, which waits for its turn or takes the pipeline over."""
        number = len(self.processes) + 1
        process = Process(f"run-{number}", self.random.choice([0.0, 0.0, 0.0, -3600.0, 3600.0]))
        self.processes.append(process)
        self.judge.restores += restore != "latest"
        machine = "machine-2" if elsewhere else "machine-1"
        self.threads.append(
            self.scheduler.spawn(process, "main", lambda: self._run(process, waits, restore, machine))
        )
        return process

    def _run(self, process: Process, waits: bool, restore: str, machine: str) -> None:
        lines = Lines(self, process.name)
        store = FaultyStore(self.store, self.weather)
        outside = {uri: FaultyStorage(storage, self.weather) for uri, storage in self.storages.items()}

        def stream(admit: Any) -> Any:
            setup = PipelineSetup(
                pipeline=self.pipeline,
                config=CheckpointConfig.of(**self.settings),
                store=store,
                storage=outside[CHECKPOINTS],
                open_storage=lambda uri: outside[uri],
                spark=lambda: session(self.kept),
                work_dir=self.folder / machine,
                table_dir=self.folder / "tables",
                owner=process.name,
                root=process.name,
                reporter=lines,
                restore=RestoreOptions.of(restore_from=restore),
                storage_retries=2,
                admit=admit,
                clock=SystemClock(),
            )
            strategy = ExponentialDelay(initial=0.5, maximum=4.0, attempts=8)
            service = StreamingService(
                setup=setup, strategy=strategy, settings=StreamingSettings(tidy_tables_every=5.0)
            )
            return service.run()

        turn = RunTurn(
            records=RecordStore(store),
            pipeline=NAME,
            run_id=process.name,
            root=process.name,
            say=lines.info,
            choice=ConcurrentRuns.QUEUE if waits else ConcurrentRuns.TAKE_OVER,
            how_to_stop="stop it",
            clock=SystemClock(),
            sleep=self._sleeps,
        )
        try:
            end = turn.take(stream) if waits else stream(admit_anyone)
            lines.info(f"ended: {end!r}"[:200])
        except CheckpointError as error:
            self.refused += 1
            lines.warn(f"refused: {error}"[:400])
        self._over(process)

    def ask(self, kind: CheckpointKind) -> None:
        """Ask the run that is alive for a snapshot, or for its end with one."""
        number = self.random.getrandbits(32)
        asker = Process(f"asks-{number:x}", 0.0)
        store = FaultyStore(self.store, self.weather)
        request = CheckpointRequest(kind=kind, target=SAVEPOINTS, request_id=f"{number:x}")

        def work() -> None:
            try:
                post(store, NAME, request, clock=SystemClock())
            except CheckpointError as error:
                self.scheduler.note(f"asked in vain: {error}"[:200])

        self.scheduler.spawn(asker, "post", work)

    def _sleeps(self, seconds: float) -> None:
        self.scheduler.wait("turn", seconds)

    @property
    def alive(self) -> list[Process]:
        """Runs that have not ended."""
        return [one for one in self.processes if not one.is_dead]

    @property
    def arrived(self) -> int:
        """Rows that the source has by now."""
        return int(self.rate * min(self.scheduler.now, self.calls_off))

    # --- what happens -----------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Let everything happen. Raises Finding."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(simulated(self.scheduler))
            stack.callback(self._end)
            for of, name, played in (
                (StageQuery, "start", self._started),
                (BarrierLoop, "post", self._posted),
                (CheckpointCoordinator, "acknowledge_stage", self._acknowledged),
            ):
                real = getattr(of, name)
                stack.enter_context(mock.patch.object(of, name, partialmethod(_called, played, real)))
            self.begin()
            while self.scheduler.now < self.ends_at:
                self._go_on(self.scheduler.now + self.random.random() * 4.0)
                self._happen()
            self._come_to_rest()

    def _end(self) -> None:
        for process in self.processes:
            self._over(process)

    def _over(self, process: Process) -> None:
        process.is_dead = True
        for thread in [*process.threads.values()]:
            if thread is not current():
                thread.end()

    def _started(self, real: Any, query: StageQuery, *_: Any, **__: Any) -> RunningQuery:
        """Start the model of a query."""
        assert query.sink_of is not None
        reads = Reads(
            rows=lambda: self.arrived,
            kept=self.kept,
            sides=self.judge.sides,
            tables=query.sink_of.__self__,  # type: ignore[attr-defined]
            step=lambda what: self.scheduler.point(what, self.random.random() * 0.05),
        )
        return RunningQuery(query, self.scheduler, reads)

    def _posted(self, real: Any, loop: BarrierLoop, message: Any) -> None:
        """Lose, delay or double a message of the coordinator to the stages: at most once is all that is promised."""
        is_sent = isinstance(message, (BegunCheckpoint, IsComplete, IsAborted))
        if not is_sent or current() is None or self.random.random() >= self.weather.fails:
            real(loop, message)
            return
        how = self.random.choice(["loses", "delays", "doubles"])
        self.scheduler.note(f"the network {how} {type(message).__name__}")
        if how == "doubles":
            real(loop, message)
        if how != "loses":
            here = current()
            assert here is not None
            self.scheduler.spawn(
                here.process, "message", lambda: real(loop, message), self.random.random() * 3.0
            )

    def _acknowledged(self, real: Any, coordinator: CheckpointCoordinator, ack: Any) -> Any:
        """Say some acknowledgements again, later."""
        here = current()
        if here is not None and self.random.random() < self.weather.fails:
            again = functools.partial(real, coordinator, ack)
            self.scheduler.spawn(here.process, "says it again", again, self.random.random() * 3.0)
        return real(coordinator, ack)

    def _go_on(self, until: float) -> None:
        self.scheduler.run(until, is_over=lambda: bool(self.judge.finding))
        if self.judge.finding:
            raise Finding(self.judge.finding)
        for thread in self.threads:
            if thread.error is not None:
                raise Finding(f"{thread.process.name} ended with {thread.error!r}") from thread.error

    def _happen(self) -> None:
        rng = self.random
        for process in self.alive:
            if rng.random() < 0.2:
                process.stands_until = self.scheduler.now + rng.random() * 25.0
                self.scheduler.note(f"{process.name} is suspended")
        what = rng.choice(WHAT)
        if rng.random() < self.changes:
            self.weather.fails, self.weather.slow = (
                rng.choice(self.shares),
                rng.choice([0.0, 0.05]),
            )
        self.scheduler.note(f"--- {what}")
        match what:
            case "strike":
                step = rng.choice(STEPS)
                self.strike = Strike(step, rng.randrange(1, 12 if step else 1500), is_end=rng.random() < 0.5)
            case "kill" if self.alive:
                self._kill(rng.choice(self.alive))
            case "savepoint":
                self.ask(CheckpointKind.SAVEPOINT)
            case "stop":
                self.ask(CheckpointKind.SYNC_SAVEPOINT_SUSPEND)
            case "begin" | "take over" if len(self.alive) < 3:
                self.begin(waits=what == "begin")
            case "restore" if len(self.alive) < 3:
                record = self.judge.record
                points = [f"chk-{one['checkpoint_id']}" for one in record.get("completed", ())]
                points += [f"savepoint-{one['checkpoint_id']}" for one in record.get("savepoints", ())]
                if points:
                    for process in self.alive:
                        self._kill(process)
                    self.begin(waits=False, restore=rng.choice(points))
        if not self.alive:
            self.begin(elsewhere=rng.random() < 0.3)

    def _kill(self, process: Process) -> None:
        self.kills += 1
        self.scheduler.kill(process)

    def _on_point(self, process: Process, what: str) -> None:
        """Let a process die before a step, or stand there while another run takes the pipeline over."""
        strike = self.strike
        if strike is None or not process.name.startswith("run-") or not what.startswith(strike.step):
            return
        strike.countdown -= 1
        if strike.countdown:
            return
        self.strike = None
        self.scheduler.note(f"{process.name} {'dies' if strike.is_end else 'stands'} before {what}")
        if strike.is_end:
            self._kill(process)
        process.stands_until = self.scheduler.now + 1.0 + self.random.random() * 20.0
        if len(self.alive) < 3:
            self.begin(waits=False)

    def _come_to_rest(self) -> None:
        """Without faults a checkpoint completes, and tables show every row."""
        self.weather.fails = self.weather.slow = 0.0
        self.strike = None
        since = self.judge.record.get("next_id", 1)
        end = self.calls_off + QUIET
        while not self._is_at_rest(since):
            if self.scheduler.now > end:
                raise Finding(f"stuck: {self._where()}")
            if not self.alive:
                self.begin()
            self._go_on(self.scheduler.now + 1.0)
        self.judge.check_savepoints()

    def _is_at_rest(self, since: int) -> bool:
        if self.scheduler.now < self.calls_off:
            return False
        newest = max((one["checkpoint_id"] for one in self.judge.record.get("completed", ())), default=0)
        return (
            newest >= since
            and self.judge.counts(TABLES["rows"])
            == self.judge.counts(TABLES["newest"])
            == [self.arrived] * self.judge.sides
        )

    def _where(self) -> str:
        tables = {name: self.judge.counts(table) for name, table in TABLES.items()}
        return (
            f"{self.arrived} rows have arrived, tables show {tables}, runs {[one.name for one in self.alive]}"
        )


@dataclass
class Played:
    """What became of a seed."""

    seed: int
    events: int
    digest: str
    finding: str = ""
    trace: list[str] = field(default_factory=list)
    told: dict[str, int] = field(default_factory=dict)


def play(seed: int, folder: Path, *, is_stormy: bool = False) -> Played:
    """Play a seed's world in a folder, which is removed."""
    world = World(seed, folder, is_stormy=is_stormy)
    finding = ""
    try:
        world.play()
    except (Finding, AssertionError) as error:
        finding = f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    told = {
        "kills": world.kills,
        "runs": len(world.processes),
        "completed": len(world.judge.known),
        "refused": world.refused,
    }
    scheduler = world.scheduler
    return Played(
        seed,
        scheduler.events,
        scheduler.digest.hexdigest(),
        finding,
        [*scheduler.trace],
        {**told, **world.weather.met},
    )


_WAITS = (" lock", " event", " message", " sleep", " condition", " turn", " start")
"""Ends of the lines that say only who went on."""


def shortened(trace: list[str], lines: int) -> list[str]:
    """Return the last lines of a trace that tell what somebody did."""
    return [line[:200] for line in trace if not line.endswith(_WAITS) and " answer to " not in line][-lines:]
