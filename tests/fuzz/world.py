"""World of a drawn pipeline: its story is played by real runs, and all its tables are compared with the model's."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from dagster_ckpt import CheckpointCoordinatorResource, CheckpointKind, run_epoch, run_stream
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.operations.care.requeue import order_requeue
from dagster_ckpt.ports import SystemClock
from dagster_ckpt.programs import hosted, turn_of
from dagster_ckpt.runtime.mailbox import post
from dagster_ckpt.spark.epoch.attempt import EpochAttempt
from dagster_ckpt.spark.streaming.restart import NoRestart
from dagster_ckpt.testing.faults import SimulatedCrash
from tests.attack.judge import Verdict
from tests.attack.outsides import Kind
from tests.fuzz.built import built, target
from tests.fuzz.drawn import (
    ACTIONS,
    CONF,
    NO_JUDGES,
    STATEFUL,
    Drawn,
    Op,
    Output,
    Stage,
    What,
    judges,
    may_fail,
    may_judge,
)
from tests.fuzz.model import Model, quarantine_of
from tests.fuzz.tables import FOREIGN, add_foreign_row, compact, kept_in, put_file, rows_in
from tests.fuzz.values import Row, rows_of_feed
from tests.records import find_record
from tests.spark.crashing import crash_before_change

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt import CheckpointedPipeline

Tables = dict[int, Counter[Row]]
Kepts = dict[str, Counter[tuple[int, str, str]]]
PATIENCE = 240.0
"""Seconds in which a stream has to come further."""


class Finding(Exception):
    """A step ended as it may not."""

    def __init__(self, verdict: Verdict, said: str) -> None:
        super().__init__(f"{verdict}: {said}")
        self.verdict = verdict


@dataclass
class World:
    """One deployment, as far as its story has come."""

    drawn: Drawn
    spark: SparkSession
    folder: Path
    may_be: list[Model] = field(default_factory=lambda: [Model()])
    """What it holds; several where a crash leaves open which."""
    snapshots: dict[str, Model] = field(default_factory=dict)
    files: dict[int, tuple[int, list[Row]]] = field(default_factory=dict)
    """Every file of the sources, by number: of which source, and its rows."""
    feeds: int = 0
    changes: int = 1
    """Changes of files that the last run made: a crash is drawn among as many."""
    forks: int = 0
    candidates: list[Model] = field(default_factory=list)
    """What may be once the run that is on has ended."""
    taken: dict[int, set[str]] = field(default_factory=dict)
    ordered: set[str] = field(default_factory=set)
    """Quarantines whose rows go through their stage with its next batch."""
    names: set[str] = field(default_factory=set)
    """Of quarantines that there were."""
    unknown: set[str] = field(default_factory=set)
    """Snapshots that a stream took on its way."""
    said: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def play(self) -> None:
        """Play the whole story. Raises Finding."""
        for name, value in self.drawn.conf.items():
            self.spark.conf.set(name, value)
        self.names = {quarantine_of(one) for one in _keeping(self.drawn)}
        for step in self.drawn.steps:
            self.said.append(f"{step.what}:{step.salt}")
            getattr(self, PLAYS[step.what].__name__)(Random(step.salt))
        if self.said[-1].startswith("refused"):
            raise Finding(Verdict.STUCK, self.said[-1])

    # --- steps -------------------------------------------------------------------------------------------------------

    def epoch(self, dice: Random) -> None:
        """Run an epoch on new rows."""
        self.feed(dice)
        self._settled(self._run)

    def crash(self, dice: Random) -> None:
        """Let an epoch die before one of its changes of files; the next one is exact."""
        self.feed(dice)
        self._dies(dice, {})
        self._settled(self._run)

    def savepoint(self, dice: Random) -> None:
        """Take a savepoint of the idle pipeline."""
        request = CheckpointRequest(kind=CheckpointKind.SAVEPOINT, request_id=f"savepoint-{self.feeds}")

        def take() -> None:
            with hosted(self.pipeline, coordinator=self.coordinator, spark=self.spark) as host:
                attempt = turn_of(host).take(host.epoch)
                assert isinstance(attempt, EpochAttempt)
                attempt.take_snapshot(request)

        self._settled(take, reads=False)

    def stream(self, dice: Random) -> None:
        """Let a stream run until it has caught up, and end it: between two batches, or with a savepoint."""
        self.feed(dice)
        stops = dice.choice(("stopped", "savepoint"))
        self.said.append(stops)
        known = set(self._keys())

        def run() -> None:
            with self._streaming(NoRestart()) as (stream, stopping):
                self._caught_up(stream)
                if stops == "savepoint":
                    self._ask_to_stop()
                else:
                    stopping.set()

        self._settled(run)
        self._forget_on_the_way(known)

    def crashed_stream(self, dice: Random) -> None:
        """Let a stream die before one of its changes of files; the next epoch is exact."""
        self.feed(dice)
        self.candidates = self._read()
        number = dice.randrange(2 * self.changes)
        self.said.append(f"dies before change {number}")
        known = set(self._keys())
        dying = crash_before_change(number, self.folder, in_threads=RuntimeError)
        try:
            with dying, self._streaming(NoRestart()) as (stream, stopping):
                self._caught_up(stream)
                stopping.set()
        except Finding:
            raise
        except (Exception, SimulatedCrash) as error:
            self.said.append(f"died: {type(error).__name__}")
        for query in self.spark.streams.active:
            query.stop()
        self._settled(self._run)
        self._forget_on_the_way(known)

    def _forget_on_the_way(self, known: set[str]) -> None:
        new = [key for key in self._keys() if key not in known]
        self.unknown.update(new[:-1])
        self._note_snapshots()

    @contextlib.contextmanager
    def _streaming(self, strategy: Any) -> Iterator[tuple[threading.Thread, threading.Event]]:
        """Yield the thread of a stream, and what stops it. Raises what it ended by, and Finding where it never ends."""
        stopping, errors = threading.Event(), list[BaseException]()

        def stream() -> None:
            try:
                run_stream(
                    self.pipeline,
                    coordinator=self.coordinator,
                    spark=self.spark,
                    settings={"interval": 0.5},
                    strategy=strategy,
                    stopping=stopping,
                )
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=stream, daemon=True)
        thread.start()
        try:
            yield thread, stopping
            thread.join(PATIENCE)
        finally:
            stopping.set()
            thread.join(PATIENCE)
            if thread.is_alive():
                raise Finding(Verdict.STUCK, f"a stream does not end: {stack_of(thread)}")
        if errors:
            raise errors[0]

    def _caught_up(self, stream: threading.Thread) -> None:
        """Wait until the tables show all that was read. Raises Finding where they never do."""
        until = time.monotonic() + PATIENCE
        while stream.is_alive():
            try:
                self._the_one(self.candidates)
            except Finding:
                if time.monotonic() > until:
                    raise
            except Exception:
                if time.monotonic() > until:
                    raise
            else:
                return
            time.sleep(0.2)

    def _ask_to_stop(self) -> None:
        request = CheckpointRequest(
            kind=CheckpointKind.SYNC_SAVEPOINT_SUSPEND, request_id=f"stop-{self.feeds}"
        )
        with closing(self.coordinator.model_copy().store()) as store:
            post(store, PipelineId(self.pipeline.name), request, clock=SystemClock())

    def restore(self, dice: Random) -> None:
        """Restore any snapshot there is, and run on."""
        if (key := self._snapshot(dice)) is None:
            return
        if dice.random() < 0.5:
            self.feed(dice)
        before, self.may_be = self.may_be, [self._restored(key)]
        if not self._settled(lambda: self._run(self._options(key))):
            self.may_be = before

    def crashed_restore(self, dice: Random) -> None:
        """Let a restore die; what comes next is of the snapshot or of before."""
        if (key := self._snapshot(dice)) is None:
            return
        self._dies(dice, self._options(key))
        self.may_be = [*self.may_be, self._restored(key)]
        if not self._settled(self._run) and (functions := self._options(key)["keep_rows_of"]):
            self._settled(lambda: self._run({"keep_rows_of": functions}))  # the way out that was printed

    def fork(self, dice: Random) -> None:
        """Fork it from any snapshot, and perhaps the fork; its own tables stay as they are."""
        if (key := self._snapshot(dice)) is None or key == "none":
            return
        uri = next(one.location.uri for one in self._known() if key.endswith(f"-{one.checkpoint_id}"))
        model = self.snapshots[key].copy()
        if (fork := self._forked(self.pipeline, uri, model)) is None or dice.random() < 0.5:
            return
        self.said.append("the fork again, and a fork of it")
        self.feed(dice)
        if self._runs_beside(fork, {}, model):
            newest = max(self._known(fork.name), key=lambda one: one.checkpoint_id)
            self._forked(fork, newest.location.uri, model)

    def _forked(self, of: CheckpointedPipeline, uri: str, model: Model) -> CheckpointedPipeline | None:
        """Fork a pipeline from a snapshot that holds the model, and return the fork; None where it was refused."""
        self.forks += 1
        place = self.folder / f"fork_{self.forks}"
        sinks = {one.uid: target(one, place) for _, one in self.drawn.sinks}
        fork = of.fork(f"fork_{self.forks}", table_dir=str(place / "tables"), sinks=sinks)
        return fork if self._runs_beside(fork, {"restore_from": uri, "fork": True}, model) else None

    def _runs_beside(self, fork: CheckpointedPipeline, restore: Mapping[str, Any], model: Model) -> bool:
        """Run a fork on all files, compare its tables, and tell whether it was not refused."""
        before, kept, place = self._tables(), self._quarantines(), self.folder / f"fork_{self.forks}"
        refusal = self._refusal(lambda: self._run(restore, fork))
        if self._tables() != before or self._quarantines() != kept:
            raise Finding(Verdict.SILENT, f"a fork changed its origin: {self._told(before)}")
        if refusal:
            self._refused(refusal)
            return False
        model.process(self.drawn, self.files)
        for number, output in self.drawn.sinks:
            if output.kind is not Kind.FUNCTION:
                self._compare(number, rows_in(self.drawn, output, place), model, f"fork {self.forks}")
        names = [quarantine_of(one) for one in _keeping(self.drawn)]
        found = {name: kept_in(place / "tables" / "quarantine" / name) for name in names}
        _compare_kept(found, model, f"fork {self.forks}")
        return True

    def rename(self, dice: Random) -> None:
        """Give a stage or a sink another name."""
        if dice.random() < 0.4:
            number, one = dice.choice(self.drawn.sinks)
            new = replace(one, uid=f"{one.uid}_x", previous=(one.uid, *one.previous))
            outputs = tuple(new if i == number else other for i, other in enumerate(self.drawn.outputs))
            self._changed(replace(self.drawn, outputs=outputs), dice)
            return
        stage = dice.choice(self.drawn.stages)
        previous = (stage.uid, *stage.previous)
        self._changed(self.drawn.with_stage(stage.uid, uid=f"{stage.uid}_x", previous=previous), dice)

    def change(self, dice: Random) -> None:
        """Change what a stage does, or how much of its input it reads at once."""
        chosen = dice.choice(self.drawn.stages)
        if chosen.op in (Op.MAP, Op.FILTER):
            self._changed(self.drawn.with_stage(chosen.uid, number=dice.randint(2, 9)), dice)
        else:
            self._changed(self.drawn.with_stage(chosen.uid, at_once=dice.choice((0, 1, 3))), dice)

    def partitions(self, dice: Random) -> None:
        """Give a stage with state another number of partitions."""
        among = [one for one in self.drawn.stages if one.op in STATEFUL and one.partitions is not None]
        if among:
            chosen = dice.choice(among)
            self._changed(self.drawn.with_stage(chosen.uid, partitions=dice.choice((1, 2, 3, 4))), dice)

    def setting(self, dice: Random) -> None:
        """Go on with other settings of Spark."""
        for name in dice.sample(sorted(CONF), k=dice.randint(1, 4)):
            value = dice.choice(CONF[name])
            self.said.append(f"{name}={value}")
            self.spark.conf.set(name, value)
        self.epoch(dice)

    def others(self, dice: Random) -> None:
        """Let others write to a table, or tidy it up."""
        _, output = dice.choice(self.drawn.sinks)
        if dice.random() < 0.4:
            compact(output, self.folder)
        elif not output.key:
            add_foreign_row(output, self.folder)
        self.epoch(dice)

    def judge(self, dice: Random) -> None:
        """Take conditions up, give them up, or ask something else, of a stage or sink."""
        among = [
            one
            for one in (*self.drawn.stages, *(one for _, one in self.drawn.sinks))
            if may_judge(self.drawn, one)
        ]
        if not among:
            return
        one = dice.choice(among)
        chosen = NO_JUDGES if dice.random() < 0.4 else judges(dice, may_fail=may_fail(one))
        if chosen.keeps and one.judges.keeps:
            chosen = replace(chosen, name=one.judges.name)
        elif chosen.keeps and quarantine_of(replace(one, judges=chosen)) in self.names:
            chosen = replace(chosen, name=f"again_{len(self.names)}")
        self.said.append(f"{one.uid}: {one.judges} -> {chosen}")
        self.names |= {quarantine_of(replace(one, judges=chosen))} if chosen.keeps else set()
        if isinstance(one, Stage):
            self._changed(self.drawn.with_stage(one.uid, judges=chosen), dice)
        else:
            outputs = [replace(o, judges=chosen) if o is one else o for o in self.drawn.outputs]
            self._changed(replace(self.drawn, outputs=tuple(outputs)), dice)

    def requeue(self, dice: Random) -> None:
        """Order all rows of all quarantines through their stages, which may not depend on their order."""
        simple = {"string", "bigint", "int", "boolean"}
        closes = any(one.op is Op.CLOSED for one in self.drawn.stages)
        fails = any(one.judges.on_error for one in (*self.drawn.stages, *self.drawn.outputs))
        keeping = _keeping(self.drawn)
        if closes or not keeping or (fails and not {self.drawn.key_type, self.drawn.value_type} <= simple):
            return
        if dice.random() < 0.5:
            one = dice.choice(keeping)
            chosen = replace(
                one.judges, expect=tuple((name, dice.choice(ACTIONS)) for name, _ in one.judges.expect)
            )
            if chosen.keeps and isinstance(one, Stage):
                self.drawn = self.drawn.with_stage(one.uid, judges=chosen)
        refusal = self._refusal(lambda: order_requeue(self.pipeline, self.coordinator))
        if refusal:
            self._refused(refusal)
            return
        self.ordered = {quarantine_of(one) for one in keeping}
        self.epoch(dice)

    def layout(self, dice: Random) -> None:
        """Let a stage have a query of its own, or run in its reader's again."""
        one = dice.choice(self.drawn.stages)
        self.said.append(f"{one.uid}: chain={not one.chain}")
        self._changed(self.drawn.with_stage(one.uid, chain=not one.chain), dice)

    def sink(self, dice: Random) -> None:
        """Add a sink, take one out, or give one another target; its old table is nobody's then."""
        number, one = dice.choice(self.drawn.sinks)
        place, outputs = f"table_{len(self.drawn.outputs)}", list(self.drawn.outputs)
        way = dice.choice(("add", "out", "elsewhere"))
        self.said.append(f"{way} {one.uid}")
        if way == "add":
            stage = dice.choice(self.drawn.stages)
            key = self.drawn.shapes[stage.uid].keyed
            kind = Kind.OWN if key else dice.choice((Kind.OWN, Kind.ICEBERG, Kind.FUNCTION))
            outputs.append(Output(f"sink_{len(outputs)}", kind, stage.uid, key, "", place))
        elif way == "out":
            reads = [uid for stage in self.drawn.stages for uid in stage.inputs]
            reads += [other.input for at, other in self.drawn.sinks if at != number]
            if one.input not in reads or len(self.drawn.sinks) == 1:
                return
            outputs[number] = replace(one, is_gone=True)
        elif one.sums or one.kind is Kind.FUNCTION:
            return
        else:
            outputs[number] = replace(one, is_gone=True)
            outputs.append(replace(one, place=place))
        self._changed(replace(self.drawn, outputs=tuple(outputs)), dice)

    # --- runs and their ends -----------------------------------------------------------------------------------------

    @property
    def pipeline(self) -> CheckpointedPipeline:
        """The pipeline as its author has it now."""
        return built(self.drawn, self.folder)

    @property
    def coordinator(self) -> CheckpointCoordinatorResource:
        """Its places and settings."""
        return CheckpointCoordinatorResource(
            base_dir=str(self.folder / "lab"), snapshot_retry_delay=0.1, **self.drawn.settings
        )

    def feed(self, dice: Random) -> None:
        """Put new files where the sources find them."""
        sources = [one for one in self.drawn.stages if one.op is Op.SOURCE]
        for source in sources:
            of = int(source.uid.split("_")[1])
            for i in range(dice.choice((0, 1, 1, 2, 3) if self.feeds else (1, 2))):
                number = self.feeds * 10 + of * 3 + i
                key_type, value_type = self.drawn.key_type, self.drawn.value_type
                rows = rows_of_feed(dice, number, key_type, value_type, dice.randint(1, 8))
                self.files[number] = (of, rows)
                self.put(of, number, rows)
            (self.folder / "feed" / str(of)).mkdir(parents=True, exist_ok=True)
        self.feeds += 1

    def put(self, of: int, number: int, rows: list[Row]) -> None:
        """Put a file where its source finds it."""
        put_file(self.folder / "feed" / str(of), number, rows, self.drawn.key_type, self.drawn.value_type)

    def _run(self, restore: Mapping[str, Any] | None = None, of: CheckpointedPipeline | None = None) -> None:
        with crash_before_change(None, self.folder) as seen:
            run_epoch(of or self.pipeline, coordinator=self.coordinator, spark=self.spark, restore=restore)
        self.changes = len(seen)

    def _dies(self, dice: Random, restore: Mapping[str, Any]) -> None:
        """Run an epoch that dies before a change of a file, with all that it has begun."""
        number = dice.randrange(self.changes)
        self.said.append(f"dies before change {number} of about {self.changes}")
        dying = crash_before_change(number, self.folder, in_threads=RuntimeError)
        with contextlib.suppress(Exception, SimulatedCrash), dying:
            run_epoch(self.pipeline, coordinator=self.coordinator, spark=self.spark, restore=restore)
        for query in self.spark.streams.active:
            query.stop()

    def _settled(self, run: Callable[[], None], *, reads: bool = True) -> bool:
        """Run, and compare every table; a refused run has changed nothing. Tell whether it was not refused."""
        before, kept = self._tables(), self._quarantines()
        self.candidates = self._read() if reads else self.may_be
        if refusal := self._refusal(run):
            if len(self.may_be) == 1 and (self._tables() != before or self._quarantines() != kept):
                raise Finding(
                    Verdict.CHANGED, f"{refusal}: {self._told(before)} {kept} {self._quarantines()}"
                )
            self._refused(refusal)
            return False
        chosen = self._the_one(self.candidates)
        self.ordered -= self.taken.get(id(chosen), set())
        self.may_be = [chosen]
        if any(
            _of_others(had) != _of_others(now)
            for had, now in ((before.get(i, now), now) for i, now in self._tables().items())
        ):
            raise Finding(Verdict.SILENT, f"rows of others are gone: {self._told(before)}")
        self._note_snapshots()
        return True

    def _read(self) -> list[Model]:
        """Return what may be once all files are read: a stage without rows may have no batch that takes orders."""
        found = []
        names = sorted(self.ordered)
        self.taken = {}
        for model in self.may_be:
            for bits in range(1 << len(names)):
                late = {name for at, name in enumerate(names) if bits >> at & 1}
                took: set[str] = set()

                def again(name: str, has_rows: bool, late: set[str] = late, took: set[str] = took) -> bool:
                    if name in self.ordered and (has_rows or name not in late):
                        took.add(name)
                    return name in took

                after = model.copy()
                after.process(self.drawn, self.files, again)
                self.taken[id(after)] = took
                found.append(after)
        return found

    def _refusal(self, run: Callable[[], object]) -> str:
        """Return why a run was refused; empty: it was not. Raises Finding for an error of another class."""
        try:
            run()
        except CheckpointError as error:
            return f"{type(error).__name__}: {error}"
        except Finding:
            raise
        except Exception as error:
            raise Finding(Verdict.CRASHED, "".join(traceback.format_exception(error)[-25:])) from error
        return ""

    def _refused(self, why: str) -> None:
        self.said.append(f"refused: {why}")
        self.refused.append(why)

    def _changed(self, changed: Drawn, dice: Random) -> None:
        """Go on with changed code; where that is refused the author changes it back."""
        before, self.drawn = self.drawn, changed
        self.feed(dice)
        if not self._settled(self._run):
            self.drawn = before
            self._settled(self._run)

    # --- snapshots ---------------------------------------------------------------------------------------------------

    def _snapshot(self, dice: Random) -> str | None:
        keys = sorted(self.snapshots)
        if len(self.may_be) > 1 or not keys:
            return None
        key = dice.choice([*keys, *keys, *keys, "none"])
        self.said.append(key)
        return key

    def _options(self, key: str) -> dict[str, Any]:
        functions = [one.uid for _, one in self.drawn.sinks if one.kind is Kind.FUNCTION]
        gone = any(one.is_gone for one in self.drawn.outputs)
        return {"restore_from": key, "keep_rows_of": functions, "allow_non_restored_state": gone}

    def _restored(self, key: str) -> Model:
        """Return the model as a snapshot has it; what a function was called with stays."""
        restored = Model() if key == "none" else self.snapshots[key].copy()
        for number, output in self.drawn.sinks:
            if output.kind is Kind.FUNCTION:
                restored.tables[number] = list(self.may_be[0].tables.get(number, []))
        return restored

    def _known(self, name: str = "") -> list[Any]:
        with closing(self.coordinator.model_copy().store()) as store:
            record = find_record(store, name or self.pipeline.name)
        return [] if record is None else [*record.completed, *record.savepoints]

    def _note_snapshots(self) -> None:
        """Remember what each new snapshot holds, which is what the tables show; forget those that are gone."""
        self.snapshots = {
            key: self.snapshots.get(key) or self.may_be[0].copy()
            for key in self._keys()
            if key not in self.unknown
        }

    def _keys(self) -> list[str]:
        kinds = {True: "savepoint", False: "chk"}
        known = sorted(self._known(), key=lambda one: one.checkpoint_id)
        return [f"{kinds[one.properties.kind.is_savepoint]}-{one.checkpoint_id}" for one in known]

    # --- tables ------------------------------------------------------------------------------------------------------

    def _tables(self) -> Tables:
        return {i: rows_in(self.drawn, one, self.folder) for i, one in self.drawn.sinks}

    def _quarantines(self) -> Kepts:
        place = self.kept_below
        return {name: kept_in(place / name) for name in map(quarantine_of, _keeping(self.drawn))}

    @property
    def kept_below(self) -> Path:
        """Where the quarantines lie."""
        return self.folder / "lab" / "tables" / self.pipeline.name / "quarantine"

    def _the_one(self, among: list[Model]) -> Model:
        """Return the model whose tables readers find. Raises Finding where there is none."""
        found, kept = self._tables(), self._quarantines()
        for last, model in enumerate(among, 1):
            try:
                for number in found:
                    self._compare(number, found[number], model, "")
                _compare_kept(kept, model, "")
            except Finding:
                if last == len(among):
                    raise
            else:
                return model
        raise AssertionError

    def _compare(self, number: int, found: Counter[Row], model: Model, what: str) -> None:
        found = found - _of_others(found)
        right = model.rows(self.drawn, number)
        if found == right:
            return
        lacks, has = sorted((right - found).items(), key=repr), sorted((found - right).items(), key=repr)
        said = f"{what} {self.drawn.outputs[number]} lacks {lacks[:5]} ({len(lacks)}), has {has[:5]} ({len(has)})"
        raise Finding(Verdict.SILENT, said)

    def _told(self, before: Tables) -> str:
        now = self._tables()
        return "; ".join(
            f"{i} had {had - now[i]}, has {now[i] - had}" for i, had in before.items() if i in now
        )


def _compare_kept(kept: Kepts, model: Model, what: str) -> None:
    for name, found in kept.items():
        right = Counter((one.row[0], one.state, one.condition) for one in model.kept.get(name, []))
        if found != right:
            said = (
                f"{what} quarantine {name} lacks {sorted(right - found)[:5]}, has {sorted(found - right)[:5]}"
            )
            raise Finding(Verdict.SILENT, said)


def _keeping(drawn: Drawn) -> list[Stage | Output]:
    return [one for one in (*drawn.stages, *(one for _, one in drawn.sinks)) if one.judges.keeps]


def stack_of(thread: threading.Thread) -> str:
    """Return where a thread is."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "gone" if frame is None else "".join(traceback.format_stack(frame)[-6:])


def _of_others(found: Counter[Row]) -> Counter[Row]:
    return Counter({row: count for row, count in found.items() if row[0] == FOREIGN})


PLAYS: dict[What, Callable[[World, Random], None]] = {
    What.EPOCH: World.epoch,
    What.CRASH: World.crash,
    What.SAVEPOINT: World.savepoint,
    What.RESTORE: World.restore,
    What.CRASHED_RESTORE: World.crashed_restore,
    What.FORK: World.fork,
    What.RENAME: World.rename,
    What.CHANGE: World.change,
    What.PARTITIONS: World.partitions,
    What.SETTING: World.setting,
    What.OTHERS: World.others,
    What.JUDGE: World.judge,
    What.REQUEUE: World.requeue,
    What.LAYOUT: World.layout,
    What.SINK: World.sink,
    What.STREAM: World.stream,
    What.CRASHED_STREAM: World.crashed_stream,
}


@contextlib.contextmanager
def settings_kept(spark: SparkSession) -> Iterator[None]:
    """Leave the session's settings as they were found."""
    before = {name: spark.conf.get(name, None) for name in CONF}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


def played(drawn: Drawn, spark: SparkSession, folder: Path) -> tuple[World, Finding | None]:
    """Play a story in an empty folder; return the world, and what was found."""
    world = World(drawn, spark, folder)
    with settings_kept(spark):
        try:
            world.play()
        except Finding as finding:
            return world, finding
    return world, None


def shrunk(drawn: Drawn, fails: Callable[[Drawn], bool]) -> Drawn:
    """Return the shortest story that is found by leaving out one step after the other while it still fails."""
    for step in reversed(drawn.steps):
        if len(drawn.steps) > 1 and fails(shorter := drawn.without(step)):
            drawn = shorter
    return drawn
