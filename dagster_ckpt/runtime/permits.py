"""The only place that makes a CommitPermit: from a committed record whose epoch is ours."""

from __future__ import annotations

from contextlib import suppress

from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.errors import InvalidRequest, Unavailable
from dagster_ckpt.ports import CommitPermit
from dagster_ckpt.runtime.engine import Engine

_PROOF = object()


def make_permit(engine: Engine, checkpoint_id: CheckpointId) -> CommitPermit:
    """Return the permit to publish what belongs to a completed checkpoint.

    The record is read again first. Raises Fenced when a newer attempt owns the pipeline, InvalidRequest when the
    checkpoint is not complete.
    """
    with suppress(Unavailable):  # the record this process stored or loaded last still proves the completion
        engine.refresh()
    record = engine.stored
    is_complete = record.completed_of(checkpoint_id) is not None or checkpoint_id == record.latest_completed
    if not is_complete:
        raise InvalidRequest(f"checkpoint {checkpoint_id} is not complete: nothing of it may be published")
    return CommitPermit(engine.pipeline, engine.state.epoch, checkpoint_id, _PROOF)
