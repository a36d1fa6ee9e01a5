"""Quarantined rows counted, and ordered through their stage again; the pipeline's next batches take them."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.checkpoint.requeue import CHOSEN_BY, RequeueRecord, conditions_in, is_struct, selected
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.errors import InvalidRequest, NotFound
from dagster_ckpt.operations.deployment import change_record, load_record
from dagster_ckpt.operations.readers.open_sink import Coordinator, open_sink
from dagster_ckpt.runtime.record_store import RecordChange

if TYPE_CHECKING:
    import pyarrow as pa


class Stays(StrEnum):
    """Reason why a quarantined row does not go through its stage again, as people read it."""

    LATE = (
        "late again: restore a checkpoint from before the watermark passed them, with a longer withWatermark, or read "
        "them from the table"
    )
    UNPARSED = "text that could not be parsed, or held: mend it in the source"
    OTHER_COLUMNS = "other columns than the newest rows: they stay until the stage returns these again"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueableRows:
    """Rows of one stage's quarantine."""

    stage: StageUid
    place: str
    rows: int = 0
    conditions: dict[str, int] = field(default_factory=dict)
    """By the condition that led them there."""
    others: dict[Stays, int] = field(default_factory=dict)
    """Rows that were chosen and do not go through their stage again, by the reason."""
    waiting: int = 0
    """Earlier orders for this stage whose rows no checkpoint has taken yet."""


def preview_requeue(
    pipeline: CheckpointedPipeline, coordinator: Coordinator, where: str = ""
) -> tuple[RequeueableRows, ...]:
    """Return which quarantined rows an order would put through their stages again; nothing is changed.

    Raises InvalidRequest for another ``where`` than comparisons, and where no stage has a quarantine.
    """
    conditions_in(where)
    kept = [uid for uid, s in pipeline.stages.items() if s.participant is not None and s.participant.table]
    if not kept:
        raise InvalidRequest(
            f"no stage of pipeline {pipeline.name!r} has a quarantine: give one a condition with the action "
            "'quarantine'"
        )
    record = load_record(coordinator.deployment(pipeline).store, pipeline.name)
    return tuple(_counted(pipeline, uid, coordinator, where, record) for uid in kept)


def order_requeue(
    pipeline: CheckpointedPipeline, coordinator: Coordinator, where: str = ""
) -> tuple[RequeueableRows, ...]:
    """Order these rows through today's code of their stages, and return them: the next batch of each stage takes them.

    Raises as ``preview_requeue`` does; Unavailable, OutcomeUnknown.
    """
    found = preview_requeue(pipeline, coordinator, where)
    orders = tuple(
        RequeueRecord(order_id=uuid.uuid4().hex, stage=one.stage, where=where.strip(), asked_at=time.time())
        for one in found
        if one.rows or Stays.OTHER_COLUMNS in one.others
    )

    def add(record: CoordinatorRecord) -> RecordChange[None]:
        # a second order for the same rows is the first
        known = {(one.stage, one.where) for one in record.requeue}
        new = tuple(one for one in orders if (one.stage, one.where) not in known)
        after = record.model_copy(update={"requeue": (*record.requeue, *new)}) if new else None
        return RecordChange(answer=None, record=after)

    if orders:
        change_record(coordinator.deployment(pipeline).store, pipeline.name, add)
    return found


def _counted(
    pipeline: CheckpointedPipeline,
    uid: StageUid,
    coordinator: Coordinator,
    where: str,
    record: CoordinatorRecord,
) -> RequeueableRows:
    sink = open_sink(pipeline, uid, coordinator)
    waiting = sum(one.stage in pipeline.stages[uid].names for one in record.requeue)
    try:
        rows = sink.rows().to_arrow()
    except NotFound:  # nothing was published yet
        return RequeueableRows(stage=uid, place=sink.place, waiting=waiting)
    participant = pipeline.stages[uid].participant
    rereads = participant is not None and participant.rereads
    told = rows.select([*CHOSEN_BY, "state", "input", "at"]).to_pylist()
    columns = _columns_of(rows)
    kept = [(row["at"], name) for row, name in zip(told, columns, strict=True) if name]
    newest = max(kept)[1] if kept else ""
    chosen = [
        (row["condition"], _why_not(row, name, newest, rereads=rereads))
        for row, name in zip(told, columns, strict=True)
        if row["state"] == "quarantined" and selected(where, row.__getitem__) in (None, True)
    ]
    ready = [condition for condition, why in chosen if why is None]
    return RequeueableRows(
        stage=uid,
        place=sink.place,
        rows=len(ready),
        conditions=dict(Counter(ready)),
        others=dict(Counter(why for _, why in chosen if why)),
        waiting=waiting,
    )


def _columns_of(rows: pa.Table) -> list[str]:
    """Return, for each row, the struct that has it as columns; empty: none has."""
    found = [""] * rows.num_rows
    for name in filter(is_struct, rows.column_names):
        found = [
            name if is_there else one
            for one, is_there in zip(found, rows[name].is_valid().to_pylist(), strict=True)
        ]
    return found


def _why_not(row: Mapping[str, Any], columns: str, newest: str, *, rereads: bool) -> Stays | None:
    """Return why a row does not go through its stage again; None: it does."""
    if columns:
        return None if columns == newest else Stays.OTHER_COLUMNS
    if rereads and row["input"] is not None:
        return None
    return Stays.LATE if row["condition"] == "late" else Stays.UNPARSED
