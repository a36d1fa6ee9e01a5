"""A world: a pipeline's runs and perhaps a fork's, over one store, one storage and tables, and what happens to them.

Real are coordinator, claim, lease, mailbox, epochs, streaming service, barriers, snapshots, channels, restores, forks
and sinks: of versioned tables, and of SQL tables, whose rows are staged.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partialmethod
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from dagster_ckpt import CheckpointedPipeline, checkpointed_pipeline, spark_sink, spark_source, spark_stage
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.ports import SystemClock
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.runtime.mailbox import NoRunningStream, post
from dagster_ckpt.spark.attempt.stage_query import StageQuery
from dagster_ckpt.spark.streaming.loop import BarrierLoop, BegunCheckpoint, IsAborted, IsComplete
from dagster_ckpt.testing.faulty import FaultyStore
from dagster_ckpt.testing.memory import MemoryCheckpointStorage, MemoryCoordinatorStore
from tests.sim.database import DatabaseTable, databases
from tests.sim.judge import Finding, Judge
from tests.sim.modules import simulated
from tests.sim.outside import TABLES, Table, Weather
from tests.sim.queries import Reads, RunningQuery
from tests.sim.runs import CHECKPOINTS, SAVEPOINTS, Branch, Run
from tests.sim.scheduler import Process, Scheduler, Thread, current

NAME = "shop"
QUIET = 400.0
"""Seconds without faults in which everything has to come to its end."""


STEPS = (
    "",
    "",
    "commit",
    "answer to commit",
    "begin in",
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
    "fork",
)
"""What happens now and then, beside the weather."""


STORM = (0.1, 0.2, 0.3, 0.4)
"""Shares of calls that fail where faults are to be dense."""


def _never(*_: object) -> Any:
    raise AssertionError("queries are models: no stage function is called")


def pipeline_of(shape: str, name: str, tables: Mapping[str, Table]) -> CheckpointedPipeline:
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

    @spark_sink(to=tables["rows"].target)
    def rows(feed: Any) -> Any:
        return _never(feed)

    @spark_sink(to=tables["newest"].target, key=["k"])
    def newest(feed: Any) -> Any:
        return _never(feed)

    @checkpointed_pipeline(name=name)
    def shop() -> None:
        read = numbers()
        feed = totals(left(read), right(read)) if shape == "diamond" else totals(read)
        rows(feed)
        newest(feed)

    return shop


def _called(of: Any, played: Any, real: Any, *args: Any, **more: Any) -> Any:
    return played(real, of, *args, **more)


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
        kinds = Random(f"kinds of {seed}")
        self.runs = kinds.choice([("stream",), ("epoch", "ops"), ("stream", "epoch", "ops")])
        """Kinds of its runs."""
        self.databases = kinds.choice([(), ("shop",), ("rows", "newest")])
        """Those that its tables lie in; none: they have versions."""
        self.is_forked = kinds.random() < 0.4
        self.storages = {uri: WatchedStorage(uri, self._deletes) for uri in (CHECKPOINTS, SAVEPOINTS)}
        self.store = WatchedStore(self._wrote)
        self.threads: list[Thread] = []
        self.strike: Strike | None = None
        self.kills = self.refused = self.begun = 0
        self.scheduler.on_point = self._on_point
        TABLES.clear()
        self.branches: list[Branch] = []
        self.main = self._branch(NAME)

    def _branch(self, name: str, **more: Any) -> Branch:
        """Add a pipeline of this name."""
        tables = {uid: self._table(name, uid) for uid in ("rows", "newest")}
        pipeline = pipeline_of(self.shape, name, tables)
        judge = Judge(
            sides=2 if self.shape == "diamond" else 1,
            stages=pipeline.stages,
            storages=self.storages,
            tables=tables,
            note=self.scheduler.note,
        )
        for table in tables.values():
            table.watch = judge.committed
        self.branches.append(Branch(PipelineId(name), pipeline, tables, judge, **more))
        return self.branches[-1]

    def _table(self, pipeline: str, uid: str) -> Table:
        name = uid if pipeline == NAME else f"{pipeline}_{uid}"
        folder = self.folder / "tables" / name
        folder.mkdir(parents=True)
        if not self.databases:
            table = TABLES[name] = Table(name, folder, self.weather, uid == "newest")
            return table
        file = self.folder / "tables" / f"{uid if uid in self.databases else NAME}.db"
        return DatabaseTable(name, folder, self.weather, uid == "newest", file=file)

    def _tables(self) -> list[Table]:
        return [table for branch in self.branches for table in branch.tables.values()]

    def _deletes(self, uri: str, keys: Any) -> None:
        for branch in self.branches:
            branch.judge.deletes(uri, keys)

    def _wrote(self, record: dict[str, Any]) -> None:
        next(one for one in self.branches if one.name == record["pipeline"]).judge.wrote(record)

    # --- runs -----------------------------------------------------------------------------------------------------

    def begin(
        self,
        branch: Branch,
        *,
        waits: bool = True,
        restore: str = "",
        elsewhere: bool = False,
        kind: str = "",
    ) -> Process:
        """Start a run, which waits for its turn or takes the pipeline over."""
        self.begun += 1
        branch.judge.restores += bool(restore)
        is_new = not branch.judge.record.get("completed")
        run = Run(
            world=self,
            branch=branch,
            name=f"run-{self.begun}",
            kind=kind or self.random.choice(self.runs),
            waits=waits,
            restore={"restore_from": restore} if restore else branch.restore if is_new else {},
            machine="machine-2" if elsewhere else "machine-1",
        )
        before, branch.last = branch.last, run
        goes_on = before is not None and before.kind == run.kind == "ops" and not restore
        if before is not None and goes_on and self.random.random() < 0.5:
            run.over, run.root = {*before.over}, before.root or before.name
            if len(run.first) != 1:  # nobody could tell which of them takes the pipeline over
                run.over.clear()
        return run.start()

    def ask(self, branch: Branch, kind: CheckpointKind) -> None:
        """Ask the run that is alive for a snapshot, or for its end with one; of an idle pipeline it is taken."""
        number = self.random.getrandbits(32)
        asker = Process(f"asks-{number:x}", 0.0)
        store = FaultyStore(self.store, self.weather)
        request = CheckpointRequest(kind=kind, target=SAVEPOINTS, request_id=f"{number:x}")

        def work() -> None:
            try:
                answer = post(store, branch.name, request, clock=SystemClock())
                if isinstance(answer, NoRunningStream) and kind is CheckpointKind.SAVEPOINT:
                    self.begin(branch, kind="snapshot")
            except CheckpointError as error:
                self.scheduler.note(f"asked in vain: {error}"[:200])

        self.scheduler.spawn(asker, "post", work)

    def fork(self) -> None:
        """Begin a fork of the pipeline, at one of its savepoints."""
        points = self.main.judge.record.get("savepoints", ())
        if not points or len(self.branches) > 1:
            return
        chosen = self.random.choice(points)
        uri = f"{chosen['location']['base_uri']}/{chosen['location']['folder']}"
        branch = self._branch("copy", restore={"restore_from": uri, "fork": True})
        branch.judge.known[0] = self.main.judge.known[chosen["checkpoint_id"]]
        self.begin(branch)

    @property
    def wanted(self) -> list[Branch]:
        """Pipelines that somebody goes on with."""
        return [one for one in self.branches if not one.is_given_up]

    @property
    def alive(self) -> list[Process]:
        """Processes of runs that have not ended."""
        return [one for branch in self.branches for one in branch.alive]

    @property
    def arrived(self) -> int:
        """Rows that the source has by now."""
        return int(self.rate * min(self.scheduler.now, self.calls_off))

    # --- what happens -----------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Let everything happen. Raises Finding."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(simulated(self.scheduler))
            stack.enter_context(databases(self.weather, self._tables))
            stack.callback(self._end)
            for of, name, played in (
                (StageQuery, "start", self._started),
                (BarrierLoop, "post", self._posted),
                (CheckpointCoordinator, "acknowledge_stage", self._acknowledged),
            ):
                real = getattr(of, name)
                stack.enter_context(mock.patch.object(of, name, partialmethod(_called, played, real)))
            self.begin(self.main)
            while self.scheduler.now < self.ends_at:
                self._go_on(self.scheduler.now + self.random.random() * 4.0)
                self._happen()
            self._come_to_rest()

    def _end(self) -> None:
        for process in self.alive:
            self.over(process)

    def over(self, process: Process) -> None:
        """End a process in order."""
        process.is_dead = True
        for thread in [*process.threads.values()]:
            if thread is not current():
                thread.end()

    def _started(self, real: Any, query: StageQuery, *_: Any, **trigger: Any) -> RunningQuery:
        """Start the model of a query."""
        assert query.sink_of is not None
        reads = Reads(
            rows=lambda: self.arrived,
            kept=self.kept,
            sides=self.main.judge.sides,
            tables=query.sink_of.__self__,  # type: ignore[attr-defined]
            step=lambda what: self.scheduler.point(what, self.random.random() * 0.05),
        )
        is_bounded = bool(trigger.get("available_now"))
        return RunningQuery(query, self.scheduler, reads, is_bounded=is_bounded)

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
        self.scheduler.run(until, is_over=lambda: any(one.judge.finding for one in self.branches))
        for branch in self.branches:
            if branch.judge.finding:
                raise Finding(branch.judge.finding)
        for thread in self.threads:
            if thread.error is not None:
                raise Finding(f"{thread.process.name} ended with {thread.error!r}") from thread.error

    def _happen(self) -> None:
        rng = self.random
        for process in self.alive:
            if rng.random() < 0.2:
                process.stands_until = self.scheduler.now + rng.random() * 25.0
                self.scheduler.note(f"{process.name} is suspended")
        what, branch = rng.choice(WHAT), rng.choice(self.branches)
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
                self.ask(branch, CheckpointKind.SAVEPOINT)
            case "stop":
                self.ask(branch, CheckpointKind.SYNC_SAVEPOINT_SUSPEND)
            case "begin" | "take over" if len(branch.alive) < 3:
                self.begin(branch, waits=what == "begin")
            case "restore" if len(branch.alive) < 3:
                record = branch.judge.record
                points = [f"chk-{one['checkpoint_id']}" for one in record.get("completed", ())]
                points += [f"savepoint-{one['checkpoint_id']}" for one in record.get("savepoints", ())]
                if points:
                    for process in branch.alive:
                        self._kill(process)
                    self.begin(branch, waits=False, restore=rng.choice(points))
            case "fork" if self.is_forked:
                self.fork()
        for one in self.wanted:
            if not one.alive:
                self.begin(one, elsewhere=rng.random() < 0.3)

    def _kill(self, process: Process) -> None:
        self.kills += 1
        self.scheduler.kill(process)

    def _on_point(self, process: Process, what: str) -> None:
        """Let a process die before a step, or stand there while another run takes the pipeline over."""
        strike = self.strike
        if strike is None or not process.is_run or not what.startswith(strike.step):
            return
        strike.countdown -= 1
        if strike.countdown:
            return
        self.strike = None
        self.scheduler.note(f"{process.name} {'dies' if strike.is_end else 'stands'} before {what}")
        if strike.is_end:
            self._kill(process)
        process.stands_until = self.scheduler.now + 1.0 + self.random.random() * 20.0
        branch = next(one for one in self.branches if process in one.processes)
        if len(branch.alive) < 3:
            self.begin(branch, waits=False)

    def _come_to_rest(self) -> None:
        """Without faults a checkpoint completes, and tables show every row."""
        self.weather.fails = self.weather.slow = 0.0
        self.strike = None
        since = {one.name: one.judge.record.get("next_id", 1) for one in self.branches}
        end = self.calls_off + QUIET
        while not all(self._is_at_rest(branch, since[branch.name]) for branch in self.wanted):
            if self.scheduler.now > end:
                raise Finding(f"stuck: {self._where()}")
            for branch in self.wanted:
                if not branch.alive:
                    self.begin(branch)
            self._go_on(self.scheduler.now + 1.0)
        for branch in self.branches:
            branch.judge.check_savepoints()

    def _is_at_rest(self, branch: Branch, since: int) -> bool:
        if self.scheduler.now < self.calls_off:
            return False
        judge = branch.judge
        newest = max((one["checkpoint_id"] for one in judge.record.get("completed", ())), default=0)
        return newest >= since and all(
            judge.counts(table) == [self.arrived] * judge.sides for table in branch.tables.values()
        )

    def _where(self) -> str:
        tables = {t.name: one.judge.counts(t) for one in self.branches for t in one.tables.values()}
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
        "runs": world.begun,
        "completed": sum(len(one.judge.known) for one in world.branches),
        "forks": len(world.branches) - 1,
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
