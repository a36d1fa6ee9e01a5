"""Verdicts of a plan: on the stages of a pipeline, its sources, its sinks, and on the whole."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum


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
