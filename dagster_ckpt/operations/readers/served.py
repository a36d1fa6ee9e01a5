"""Whose tables readers find, of any pipeline of a store: by its own name, and by the names that it serves."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.checkpoint.shown import ServingRecord
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.units import moment
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.operations.deployment import find_record
from dagster_ckpt.ports import CoordinatorStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """Latest swap that a pipeline had a part in."""

    name: PipelineId
    """Pipeline that readers name."""
    serving: PipelineId
    """Pipeline whose tables they find."""
    before: PipelineId
    """Pipeline whose tables they found until then."""
    since: float
    """Seconds since the Unix epoch."""

    def sentence(self, of: str) -> str:
        """The readers' tables in a sentence, for people who look at pipeline ``of``."""
        at = f"since {moment(self.since)}; before: {self.before}"
        return f"{readers_sentence(of, name=self.name, serving=self.serving)} {at}"


def readers_sentence(of: str, *, name: str, serving: str) -> str:
    """Say whose tables readers of a name find, to people who look at pipeline ``of``."""
    whose = "readers" if of == name else f"readers of {name}"
    if serving != of:
        return f"{whose} find the tables of {serving}"
    return f"{whose} find its {'own ' if of == name else ''}tables"


def readers_of(store: CoordinatorStore, record: CoordinatorRecord) -> Readers | None:
    """Return the swap by which a pipeline serves, or is served by another; None: no swap of this store concerns it.

    Records of others that are damaged are passed over. Raises Unavailable.
    """
    own = PipelineId(record.pipeline)
    if record.serving is not None:
        return _readers(own, record.serving)
    ended = None
    for name in store.pipelines():
        serving = None if name == own else _serving_of(store, name)
        if serving is not None and serving.pipeline == own:
            return _readers(name, serving)
        if serving is not None and serving.before == own:
            ended = _readers(name, serving)
    return ended


def _serving_of(store: CoordinatorStore, name: PipelineId) -> ServingRecord | None:
    try:
        found = find_record(store, name)
    except Corrupt:
        return None
    return None if found is None else found.serving


def _readers(name: PipelineId, serving: ServingRecord) -> Readers:
    return Readers(
        name=name,
        serving=PipelineId(serving.pipeline),
        before=PipelineId(serving.before),
        since=serving.since,
    )
