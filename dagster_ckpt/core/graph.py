"""The pipeline as the coordinator sees it: stages, their subtasks, and the channels between them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.core.model import Chain
from dagster_ckpt.errors import InvalidRequest


class EdgePattern(StrEnum):
    """Pattern of an edge: how the subtasks of two stages are connected."""

    ALL_TO_ALL = "all_to_all"
    """Every upstream subtask feeds every downstream subtask (a shuffle; a channel log)."""
    POINTWISE = "pointwise"
    """Upstream subtask i feeds downstream subtask i, or an even share when the numbers differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A channel from one stage to another."""

    upstream: StageUid
    downstream: StageUid
    pattern: EdgePattern = EdgePattern.ALL_TO_ALL
    blocking: bool = False
    """A blocking output is read only when it is finished; until then checkpoints are impossible (Flink 1.1, 1.20)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chaining:
    """An author's settings for running a stage in one query with others; a reason completes "stage x …"."""

    leaves_reader: str = ""
    """Why it does not run in its reader's query; empty: it may."""
    leaves_inputs: str = ""
    """Why none of its inputs runs in its query; empty: they may."""
    bounded: bool = False
    """Of a source: its data ends."""
    reads: Hashable | None = None
    """Of a source: where it says that it reads; None: nothing is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """One stage: a Spark streaming query with one state partition per subtask (1 when stateless)."""

    uid: StageUid
    name: str = ""
    parallelism: int = 1
    max_parallelism: int | None = None
    """Fixed upper bound of the parallelism; None: derived, and adopted from the restored checkpoint."""
    uses_union_state: bool = False
    """List state of which every subtask needs all parts after a restore (Flink's UNION)."""
    previous_uids: tuple[StageUid, ...] = ()
    """Names this stage had before: state saved under one of them is matched to it."""
    chaining: Chaining = Chaining()
    function_of: StageUid | None = None
    """Sink whose rows it judges, with that one's function; None: it is no such stage."""


@dataclass(frozen=True, kw_only=True)
class PipelineGraph:
    """Stages and edges of one pipeline. Raises InvalidRequest when they do not form a directed acyclic graph."""

    pipeline: PipelineId
    stages: tuple[StageSpec, ...]
    edges: tuple[Edge, ...] = ()
    chains: tuple[Chain, ...] = ()
    """Stages that run as one query: here they are one stage, under the last one's uid (``core.chains``)."""
    unchained: PipelineGraph | None = None
    """The stages as their author connected them; None: this is that graph."""
    previous_names: tuple[PipelineId, ...] = ()
    """Names the pipeline had before: their snapshots and tables are its own."""

    def __post_init__(self) -> None:
        uids = [stage.uid for stage in self.stages]
        doubled = sorted({uid for uid in uids if uids.count(uid) > 1})
        if doubled:
            raise InvalidRequest(
                f"pipeline {self.pipeline!r} has more than one stage with uid {doubled[0]!r}: "
                "a uid names the state of one stage, so give each stage its own"
            )
        if not uids:
            raise InvalidRequest(f"pipeline {self.pipeline!r} has no stage")
        for stage in self.stages:
            limit = stage.max_parallelism
            if stage.parallelism < 1 or (limit is not None and stage.parallelism > limit):
                raise InvalidRequest(
                    f"stage {stage.uid!r} of pipeline {self.pipeline!r} has parallelism {stage.parallelism}: "
                    f"it must be at least 1{'' if limit is None else f' and at most max_parallelism {limit}'}"
                )
        for edge in self.edges:
            for end in (edge.upstream, edge.downstream):
                if end not in uids:
                    raise InvalidRequest(f"an edge of pipeline {self.pipeline!r} names unknown stage {end!r}")
        _ = self.topological

    @property
    def authored(self) -> PipelineGraph:
        """The stages as their author connected them."""
        return self.unchained or self

    @cached_property
    def by_uid(self) -> dict[StageUid, StageSpec]:
        """Stages by uid."""
        return {stage.uid: stage for stage in self.stages}

    @cached_property
    def inputs(self) -> dict[StageUid, tuple[Edge, ...]]:
        """Edges that end in each stage, in declaration order."""
        return {s.uid: tuple(e for e in self.edges if e.downstream == s.uid) for s in self.stages}

    @cached_property
    def outputs(self) -> dict[StageUid, tuple[Edge, ...]]:
        """Edges that begin in each stage, in declaration order."""
        return {s.uid: tuple(e for e in self.edges if e.upstream == s.uid) for s in self.stages}

    @cached_property
    def sources(self) -> tuple[StageSpec, ...]:
        """Stages without an input."""
        return tuple(s for s in self.stages if not self.inputs[s.uid])

    @cached_property
    def topological(self) -> tuple[StageSpec, ...]:
        """Stages so that each comes after all its inputs; declaration order where there is a choice."""
        placed: dict[StageUid, StageSpec] = {}
        while len(placed) < len(self.stages):
            ready = [
                s for s in self._waiting(placed) if all(e.upstream in placed for e in self.inputs[s.uid])
            ]
            if not ready:
                ring = ", ".join(sorted(s.uid for s in self._waiting(placed)))
                raise InvalidRequest(f"pipeline {self.pipeline!r} has a cycle among the stages {ring}")
            placed.update((s.uid, s) for s in ready)
        return tuple(placed.values())

    def _waiting(self, placed: dict[StageUid, StageSpec]) -> Iterator[StageSpec]:
        return (stage for stage in self.stages if stage.uid not in placed)
