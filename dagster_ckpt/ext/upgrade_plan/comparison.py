"""Comparison of a changed query's plan with a snapshot's facts: its verdicts, and stand-ins of sources out of reach."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.errors import InvalidRequest, first_line
from dagster_ckpt.ext.wrapped import FILES, options_asked, readers
from dagster_ckpt.operations.snapshots.export import StageFacts
from dagster_ckpt.spark.channel.schema import parsed_schema
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.plan.facts import PlanFacts, facts_of
from dagster_ckpt.spark.plan.functions import may_mean_another
from dagster_ckpt.spark.plan.rules import why_not

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class StageVerdict(StrEnum):
    """StageVerdict on a stage, the worst first."""

    REFUSED = "refused"
    UNKNOWN = "cannot be told"
    DROPPED = "its state is dropped"
    EMPTY = "begins empty"
    REDISTRIBUTED = "goes on, redistributed"
    WAITS = "goes on, rows wait"
    MEANING = "goes on, its meaning may have changed"
    GOES_ON = "goes on"


WORST_FIRST = tuple(StageVerdict)


class Findings(defaultdict[StageVerdict, list[str]]):
    """Findings on one stage: sentences by the verdict that they lead to."""

    def __init__(self) -> None:
        super().__init__(list)

    @property
    def verdict(self) -> StageVerdict:
        """The worst verdict."""
        return next((verdict for verdict in WORST_FIRST if verdict in self), StageVerdict.GOES_ON)

    def plan(self, uid: str) -> StagePlan:
        """Return the plan of the stage."""
        sentences = dict.fromkeys(why for one in WORST_FIRST for why in self.get(one, ()))
        return StagePlan(uid=uid, verdict=self.verdict, why=tuple(sentences))


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """Plan of one stage, or of one chain under its last stage's uid."""

    uid: str
    verdict: StageVerdict
    why: tuple[str, ...] = ()
    """Sentences, those of the verdict first; a refusal names its ways out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """Plan of one source."""

    stage: str
    source: str
    reads_on: str
    """From where it reads on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """Plan of one sink."""

    stage: str
    table: str
    becomes: str


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    """Plan of an upgrade."""

    pipeline: str
    snapshot: str
    refusals: tuple[str, ...]
    """Why no run of this code begins with the snapshot, whatever its stages are."""
    stages: tuple[StagePlan, ...] = ()
    sources: tuple[SourcePlan, ...] = ()
    sinks: tuple[SinkPlan, ...] = ()

    @property
    def verdict(self) -> StageVerdict:
        """The worst verdict."""
        found = [stage.verdict for stage in self.stages] or [StageVerdict.GOES_ON]
        return StageVerdict.REFUSED if self.refusals else min(found, key=WORST_FIRST.index)


_TOPICS = ("subscribe", "subscribePattern", "assign")


class NotAtHand(InvalidRequest):
    """Something that a stage's function needs is not there where a plan is made."""


@dataclass(kw_only=True)
class StandIns:
    """Stand-ins of one pipeline's sources; in ``active`` Spark's readers of streams fall back on them."""

    scratch: Path
    known: dict[str, str] = field(default_factory=dict)
    """Schemas (JSON) of sources by their names in plans, as the snapshot holds them."""
    names: dict[str, str] = field(default_factory=dict)
    """Names that plans have of stand-ins, and those of what they stand in for."""

    def active(self) -> AbstractContextManager[None]:
        """Have every reader of streams in this process fall back on stand-ins."""
        return readers(self._falling_back)

    def _falling_back(self, name: str, load: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
        def loaded(reader: Any, path: Any = None, *rest: Any, **options: Any) -> DataFrame:
            asked = options_asked(reader)
            if name != "load":
                asked["format"] = name
            asked |= {key: value for key, value in options.items() if value is not None}
            if path is not None:
                asked["path"] = path
            try:
                return load(reader, *(() if path is None else (path,)), *rest, **options)
            except Exception as error:  # a folder, a broker or a connector that is not here
                return self._stand_in(reader, asked, error)

        return loaded

    def _stand_in(self, reader: Any, asked: Mapping[str, Any], error: Exception) -> DataFrame:
        name = _name_of(asked)
        given = asked.get("schema")
        schema = given if given is not None else self.known.get(name)
        if schema is None:
            said = first_line(error)
            raise NotAtHand(
                f"source {name} cannot be reached here ({said}), and the snapshot holds no schema of it: give its "
                "reader a schema, or plan where it can be reached"
            ) from error
        empty = tempfile.mkdtemp(prefix="source-", dir=self.scratch)
        self.names[f"FileSource[{empty}]"] = name
        columns = schema if given is not None else parsed_schema(schema)
        made: DataFrame = reader._spark.readStream.schema(columns).parquet(empty)
        return made


def _name_of(asked: Mapping[str, Any]) -> str:
    """Return the name that plans have of a source."""
    kind = str(asked.get("format", ""))
    if kind in FILES or (not kind and "path" in asked):
        return f"FileSource[{asked.get('path', '')}]"
    topics = next((asked[option] for option in _TOPICS if option in asked), "")
    return f"{kind}[{topics}]" if kind == "kafka" else kind


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
