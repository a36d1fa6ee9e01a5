"""Context of a stage's function, and ``state=Class``: an object of its own, whose state is each checkpoint's.

Flink: CheckpointedFunction. The object is asked after every micro-batch, so that its state is of the cut's last row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OF_FLINK = {"snapshotState": "snapshot_state", "initializeState": "initialize_state"}


@dataclass(frozen=True, slots=True)
class StageContext:
    """Context of a stage function, beside its inputs: name a parameter ``context``."""

    spark: SparkSession
    uid: StageUid
    config: Mapping[str, Any] = field(default_factory=dict)
    """The op's run config, when the stage declares a ``config_schema``."""
    resources: Any = None
    """Dagster resources named in ``required_resource_keys``."""
    hooks: Mapping[str, Any] = field(default_factory=dict)
    """The pipeline's hooks of this attempt, by uid."""
    state: Any = None
    """The stage's own object, as the checkpoint had it (``state=``)."""


def check_state(stage: str, given: Any, *, judges: bool) -> None:
    """Raise InvalidRequest for what is no class with the two methods, and beside conditions on rows."""
    if not isinstance(given, type):
        raise InvalidRequest(
            f"{stage!r} has state={given!r}: give a class, of which each run makes an object"
        )
    name = given.__name__
    for theirs, ours in _OF_FLINK.items():
        if hasattr(given, theirs):
            raise InvalidRequest(f"{stage!r} has state={name}, which has {theirs}: call it {ours}")
        if not callable(getattr(given, ours, None)):
            raise InvalidRequest(
                f"{stage!r} has state={name}, which has no {ours}: give it snapshot_state(self), which returns JSON, "
                "and initialize_state(self, state), which gets that back (None: it begins)"
            )
    if judges:
        raise InvalidRequest(
            f"{stage!r} has state={name} and conditions on its rows, for which rows are read twice: "
            "give the state to a stage of its own before it"
        )


def begun(made_by: type, state: Any = None) -> Any:
    """Return a new object that begins with a state; None: with none."""
    made = made_by()
    made.initialize_state(state)
    return made
