"""World of a drawn pipeline: its story is played by real runs, and all its tables are compared with the model's."""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from dagster_ckpt import CheckpointCoordinatorResource, CheckpointKind, run_epoch
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.programs import hosted, turn_of
from dagster_ckpt.spark.epoch.attempt import EpochAttempt
from dagster_ckpt.testing.faults import SimulatedCrash
from tests.attack.judge import Verdict
from tests.attack.outsides import Kind
from tests.fuzz.built import built, target
from tests.fuzz.drawn import CONF, STATEFUL, Drawn, Op, What
from tests.fuzz.model import Model
from tests.fuzz.tables import FOREIGN, add_foreign_row, compact, put_file, rows_in
from tests.fuzz.values import Row, rows_of_feed
from tests.records import find_record
from tests.spark.crashing import crash_before_change

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt import CheckpointedPipeline

Tables = dict[int, Counter[Row]]


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
    said: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def play(self) -> None:
        """Play the whole story. Raises Finding."""
        for name, value in self.drawn.conf.items():
            self.spark.conf.set(name, value)
        for step in self.drawn.steps:
            self.said.append(f"{step.what}:{step.salt}")
            PLAYS[step.what](self, Random(step.salt))
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
        self._settled(self._run)

    def fork(self, dice: Random) -> None:
        """Fork it from any snapshot; its own tables stay as they are."""
        if (key := self._snapshot(dice)) is None or key == "none":
            return
        self.forks += 1
        before, place = self._tables(), self.folder / f"fork_{self.forks}"
        sinks = {one.uid: target(one, place) for one in self.drawn.outputs}
        fork = self.pipeline.fork(f"fork_{self.forks}", table_dir=str(place / "tables"), sinks=sinks)
        model = self.snapshots[key].copy()
        model.process(self.drawn, self.files)
        uri = next(one.location.uri for one in self._known() if key.endswith(f"-{one.checkpoint_id}"))
        refusal = self._refusal(lambda: self._run({"restore_from": uri, "fork": True}, fork))
        if self._tables() != before:
            raise Finding(Verdict.SILENT, f"a fork changed its origin: {self._told(before)}")
        if refusal:
            self._refused(refusal)
            return
        for number, output in enumerate(self.drawn.outputs):
            if output.kind is not Kind.FUNCTION:
                self._compare(number, rows_in(self.drawn, output, place), model, f"fork of {key}")

    def rename(self, dice: Random) -> None:
        """Give a stage or a sink another name."""
        if dice.random() < 0.4:
            number = dice.randrange(len(self.drawn.outputs))
            one = self.drawn.outputs[number]
            new = replace(one, uid=f"{one.uid}_x", previous=(*one.previous, one.uid))
            outputs = tuple(new if i == number else other for i, other in enumerate(self.drawn.outputs))
            self._changed(replace(self.drawn, outputs=outputs), dice)
            return
        stage = dice.choice(self.drawn.stages)
        previous = (*stage.previous, stage.uid)
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
        number = dice.randrange(len(self.drawn.outputs))
        output = self.drawn.outputs[number]
        if dice.random() < 0.4:
            compact(output, self.folder)
        elif not output.key:
            add_foreign_row(output, self.folder)
        self.epoch(dice)

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
                put_file(self.folder / "feed" / str(of), number, rows, key_type, value_type)
            (self.folder / "feed" / str(of)).mkdir(parents=True, exist_ok=True)
        self.feeds += 1

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
        before = self._tables()
        if refusal := self._refusal(run):
            if len(self.may_be) == 1 and self._tables() != before:
                raise Finding(Verdict.CHANGED, f"{refusal}: {self._told(before)}")
            self._refused(refusal)
            return False
        if reads:
            for model in self.may_be:
                model.process(self.drawn, self.files)
        self.may_be = [self._the_one()]
        if any(
            _of_others(had) != _of_others(now)
            for had, now in zip(before.values(), self._tables().values(), strict=True)
        ):
            raise Finding(Verdict.SILENT, f"rows of others are gone: {self._told(before)}")
        self._note_snapshots()
        return True

    def _refusal(self, run: Callable[[], None]) -> str:
        """Return why a run was refused; empty: it was not. Raises Finding for an error of another class."""
        try:
            run()
        except CheckpointError as error:
            return f"{type(error).__name__}: {error}"
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
        functions = [one.uid for one in self.drawn.outputs if one.kind is Kind.FUNCTION]
        return {"restore_from": key, "keep_rows_of": functions}

    def _restored(self, key: str) -> Model:
        """Return the model as a snapshot has it; what a function was called with stays."""
        restored = Model() if key == "none" else self.snapshots[key].copy()
        for number, output in enumerate(self.drawn.outputs):
            if output.kind is Kind.FUNCTION:
                restored.tables[number] = list(self.may_be[0].tables.get(number, []))
        return restored

    def _known(self) -> list[Any]:
        with closing(self.coordinator.model_copy().store()) as store:
            record = find_record(store, self.pipeline.name)
        return [] if record is None else [*record.completed, *record.savepoints]

    def _note_snapshots(self) -> None:
        """Remember what each new snapshot holds, which is what the tables show; forget those that are gone."""
        kinds = {True: "savepoint", False: "chk"}
        keys = [f"{kinds[one.properties.kind.is_savepoint]}-{one.checkpoint_id}" for one in self._known()]
        self.snapshots = {key: self.snapshots.get(key) or self.may_be[0].copy() for key in keys}

    # --- tables ------------------------------------------------------------------------------------------------------

    def _tables(self) -> Tables:
        return {i: rows_in(self.drawn, one, self.folder) for i, one in enumerate(self.drawn.outputs)}

    def _the_one(self) -> Model:
        """Return the model whose tables readers find. Raises Finding where there is none."""
        found = self._tables()
        for last, model in enumerate(self.may_be, 1):
            try:
                for number in found:
                    self._compare(number, found[number], model, "")
            except Finding:
                if last == len(self.may_be):
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
        return "; ".join(f"{i} had {had - now[i]}, has {now[i] - had}" for i, had in before.items())


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
