"""From the few words of a scenario to a pipeline graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TypeVar

from dagster_ckpt.core.graph import Edge, EdgePattern, PipelineGraph, StageSpec
from dagster_ckpt.core.ids import CheckpointId, StageUid, pipeline_id
from dagster_ckpt.errors import InvalidRequest, NotFound

E = TypeVar("E", bound=Enum)

EdgeLike = Edge | tuple[str, str] | tuple[str, str, str]
"""An edge, or (upstream, downstream), or (upstream, downstream, "pointwise" | "all_to_all")."""


def build_graph(
    pipeline: str,
    stages: Mapping[str, int] | Sequence[StageSpec],
    edges: Sequence[EdgeLike],
    union_state: frozenset[str],
) -> PipelineGraph:
    """Return the graph a scenario names: stages with their parallelism, edges as pairs (and a pattern).

    Raises NotFound for an unknown stage, InvalidRequest for what is no stage, edge or pattern.
    """
    if isinstance(stages, Mapping):
        if odd := [f"{uid}: {width!r}" for uid, width in stages.items() if not isinstance(width, int)]:
            raise InvalidRequest(f"stages maps each uid to its parallelism, a number, got {odd[0]}")
        specs = tuple(
            StageSpec(uid=StageUid(uid), parallelism=width, uses_union_state=uid in union_state)
            for uid, width in stages.items()
        )
    else:
        specs = tuple(stages)
        if other := [s for s in specs if not isinstance(s, StageSpec)]:
            raise InvalidRequest(f"stages is {{uid: parallelism}} or a list of StageSpec, got {other[0]!r}")
    if strange := sorted(union_state - {s.uid for s in specs}):
        raise unknown_stage(strange[0], [s.uid for s in specs])
    return PipelineGraph(pipeline=pipeline_id(pipeline), stages=specs, edges=tuple(_edge(e) for e in edges))


def _edge(given: EdgeLike) -> Edge:
    if isinstance(given, Edge):
        return given
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        raise InvalidRequest(f"an edge is (upstream, downstream) or one more with the pattern, got {given!r}")
    pattern = one_of(EdgePattern, given[2], "pattern") if len(given) == 3 else EdgePattern.ALL_TO_ALL
    return Edge(upstream=StageUid(given[0]), downstream=StageUid(given[1]), pattern=pattern)


def unknown_stage(uid: str, stages: Iterable[str]) -> NotFound:
    """Return the error for a stage that is not there; it names those that are."""
    return NotFound(f"there is no stage {uid!r}: the stages are {', '.join(sorted(stages))}")


def number_of(given: int) -> CheckpointId:
    """Return a checkpoint's id. Raises InvalidRequest for anything but a number."""
    if not isinstance(given, int):
        raise InvalidRequest(f"checkpoints are named by their number, got {given!r}")
    return CheckpointId(given)


def one_of(kind: type[E], given: E | str, what: str) -> E:
    """Return the member ``given`` is or names, by its name or its value, in any case.

    Raises InvalidRequest that lists the names.
    """
    if isinstance(given, kind):
        return given
    wanted = str(given).lower()
    for member in kind:
        if wanted in (member.name.lower(), str(member.value).lower()):
            return member
    raise InvalidRequest(f"{what} must be one of {', '.join(m.name for m in kind)}, got {given!r}")
