"""Judges of a trial: they start the next runs, take the ways out that refusals name, and know what is right."""

from __future__ import annotations

import re
import shutil
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.epoch.run import FailRun, RetryStage
from tests.attack.definition import AS_BEGUN, Change, Definition, wrong_cells
from tests.attack.deployment import RunFailed
from tests.attack.outsides import TABLES, Kind, aside_rows, records_of, waiting
from tests.attack.parts import Attack
from tests.attack.played import KEYS
from tests.checker.check import check
from tests.checker.record import Recorder, Tables

if TYPE_CHECKING:
    from tests.attack.trials import History

_NO_WAY_BACK = ("cannot take rows back", "are not kept", "may have been called")
"""Says that a sink takes no rows back, whatever was attacked."""
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
    attacks: Sequence[Attack | Change]
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
class Judge:
    """Starts the next runs and compares their tables with the truth."""

    history: History
    trial: Trial
    recorder: Recorder | None = None
    """Of what readers see, for the outside checker; None: rows may be set aside, which it does not know."""
    recorded: int = 0
    """Rows of the source that it has."""
    owes: bool = False
    """A checkpoint was complete and not shown by all: the next run shows it, whatever it refuses then."""

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
        if self.history.kind is Kind.KAFKA:  # "or name a new place": no message is taken back
            shutil.rmtree(self.history.ours.root / "tables")
        if (
            self.history.kind is Kind.SQL
        ):  # "or name another table": with rows that no before-image takes back
            for file in (self.history.ours.root / "tables").glob("*/rows.db*"):
                file.unlink()
        yield {"restore_from": "none", "adopt_history": True}

    def _attempt(self, options: dict[str, Any], *, is_way_out: bool = False, most: int = 6) -> Verdict:
        history = self.history
        ours = history.ours
        arrived = history.more(most)
        history.runs += 1
        owner = f"run-{history.runs}-{self.trial.number}"
        before = ours.tables
        told = " ".join(f"{name}={value}" for name, value in options.items()) or "latest"
        is_stream = most > 0 and history.dice.random() < 0.3
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
        if ours.tables != before and not (self.owes and self._shows_a_moment()):
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

    def _shows_a_moment(self) -> bool:
        found = self.history.ours.tables
        return found == self.history.ours.truth(len(found["rows"]))

    def _compared(self, told: str, processed: int) -> Verdict:
        began = time.monotonic()
        found, expected = self.history.ours.tables, self.history.ours.truth(processed)
        if self.recorder is not None:
            self._record(self.recorder, began, found, expected["rows"])
        if found == expected:
            self.trial.said.append(f"{told} -> exact")
            return Verdict.EXACT
        wrong = {
            name: f"{_difference(expected[name], found[name])}"
            for name in expected
            if found[name] != expected[name]
        }
        return self._note(Verdict.SILENT, f"{told} -> SUCCESS with wrong rows: {wrong}")

    def _record(self, recorder: Recorder, began: float, found: Tables, rows: list[tuple[int, int]]) -> None:
        for number, value in rows[self.recorded :]:
            recorder.write({"rows": [(number, value)], "newest": [(number % KEYS, value)]})
        self.recorded = len(rows)
        recorder.read(began, found, settled=True)
        for one in check(recorder.events()):
            self._note(Verdict.SILENT, f"checker: {one}")

    def _note(self, verdict: Verdict, line: str) -> Verdict:
        self.trial.findings.append(verdict)
        if line:
            self.trial.said.append(line)
        return verdict


@dataclass
class JudgeOfChanges(Judge):
    """Runs what its author has changed; what is refused goes on as the refusal says, and ends exact."""

    was: Definition = AS_BEGUN
    ran: list[Definition] = field(default_factory=list)
    """Definitions that runs have succeeded with."""
    aside: list[tuple[int, int]] = field(default_factory=list)
    """Appended rows that were set aside."""

    def judge(self) -> None:
        """Run it; then a restore of before the change, or a way out."""
        self.was, change = self.history.ours.defined, self.trial.attacks[0]
        self.owes = self.history.ours.owes
        assert isinstance(change, Change)
        self.ran = [self.was]
        if change.now.mode and not any(waiting(self.history.ours.root, table) for table in TABLES):
            return  # what a query in complete mode writes is not played
        self._define(change.now)
        dice, snapshots = self.history.dice, self.history.ours.snapshots()
        options = dice.choice(
            [{}, {}, {}, {"restore_from": dice.choice(snapshots)}, {"restore_from": "none"}]
        )
        self.trial.first = self._attempt(options)
        if options and self.trial.first is Verdict.CHANGED:
            # Tables were taken back, as was asked for; then the columns of the first rows were refused.
            self.trial.first = Verdict.REFUSED
            self.trial.findings.clear()
        if self.trial.first is Verdict.EXACT:
            self._goes_on()
        elif self.trial.first is Verdict.REFUSED:
            ways = [self._changed_back, self._published_before]
            if "set-aside" in self.trial.said[-1] and options == {}:
                ways.append(self._set_aside)
            dice.choice(ways)(change.now)

    def _define(self, definition: Definition) -> None:
        self.history.ours = replace(self.history.ours, defined=definition)

    def _goes_on(self) -> None:
        """Run once more; then, perhaps, from a snapshot of before the change."""
        self._must("the run after it", {})
        snapshots = self.history.ours.snapshots()
        if self.history.dice.random() < 0.5 and snapshots and not self.trial.findings:
            chosen = {"restore_from": self.history.dice.choice(snapshots)}
            if self._attempt(chosen, is_way_out=True) is Verdict.REFUSED:
                self._must("the run after a restore that was refused", {})

    def _changed_back(self, now: Definition) -> None:
        self._define(self.was)
        self._must("the old definition", {})

    def _published_before(self, now: Definition) -> None:
        self._define(self.was)
        if not self._must("dagster-ckpt publish", {}, most=0):
            return
        self._define(now)
        verdict = self._attempt({}, is_way_out=True)
        if verdict is Verdict.EXACT:
            self._goes_on()
        elif verdict is Verdict.REFUSED:
            self._changed_back(now)

    def _set_aside(self, now: Definition) -> None:
        """Set aside what waits, with the definition as it is now; what the table itself refuses is changed back."""
        uids = (StageUid(now.uid), StageUid("newest"))
        verdict = self._attempt({"set_aside": uids}, is_way_out=True)
        if verdict is Verdict.EXACT:
            self._goes_on()
        elif verdict is Verdict.REFUSED:
            self._define(self.was)
            if (
                self._attempt({"set_aside": (StageUid(self.was.uid), uids[1])}, is_way_out=True)
                is not Verdict.EXACT
            ):
                self._note(Verdict.STUCK, "set-aside with the old definition did not go on")

    def _must(self, what: str, options: dict[str, Any], *, most: int = 6) -> bool:
        verdict = self._attempt(options, is_way_out=True, most=most)
        if verdict is Verdict.REFUSED:
            self._note(Verdict.STUCK, f"{what} did not go on")
        return verdict is Verdict.EXACT

    def _compared(self, told: str, processed: int) -> Verdict:
        ours = self.history.ours
        aside = aside_rows(ours.root, ours.defined.uid)
        found, expected = ours.tables, ours.truth(processed)
        found["rows"] = sorted([*found["rows"], *aside])
        if aside or aside_rows(ours.root, "newest") or ours.defined.key != AS_BEGUN.key:
            expected["newest"] = found["newest"]  # with which rows a key ended is not known then
        wrong = [
            f"{name}: {_difference(expected[name], found[name])}"
            for name in expected
            if found[name] != expected[name]
        ]
        if not wrong:
            self.ran.append(ours.defined)
            kind = ours.defined.kind or ours.kind
            tables = ((kind, ours.defined.place), (ours.kind, ours.defined.place_by_key))
            for where, name in tables:
                records = records_of(where, ours.root / "tables" / name)
                wrong += wrong_cells(records, self.ran, keeps_others=where is Kind.SQL)[:5]
        if wrong:
            return self._note(Verdict.SILENT, f"{told} -> SUCCESS with wrong rows: {wrong}")
        self.trial.said.append(f"{told} -> exact{f', {len(aside)} rows aside' if aside else ''}")
        return Verdict.EXACT


def _difference(expected: list[tuple[int, int]], found: list[tuple[int, int]]) -> str:
    lost = [row for row in expected if row not in found]
    more = list(found)
    for row in expected:
        if row in more:
            more.remove(row)
    return f"{len(expected)} rows expected, {len(found)} found; lost {lost[:8]}, too many {more[:8]}"
