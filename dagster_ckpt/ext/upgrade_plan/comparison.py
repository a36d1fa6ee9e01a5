"""Comparison of a query's plan with a snapshot's facts: by the rules of a start, and by what these leave to Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.ext.upgrade_plan.stand_ins import StandIns
from dagster_ckpt.ext.upgrade_plan.verdicts import Findings, StageVerdict
from dagster_ckpt.operations.snapshots.plan_facts import StageFacts
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.plan.facts import PlanFacts, facts_of
from dagster_ckpt.spark.plan.functions import may_mean_another
from dagster_ckpt.spark.plan.rules import why_not

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _variables(facts: PlanFacts, other: PlanFacts) -> list[str]:
    """Return the variables of state that both have, each with its type."""
    mine, theirs = facts.variables or {}, other.variables or {}
    return [f"{name} {mine[name]}" for name in sorted(mine.keys() & theirs.keys())]


_LEFT_TO_THE_RUN = (
    ("sources", lambda facts, other: facts.sources, "positions, and files that were read, are looked at"),
    ("columns of state", lambda facts, other: facts.state_types or (), "Spark refuses another type"),
    ("variables of state", _variables, "Spark refuses another type"),
)
"""Facts that no rule compares, and what a start does about them: another one is neither refused nor passed over."""


@dataclass(frozen=True, kw_only=True)
class PlanComparison:
    """Comparison of one query, as ``check_plan`` makes it, that notes what it finds and goes on."""

    said: StageFacts
    goes_on: bool
    stand_ins: StandIns
    found: Findings

    def __call__(
        self,
        uid: StageUid,
        directory: StageDirectory,
        frame: DataFrame,
        *,
        output_mode: str,
        stages: Sequence[str],
        functions: Mapping[str, str],
        renamed: Mapping[str, str],
    ) -> None:
        """Note what the comparison finds, and write the facts down for the query's readers."""
        now = facts_of(frame, output_mode=output_mode, stages=stages, functions=functions)
        if now is None:
            self.found[StageVerdict.UNKNOWN].append("Spark does not show its plan")
            return
        now.write(directory)
        if not self.goes_on:
            return
        before = PlanFacts.of(self.said.plan, renamed)
        if not before.written_by:
            self.found[StageVerdict.UNKNOWN].append("the snapshot holds no facts of its plan")
            return
        now = self._as_it_would_be(before, now)
        self._ask_rules(uid, before, now)
        self._note_left_to_the_run(before, now)
        self._note_meaning(before, now)

    def _as_it_would_be(self, before: PlanFacts, now: PlanFacts) -> PlanFacts:
        """Return the facts with the sources that stand-ins stand for, and variables where nobody can be asked."""
        real = [self.stand_ins.names.get(name, name) for name in now.sources]
        if real != list(now.sources):
            if any(before.source_options):
                self.found[StageVerdict.UNKNOWN].append(
                    "several of its sources have one name, and are out of reach here: their options are not compared"
                )
            now = replace(now, sources=real, source_options=before.source_options)
        return now if now.variables is not None else replace(now, variables=before.variables)

    def _ask_rules(self, uid: StageUid, before: PlanFacts, now: PlanFacts) -> None:
        why = why_not(replace(before, written_by=now.written_by), now)
        if why and before.written_by != now.written_by:
            either = f"two versions of Spark may write one plan in two ways, and: it {why}"
            self.found[StageVerdict.UNKNOWN].append(either)
        elif why:
            self.found[StageVerdict.REFUSED].append(f"stage {uid!r} {why}")
        if before.written_by != now.written_by:
            self.found[StageVerdict.MEANING].append(
                f"its plan was written by {before.written_by}, and is by {now.written_by} now: Spark itself decides "
                "whether it reads the state"
            )

    def _note_left_to_the_run(self, before: PlanFacts, now: PlanFacts) -> None:
        for what, of, done in _LEFT_TO_THE_RUN:
            was, are = list(of(before, now)), list(of(now, before))
            if was and was != are:
                lost, gained = (
                    "; ".join(one for one in a if one not in b) for a, b in ((was, are), (are, was))
                )
                changes = [f"{verb} {those}" for verb, those in (("lost", lost), ("gained", gained)) if those]
                change = " and ".join(changes) or "changed places"
                self.found[StageVerdict.UNKNOWN].append(f"its {what} have {change}: {done} where it runs")

    def _note_meaning(self, before: PlanFacts, now: PlanFacts) -> None:
        if before.functions is None:
            self.found[StageVerdict.MEANING].append("the snapshot holds no digest of its code")
        elif changed := may_mean_another(before.functions, now.functions or {}):
            others = f"the code of {', '.join(changed)} is another one: rows may mean other things"
            self.found[StageVerdict.MEANING].append(others)
