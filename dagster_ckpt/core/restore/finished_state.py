"""May a snapshot with finished stages be restored into this graph?

A finished stage will never send anything again, so nothing that still runs may be put in front of it.
Source: flink-runtime VertexFinishedStateChecker, VertexFinishedStateCheckerTest. Only a restore that a
person asked for can meet an edited graph; after a failure the check passes by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import assert_never

from dagster_ckpt.core.graph import EdgePattern, PipelineGraph
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.errors import InvalidRequest


def staying_finished(parts: Mapping[StageUid, bool]) -> frozenset[StageUid]:
    """Return the stages that do not run again, of those of a snapshot and whether each had finished.

    None where all had: that run was over, and the next is another one, which reads what has come since.
    """
    return frozenset(() if all(parts.values()) else (uid for uid, finished in parts.items() if finished))


class FinishedState(StrEnum):
    """Finished state of one operator's subtasks."""

    ALL_RUNNING = "all running"
    PARTIALLY_FINISHED = "partially finished"
    FULLY_FINISHED = "fully finished"


def check_finished_states(graph: PipelineGraph, saved: Mapping[StageUid, Sequence[FinishedState]]) -> None:
    """Raise InvalidRequest where a finished stage would get input again.

    ``saved`` gives the states of the operators chained in a stage; a stage that is missing there is new,
    so it runs.
    """
    states = {stage.uid: _of_chain(stage.uid, saved.get(stage.uid, ())) for stage in graph.stages}
    for stage in graph.topological:
        match states[stage.uid]:
            case FinishedState.ALL_RUNNING:
                continue
            case FinishedState.PARTIALLY_FINISHED:
                _check_before_partially_finished(graph, stage.uid, states)
            case FinishedState.FULLY_FINISHED:
                _check_before_fully_finished(graph, stage.uid, states)
            case unknown:
                assert_never(unknown)


def _of_chain(uid: StageUid, operators: Sequence[FinishedState]) -> FinishedState:
    found = sorted(set(operators))
    if len(found) > 1:
        raise InvalidRequest(
            f"stage {uid!r} chains operators that are {' and '.join(found)} in the snapshot: "
            "operators of one stage finish together, so restore into the graph the snapshot was taken of"
        )
    return found[0] if found else FinishedState.ALL_RUNNING


def _check_before_fully_finished(
    graph: PipelineGraph, uid: StageUid, states: Mapping[StageUid, FinishedState]
) -> None:
    for edge in graph.inputs[uid]:
        if states[edge.upstream] is not FinishedState.FULLY_FINISHED:
            raise _illegal(edge.upstream, states[edge.upstream], uid, states[uid])


def _check_before_partially_finished(
    graph: PipelineGraph, uid: StageUid, states: Mapping[StageUid, FinishedState]
) -> None:
    for edge in graph.inputs[uid]:
        upstream = states[edge.upstream]
        match edge.pattern:
            case EdgePattern.ALL_TO_ALL:
                legal = upstream is FinishedState.FULLY_FINISHED
            case EdgePattern.POINTWISE:
                legal = upstream is not FinishedState.ALL_RUNNING
            case unknown:
                assert_never(unknown)
        if not legal:
            raise _illegal(edge.upstream, upstream, uid, states[uid])


def _illegal(
    upstream: StageUid, upstream_state: FinishedState, uid: StageUid, state: FinishedState
) -> InvalidRequest:
    return InvalidRequest(
        f"stage {upstream!r} ({upstream_state}) feeds stage {uid!r}, which is {state} in the snapshot "
        f"and would not read what {upstream!r} still sends: restore without that edge, or give {uid!r} a "
        "new uid"
    )
