"""Lineage: the identity of a pipeline's history, and the refusal to run behind what the world has seen of it.

Epochs, checkpoint ids and batch ids are unique within one history only. A database that was put back, lost or swapped
knows less than the storage, the working directory and the sinks; whoever went on from it would use numbers again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.errors import InvalidRequest

WAYS_OUT = (
    "Ways out: bring back what is missing; restore_from a snapshot you choose, which goes on above every number seen; "
    "restore_from 'none' to read all data again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Newest of a pipeline that was found outside the coordinator store."""

    where: str
    """For people: ``table /lake/orders``, ``the checkpoint storage s3://…``."""
    lineage: str = ""
    """Empty: written before histories had an identity."""
    epoch: int = 0
    checkpoint_id: int = 0
    holds: bool = True
    """It has snapshots or rows that a start without state would leave behind."""
    running: str = ""
    """Run that is at work under a former name of the pipeline; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownHistory:
    """History as the coordinator store has it."""

    pipeline: PipelineId
    is_recorded: bool
    previous_names: tuple[str, ...] = ()
    """Names the pipeline had before."""
    lineage: str = ""
    lineages: tuple[str, ...] = ()
    """Histories it goes on from."""
    is_rebuilt: bool = False
    """Built again from the storage: attempts since its newest checkpoint are not known."""
    epoch: int = 0
    next_checkpoint_id: int = 1

    def owns(self, lineage: str) -> bool:
        """Tell whether what carries this id is the pipeline's own."""
        return lineage in ("", self.lineage, *self.lineages)

    def is_behind(self, seen: Seen) -> bool:
        """Tell whether the world has seen more than the store knows."""
        return (
            seen.epoch > self.epoch and not self.is_rebuilt
        ) or seen.checkpoint_id >= self.next_checkpoint_id


def refuse_former_name(known: KnownHistory, seen: Iterable[Seen], newest: str, *, is_chosen: bool) -> None:
    """Raise InvalidRequest where a former name runs, or nobody says with which snapshot of it to begin."""
    if not known.previous_names:
        return
    former, found = known.previous_names[0], list(seen)
    running = next((one for one in found if one.running), None)
    if running is not None:
        raise InvalidRequest(
            f"pipeline {known.pipeline!r} names its former name in previous_names, and {running.where} says that run "
            f"{running.running!r} is at work: stop it first, or, where the two are different pipelines, take the name "
            "out of previous_names"
        )
    left = [one for one in found if one.holds]
    if left and not known.is_recorded and not is_chosen:
        raise InvalidRequest(
            f"pipeline {known.pipeline!r}, which was called {former!r}, has no checkpoint under this name yet, and "
            f"{_list(left)}. Nothing was started. Say what it begins with: restore_from the newest snapshot of "
            f"{former!r}, by its URI{_hint(newest)}; or 'none' to read all data again"
        )


def refuse_lost_record(known: KnownHistory, seen: Iterable[Seen], newest: str) -> None:
    """Raise InvalidRequest where the store has no record of a pipeline that has left something.

    ``newest``: the newest snapshot found, as a restore point.
    """
    left = [one for one in seen if one.holds]
    if left and not known.is_recorded:
        raise InvalidRequest(
            f"the coordinator store has no record of pipeline {known.pipeline!r}, but {_list(left)}: the store was "
            f"lost, or is another one. Nothing was started. {WAYS_OUT}{_hint(newest)}; 'dagster-ckpt doctor "
            f"{known.pipeline} --repair' rebuilds the record from the storage"
        )


def refuse_another_history(known: KnownHistory, seen: Iterable[Seen], *, is_chosen: bool) -> None:
    """Raise InvalidRequest where something of the pipeline is another history's than the store's."""
    for one in seen:
        if known.is_recorded and not known.owns(one.lineage) and (known.lineage or not is_chosen):
            raise InvalidRequest(_foreign(known, one))


def refuse_older_store(known: KnownHistory, seen: Iterable[Seen], newest: str) -> None:
    """Raise InvalidRequest where more of the pipeline was seen than the store knows."""
    ahead = [one for one in seen if known.is_behind(one)]
    if ahead and known.is_recorded:
        raise InvalidRequest(
            f"the coordinator store is behind: it knows pipeline {known.pipeline!r} up to attempt {known.epoch} and "
            f"checkpoint {known.next_checkpoint_id - 1}, but {_list(ahead)}. It was put back to an older copy. "
            f"Nothing was started. {WAYS_OUT}{_hint(newest)}; adopt_history to go on from the latest snapshot it knows"
        )


def _foreign(known: KnownHistory, one: Seen) -> str:
    former = "".join(f", {name!r} before" for name in known.previous_names)
    again = ", or it has run under its former name since" if former else ""
    return (
        f"{one.where} belongs to another history ({one.lineage}) of a pipeline named {known.pipeline!r}{former} than "
        f"the coordinator store ({known.lineage or 'none yet'}): another deployment uses it, or the store was "
        f"replaced{again}. "
        "Nothing was started. Give this deployment places of its own, or set adopt_history to take that history over"
    )


def _list(seen: Iterable[Seen]) -> str:
    return ", ".join(
        f"{one.where} has seen attempt {one.epoch}"
        + (f" and checkpoint {one.checkpoint_id}" if one.checkpoint_id else "")
        for one in seen
    )


def _hint(newest: str) -> str:
    return f" (the newest snapshot found is {newest})" if newest else ""
