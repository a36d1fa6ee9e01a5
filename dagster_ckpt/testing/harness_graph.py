"""From the few words of a scenario to a pipeline graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster_ckpt.core.graph import Edge, EdgePattern, PipelineGraph, StageSpec
from dagster_ckpt.core.ids import StageUid, pipeline_id

EdgeLike = Edge | tuple[str, str] | tuple[str, str, str]
"""An edge, or (upstream, downstream), or (upstream, downstream, "pointwise" | "all_to_all")."""


def build_graph(
    pipeline: str,
    stages: Mapping[str, int] | Sequence[StageSpec],
    edges: Sequence[EdgeLike],
    union_state: frozenset[str],
) -> PipelineGraph:
    """Return the graph a scenario names: stages with their parallelism, edges as pairs (and a pattern)."""
    if isinstance(stages, Mapping):
        specs = tuple(
            StageSpec(uid=StageUid(uid), parallelism=width, uses_union_state=uid in union_state)
            for uid, width in stages.items()
        )
    else:
        specs = tuple(stages)
    return PipelineGraph(pipeline=pipeline_id(pipeline), stages=specs, edges=tuple(_edge(e) for e in edges))


def _edge(given: EdgeLike) -> Edge:
    if isinstance(given, Edge):
        return given
    pattern = EdgePattern(given[2]) if len(given) == 3 else EdgePattern.ALL_TO_ALL
    return Edge(upstream=StageUid(given[0]), downstream=StageUid(given[1]), pattern=pattern)
