"""Trials: a history of runs, an attack on what is kept of it, the next runs, and an oracle that knows the truth."""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from tests.attack.definition import AS_BEGUN, Change, begun, changes_of
from tests.attack.deployment import Deployment, dying_after
from tests.attack.judge import Judge, JudgeOfChanges, Trial
from tests.attack.outsides import Kind
from tests.attack.parts import ACTIONS, SINGLE, STAGED, Attack, attack_on, whole_of
from tests.attack.played import Killed, Step
from tests.checker.record import Recorder

SETS = {
    kind: [
        subset
        for size in range(1, len(whole_of(kind)) + 1)
        for subset in itertools.combinations(whole_of(kind), size)
        if kind is not Kind.FUNCTION or not {"store", "work"} <= {*subset}
    ]
    for kind in Kind
}
"""Every combination of whole parts; who but store and working directory could tell of a function's calls?"""
IN_A_BATCH = "in a batch"
KILLS = ("completed", "published", IN_A_BATCH)
"""Where a process dies: its checkpoint is complete and not published, published and not noted, or not stored."""
ENDS = ("clean", "in flight", "unpublished", "failed", "killed")


class Run(StrEnum):
    """Kinds of run."""

    EPOCH = "epoch"
    STREAM = "stream"


@dataclass(frozen=True)
class Shape:
    """A pipeline that is killed: its sinks are on its source, on a stage, or on a chain of both."""

    dies_as: Run = Run.STREAM
    with_stage: bool = False
    chained: bool = False

    def __str__(self) -> str:
        return f"{self.dies_as}{' stage' * self.with_stage}{' chained' * self.chained}"


SHAPES = [Shape(run, *of) for run in Run for of in ((False, False), (True, False), (True, True))]


@dataclass
class History:
    """Runs of two deployments of one pipeline on the same source, with copies of the first one's past."""

    folder: Path
    seed: int
    dice: random.Random = field(init=False)
    copies: list[Path] = field(default_factory=list)
    arrived: int = 0
    runs: int = 0

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        with_stage = self.dice.random() < 0.5
        settings = {
            "num_retained": self.dice.choice((1, 2, 3)),
            "local_backup": self.dice.random() < 0.3,
        }
        chained = with_stage and self.seed % 2 == 0
        self.kind = [*Kind][self.seed // 2 % len(Kind)]
        self.is_of_changes = self.dice.random() < 0.5 and self.kind is not Kind.FUNCTION
        defined = begun(self.kind) if self.is_of_changes else AS_BEGUN
        self.ours = Deployment(self.folder / "ours", with_stage, settings, chained, self.kind, defined)
        self.theirs = replace(self.ours, root=self.folder / "theirs")

    def make(self) -> None:
        """Run both deployments for a while."""
        for _ in range(self.dice.randint(2, 4)):
            self._run(self.theirs)
        for number in range(self.dice.randint(3, 6)):
            self._run(self.ours)
            self._copy(f"after-run-{number}")
        if self.dice.random() < (0.8 if self.is_of_changes else 0.5):
            self._run(self.ours, "unpublished")
            self._copy("with-rows-that-wait")
        self.head = self.copies[-1]
        self.their_head = self.theirs.copy_to(self.folder / "copies" / "theirs")

    def make_killed(self, kind: Kind, at: str, shape: Shape) -> None:
        """Run ours until its process dies at a step with rows that wait; its changes are tried then."""
        self.kind, self.is_of_changes = kind, True
        of = {"with_stage": shape.with_stage, "chained": shape.chained}
        self.ours = Deployment(self.folder / "ours", kind=kind, defined=begun(kind), **of)
        for number, self.arrived in enumerate((3, 7)):
            if shape.dies_as is Run.STREAM:
                self.ours.stream(f"run-{number}", [self.arrived], end="clean")
            else:
                self.ours.epoch(f"run-{number}", self.arrived)
        self.arrived = 12
        try:
            if shape.dies_as is Run.STREAM:
                self.ours.stream("killed", [self.arrived], end="clean", step=dying_at(at))
            else:
                self.ours.epoch("killed", self.arrived, step=dying_at(at))
        except Killed:
            self.head = self.ours.copy_to(self.folder / "copies" / "killed")
        else:
            raise AssertionError(f"no process died at {at}")
        self.theirs.root.mkdir()
        self.their_head = self.theirs.copy_to(self.folder / "copies" / "theirs")

    def more(self, most: int) -> int:
        """Let rows arrive at the source."""
        self.arrived += self.dice.randint(0, most)
        return self.arrived

    def _copy(self, name: str) -> None:
        self.copies.append(self.ours.copy_to(self.folder / "copies" / name))

    def _run(self, deployment: Deployment, end: str | None = None) -> None:
        self.runs += 1
        owner = f"run-{self.runs}"
        if end is None and self.dice.random() < 0.4:
            deployment.epoch(owner, self.more(9))
            return
        end = end or self.dice.choice(ENDS)
        arrivals = [self.more(7) for _ in range(self.dice.randint(1, 3))]
        takes_copies = deployment is self.ours and self.dice.random() < 0.5
        step = dying_after(self.dice.randint(3, 40)) if end == "killed" else lambda _: None
        number = itertools.count()

        def between() -> None:
            if takes_copies:
                self._copy(f"in-{owner}-{next(number)}")

        with contextlib.suppress(Killed):
            deployment.stream(owner, arrivals, end=end, step=step, between=between)
        if end in {"in flight", "unpublished"}:
            self.arrived += 5

    # --- trials ---------------------------------------------------------------------------------------------------

    def trials(self, count: int, first: int = 0) -> Iterator[Trial]:
        """Attack so often, each time what the history has left."""
        arrived = self.arrived
        for number in range(count):
            self.dice = random.Random(f"{self.seed}-{number}")
            self.arrived = arrived
            self.ours.put_back_all(self.head)
            self.theirs.put_back_all(self.their_head)
            if self.is_of_changes:
                trial = Trial(self.seed, self.kind, number, [self._change(first + number)])
                JudgeOfChanges(self, trial).judge()
                yield trial
                continue
            trial = Trial(self.seed, self.kind, number, self._attacks(first + number))
            for attack in trial.attacks:
                attack.perform(self.ours)
            tables = {"rows": "append", "newest": "keyed"}
            Judge(self, trial, Recorder(self.folder / "history.jsonl", tables)).judge()
            yield trial

    def _change(self, turn: int) -> Change:
        """Every change in turn."""
        self.ours = replace(self.ours, defined=begun(self.kind))
        changes = changes_of(self.ours.defined, self.kind)
        what = [*changes][turn % len(changes)]
        return Change(what, changes[what])

    def _attacks(self, turn: int) -> list[Attack]:
        """Every combination of whole parts in turn, with one action or several; else single files."""
        dice = self.dice
        copy = dice.choice(self.copies)
        if dice.random() < 0.6:
            parts: list[str] = list(SETS[self.kind][turn % len(SETS[self.kind])])
        else:
            single = [*SINGLE, *STAGED]
            parts = dice.sample(single, dice.choice((1, 1, 1, 2)))
            if dice.random() < 0.3:
                parts = [*parts, dice.choice(whole_of(self.kind))]
        if dice.random() < 0.25:
            parts = [part for part in parts if part not in STAGED] if dice.random() < 0.5 else []
            parts.append(dice.choice([*STAGED]))
        actions = [dice.choice(ACTIONS)] * len(parts)
        if dice.random() < 0.3:
            actions = [dice.choice(ACTIONS) for _ in parts]
        same_copy = dice.random() < 0.7
        found = [
            attack_on(
                part,
                action,
                self.ours,
                copy if same_copy else dice.choice(self.copies),
                other=self.their_head,
                dice=dice,
            )
            for part, action in zip(parts, actions, strict=True)
        ]
        return [attack for attack in found if attack is not None]


def changed_after_kill(folder: Path, kind: Kind, at: str, shape: Shape, seed: int = 0) -> Iterator[Trial]:
    """Kill a run whose rows wait, and try every change of its sinks with what is left."""
    history = History(folder, seed)
    history.make_killed(kind, at, shape)
    yield from history.trials(len(changes_of(history.ours.defined, kind)))


def dying_at(name: str) -> Step:
    """Return a step that kills the process at this place, once it has prepared rows: it first publishes older ones."""
    staged: list[str] = []

    def step(what: str) -> None:
        staged.extend(what.split(":")[:1] if ": staged" in what else ())
        if (what == name and staged) or (name == IN_A_BATCH and len(set(staged)) > 1):
            raise Killed

    return step


def attack(folder: Path, seeds: range, per_seed: int, *, first: int = 0) -> Iterator[Trial]:
    """Make a history for every seed and attack it so often; ``first``: where the combinations of parts begin."""
    for turn, seed in enumerate(seeds):
        place = folder / f"seed-{seed}"
        history = History(place, seed)
        try:
            history.make()
            yield from history.trials(per_seed, first=first + turn * per_seed)
        finally:
            shutil.rmtree(place, ignore_errors=True)
