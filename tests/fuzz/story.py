"""Story of a drawn pipeline: what happens to it step by step, played by real runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from unittest import mock

from dagster_ckpt import CheckpointKind
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.operations.care.maintain import order_requeue
from dagster_ckpt.programs import hosted, turn_of
from dagster_ckpt.spark.epoch.attempt import EpochAttempt
from tests.attack.deployment import RunFailed
from tests.attack.judge import Verdict
from tests.attack.outsides import Kind
from tests.fuzz.built import target
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
from tests.fuzz.streamed import StreamedWorld
from tests.fuzz.tables import add_foreign_row, compact, kept_in, rows_in
from tests.fuzz.world import Finding, World, compare_kept, keeping
from tests.spark.crashing import full_disk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt import CheckpointedPipeline


FAILS = (CheckpointError, RunFailed, OSError)
"""Ends of a run on a disk that is full."""


@dataclass
class Story(StreamedWorld):
    """What happens to a deployment, step by step."""

    def play(self) -> None:
        """Play the whole story. Raises Finding."""
        for name, value in self.drawn.conf.items():
            self.spark.conf.set(name, value)
        self.names = {quarantine_of(one) for one in keeping(self.drawn)}
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

    def full_disk(self, dice: Random) -> None:
        """Let the disk have no room from one of an epoch's changes on; with room the next one is exact."""
        self.feed(dice)
        number = dice.randrange(self.changes)
        self.said.append(f"no room from change {number}")
        self.may_be = [*self.may_be, *self._read()]
        with full_disk(number, self.folder), contextlib.suppress(*FAILS):
            self._run()
        self._settled(self._run)

    def clock(self, dice: Random) -> None:
        """Run on a machine whose clock is an hour off, and then on one whose clock is right."""
        self.feed(dice)
        off, real = dice.choice((-3600.0, 3600.0)), time.time
        self.said.append(f"clock {off:+.0f} s")
        with mock.patch.object(time, "time", side_effect=lambda: real() + off):
            self._settled(self._run)
        self.feed(dice)
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
        names = [quarantine_of(one) for one in keeping(self.drawn)]
        found = {name: kept_in(place / "tables" / "quarantine" / name) for name in names}
        compare_kept(found, model, f"fork {self.forks}")
        return True

    def rename(self, dice: Random) -> None:
        """Give a stage another name, or sinks: a new one, a former one, or that of each other and no word of it."""
        if dice.random() < 0.5:
            stage = dice.choice(self.drawn.stages)
            previous = (stage.uid, *stage.previous)
            self._changed(self.drawn.with_stage(stage.uid, uid=f"{stage.uid}_x", previous=previous), dice)
            return
        sinks = self.drawn.sinks
        chosen = dict(dice.sample(sinks, k=dice.choice((1, len(sinks)))))
        uids = [one.uid for one in chosen.values()]
        way = dice.choice(("new", "former", "exchanged"))
        self.said.append(f"{way} names of {uids}")
        taken = {one.uid for _, one in sinks}
        renamed = dict(chosen)
        for (number, one), following in zip(chosen.items(), [*uids[1:], uids[0]], strict=True):
            former = [name for name in one.previous if name not in taken]
            name = following if way == "exchanged" else f"{one.uid}_x"
            name = former[-1] if way == "former" and former else name
            previous = tuple(was for was in (one.uid, *one.previous) if was != name)
            renamed[number] = replace(one, uid=name, previous=() if way == "exchanged" else previous)
        outputs = tuple(renamed.get(number, one) for number, one in enumerate(self.drawn.outputs))
        self._changed(replace(self.drawn, outputs=outputs), dice)

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
        kept = keeping(self.drawn)
        if closes or not kept or (fails and not {self.drawn.key_type, self.drawn.value_type} <= simple):
            return
        if dice.random() < 0.5:
            one = dice.choice(kept)
            chosen = replace(
                one.judges, expect=tuple((name, dice.choice(ACTIONS)) for name, _ in one.judges.expect)
            )
            if chosen.keeps and isinstance(one, Stage):
                self.drawn = self.drawn.with_stage(one.uid, judges=chosen)
        refusal = self._refusal(lambda: order_requeue(self.pipeline, self.coordinator))
        if refusal:
            self._refused(refusal)
            return
        self.ordered = {quarantine_of(one) for one in kept}
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

    def _changed(self, changed: Drawn, dice: Random) -> None:
        """Go on with changed code; where that is refused the author changes it back."""
        before, self.drawn = self.drawn, changed
        self.feed(dice)
        if not self._settled(self._run):
            self.drawn = before
            self._settled(self._run)


PLAYS: dict[What, Callable[[Story, Random], None]] = {
    What.EPOCH: Story.epoch,
    What.CRASH: Story.crash,
    What.SAVEPOINT: Story.savepoint,
    What.RESTORE: Story.restore,
    What.CRASHED_RESTORE: Story.crashed_restore,
    What.FORK: Story.fork,
    What.RENAME: Story.rename,
    What.CHANGE: Story.change,
    What.PARTITIONS: Story.partitions,
    What.SETTING: Story.setting,
    What.OTHERS: Story.others,
    What.JUDGE: Story.judge,
    What.REQUEUE: Story.requeue,
    What.LAYOUT: Story.layout,
    What.SINK: Story.sink,
    What.STREAM: Story.stream,
    What.CRASHED_STREAM: Story.crashed_stream,
    What.FULL_DISK: Story.full_disk,
    What.CLOCK: Story.clock,
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
    world = Story(drawn, spark, folder)
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
