"""Sinks that judge their rows: each is a stage that judges what its function returns, and a sink of what goes on.

Rows that such a stage keeps have a table of their own, and a position in it; a sink has one already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dagster_ckpt.authoring.stages import StageDefinition, StageRole
from dagster_ckpt.core.chains import JUDGES
from dagster_ckpt.core.ids import StageUid, stage_uid
from dagster_ckpt.errors import InvalidRequest

Composition = dict[StageUid, tuple[StageDefinition, tuple[StageUid, ...]]]
"""Stages by uid, each with those that it reads."""


def judged_apart(nodes: Mapping[StageUid, tuple[StageDefinition, tuple[StageUid, ...]]]) -> Composition:
    """Return a composition in which no sink judges rows. Raises InvalidRequest for a name that is taken."""
    found: Composition = {}
    for uid, (stage, upstream) in nodes.items():
        if stage.role is StageRole.SINK and stage.participant is not None:
            judging = _judging(stage)
            if judging.uid in nodes:
                raise InvalidRequest(
                    f"sink {uid!r} judges its rows in a stage {judging.uid!r}, which is the name of another one: give "
                    "that one another uid"
                )
            found[judging.uid] = (judging, upstream)
            found[uid] = (_writing(stage), (judging.uid,))
        else:
            found[uid] = (stage, upstream)
    return found


def _judging(sink: StageDefinition) -> StageDefinition:
    former = tuple(stage_uid(f"{one}{JUDGES}") for one in sink.previous_uids)
    stage = replace(sink, role=StageRole.STAGE, to=None, asset="", previous_uids=former)
    return stage.with_uid(f"{sink.uid}{JUDGES}")


def _writing(sink: StageDefinition) -> StageDefinition:
    return replace(
        sink,
        fn=_as_they_are,
        inputs=("rows",),
        takes_spark=False,
        takes_context=False,
        participant=None,
        state=None,
        partitions=None,
        max_entries_per_trigger=0,
        config_schema=None,
        required_resource_keys=frozenset(),
    )


def names_of_function(uid: StageUid, stages: Mapping[StageUid, StageDefinition]) -> tuple[str, ...]:
    """Return the names that a stage's function has had: a sink's is in the stage that judges its rows, or was."""
    stage, sink = stages[uid], judged_by(uid, stages)
    if stage.fn is _as_they_are:
        return ()
    if sink is not None:
        return (*stage.names, *stages[sink].names)
    judges = (f"{one}{JUDGES}" for one in stage.names if stage.role is StageRole.SINK)
    return (*stage.names, *(one for one in judges if one not in stages))


def _as_they_are(rows: Any) -> Any:
    return rows


def judged_by(uid: StageUid, stages: Mapping[StageUid, StageDefinition]) -> StageUid | None:
    """Return the sink whose rows a stage judges; None: it judges no other one's."""
    return next((one for one in stages if stages[one].fn is _as_they_are and f"{one}{JUDGES}" == uid), None)
