"""Trials: a history of runs, an attack on what is kept of it, the next runs, and an oracle that knows the truth."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import shutil
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.epoch.run import FailRun, RetryStage
from tests.attack.deployment import Deployment, RunFailed, dying_after
from tests.attack.outsides import Kind
from tests.attack.parts import ACTIONS, SINGLE, STAGED, Attack, attack_on, whole_of
from tests.attack.played import Killed

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
_NO_WAY_BACK = ("cannot take rows back", "are not kept", "may have been called")
"""Says that a sink takes no rows back, whatever was attacked."""
ENDS = ("clean", "in flight", "unpublished", "failed", "killed")
REFUSALS = (CheckpointError, FailRun, RetryStage, RunFailed)


class Verdict(StrEnum):
    """What the oracle says of a trial."""

    EXACT = "exact"
    REFUSED = "refused, nothing changed"
    SILENT = "SILENT DIFFERENCE"
    CHANGED = "refused, but tables changed"
    UNNAMED = "refused without naming the part"
    CRASHED = "a traceback that is no CheckpointError"
    STUCK = "no way out leads to exact tables"


FINDINGS = (Verdict.SILENT, Verdict.CHANGED, Verdict.UNNAMED, Verdict.CRASHED, Verdict.STUCK)


@dataclass
class Trial:
    """What was done in one trial, and what came of it."""

    seed: int
    kind: Kind
    number: int
    attacks: list[Attack]
    said: list[str] = field(default_factory=list)
    findings: list[Verdict] = field(default_factory=list)
    first: Verdict = Verdict.EXACT
    """Of the first run after the attack."""

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed} ({self.kind}) trial {self.number}: {', '.join(self.findings) or self.first}",
            *(f"    attack: {attack}" for attack in self.attacks),
            *(f"    {line}" for line in self.said),
        ]
        return "\n".join(lines)


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
        self.ours = Deployment(self.folder / "ours", with_stage, settings, chained, self.kind)
        self.theirs = Deployment(self.folder / "theirs", with_stage, settings, chained, self.kind)

    def make(self) -> None:
        """Run both deployments for a while."""
        for _ in range(self.dice.randint(2, 4)):
            self._run(self.theirs)
        for number in range(self.dice.randint(3, 6)):
            self._run(self.ours)
            self._copy(f"after-run-{number}")
        if self.dice.random() < 0.5:
            self._run(self.ours, "unpublished")
            self._copy("with-rows-that-wait")
        self.head = self.copies[-1]
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
            trial = Trial(self.seed, self.kind, number, self._attacks(first + number))
            for attack in trial.attacks:
                attack.perform(self.ours)
            Judge(self, trial).judge()
            yield trial

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


@dataclass
class Judge:
    """Starts the next runs and compares their tables with the truth."""

    history: History
    trial: Trial

    def judge(self) -> None:
        """Run on; after a refusal the ways out that it names; in the end a run as if nothing had been."""
        options = self._first_options()
        self.trial.first = self._attempt(options)
        if self.trial.first is Verdict.EXACT:
            if self._attempt({}) is not Verdict.EXACT:
                self._note(Verdict.STUCK, "the run after it did not go on")
            return
        if self.trial.first is not Verdict.REFUSED:
            return
        for way_out in self._ways_out():
            verdict = self._attempt(way_out, is_way_out=True)
            if verdict is Verdict.EXACT:
                if self._attempt({}) is not Verdict.EXACT:
                    self._note(Verdict.STUCK, "the run after the way out did not go on")
                return
            if verdict is not Verdict.REFUSED:
                return
        if (
            self.history.kind is not Kind.FUNCTION
        ):  # its calls cannot be taken back: nothing begins from the beginning
            self._note(Verdict.STUCK, "no way out was left")

    def _first_options(self) -> dict[str, Any]:
        dice, snapshots = self.history.dice, self.history.ours.snapshots()
        chance = dice.random()
        if chance < 0.7:
            return {}
        if chance < 0.82 and snapshots:
            return {"restore_from": dice.choice(snapshots)}
        if chance < 0.92:
            return {"restore_from": "none"}
        return {"adopt_history": True}

    def _ways_out(self) -> Iterator[dict[str, Any]]:
        named = re.findall(r"newest snapshot found is ([^\s)]+)", " ".join(self.trial.said))
        for snapshot in [*named[:1], *reversed(self.history.ours.snapshots())]:
            yield {"restore_from": snapshot}
        yield {"restore_from": "none"}
        yield {"adopt_history": True}
        yield {"restore_from": "none", "adopt_history": True}
        for folder in re.findall(
            r"table (\S+) has lost \S+, .* empty the folder", "\n".join(self.trial.said)
        ):
            shutil.rmtree(folder, ignore_errors=True)
        if (
            self.history.kind is Kind.SQL
        ):  # "or name another table": with rows that no before-image takes back
            for file in (self.history.ours.root / "tables").glob("*/rows.db*"):
                file.unlink()
        yield {"restore_from": "none", "adopt_history": True}

    def _attempt(self, options: dict[str, Any], *, is_way_out: bool = False) -> Verdict:
        history = self.history
        ours = history.ours
        arrived = history.more(6)
        history.runs += 1
        owner = f"run-{history.runs}-{self.trial.number}"
        before = ours.tables
        told = " ".join(f"{name}={value}" for name, value in options.items()) or "latest"
        is_stream = history.dice.random() < 0.3
        try:
            if is_stream:
                ours.stream(owner, [arrived, history.more(4)], end="clean", **options)
            else:
                ours.epoch(owner, arrived, **options)
        except REFUSALS as error:
            return self._refused(told, f"{type(error).__name__}: {error}", before, is_way_out=is_way_out)
        except Exception as error:
            place = traceback.format_exception(error)[-3:]
            return self._note(Verdict.CRASHED, f"{told}: {''.join(place)}")
        return self._compared(told, history.arrived)

    def _refused(self, told: str, why: str, before: object, *, is_way_out: bool) -> Verdict:
        ours = self.history.ours
        self.trial.said.append(f"{told} -> {why}")
        if ours.tables != before:
            return self._note(Verdict.CHANGED, f"before {before}, after {ours.tables}")
        is_chosen = "/" in told and str(ours.root) in why  # the snapshot's own files are named
        goes_back = bool(told != "latest") and any(words in why for words in _NO_WAY_BACK)
        if (
            not is_way_out
            and not is_chosen
            and not goes_back
            and not any(one.is_named_in(why, ours) for one in self.trial.attacks)
        ):
            self._note(Verdict.UNNAMED, "")
        return Verdict.REFUSED

    def _compared(self, told: str, processed: int) -> Verdict:
        found, expected = self.history.ours.tables, self.history.ours.truth(processed)
        if found == expected:
            self.trial.said.append(f"{told} -> exact")
            return Verdict.EXACT
        wrong = {
            name: f"{_difference(expected[name], found[name])}"
            for name in expected
            if found[name] != expected[name]
        }
        return self._note(Verdict.SILENT, f"{told} -> SUCCESS with wrong rows: {wrong}")

    def _note(self, verdict: Verdict, line: str) -> Verdict:
        self.trial.findings.append(verdict)
        if line:
            self.trial.said.append(line)
        return verdict


def _difference(expected: list[tuple[int, int]], found: list[tuple[int, int]]) -> str:
    lost = [row for row in expected if row not in found]
    more = list(found)
    for row in expected:
        if row in more:
            more.remove(row)
    return f"{len(expected)} rows expected, {len(found)} found; lost {lost[:8]}, too many {more[:8]}"


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
