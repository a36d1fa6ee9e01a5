"""Maintenance of a pipeline's tables: small files merged, old ones removed, never what a retained snapshot needs."""

from __future__ import annotations

import operator
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from typing import TYPE_CHECKING, Any

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.checkpoint.tables import LATE, RequeueRecord
from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.core.model import StageSnapshot, TableSnapshot
from dagster_ckpt.core.paths import same_place
from dagster_ckpt.errors import CheckpointError, InvalidRequest, NotFound
from dagster_ckpt.operations.deployment import Deployment, change_record, load_record
from dagster_ckpt.operations.readers.open_sink import Coordinator, open_sink
from dagster_ckpt.operations.snapshots.facts import entries_of
from dagster_ckpt.runtime.record_store import RecordChange
from dagster_ckpt.spark.sink.port import Sink, Upkeep
from dagster_ckpt.spark.sink.positions import as_fork_began
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot, open_snapshot

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUpkeep:
    """Upkeep of one table."""

    sink: str
    place: str
    done: tuple[Upkeep, ...] = ()
    problem: str = ""
    """Why nothing, or not all of it, was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedTable:
    """A sink's part of a retained snapshot."""

    key: str
    source: StoredSnapshot
    stage: StageSnapshot
    table: TableSnapshot
    pipeline: PipelineId
    """Pipeline that retains it."""

    @property
    def began(self) -> str:
        """Fork that began with it; empty: it is the pipeline's own."""
        return self.pipeline if self.source.metadata.pipeline != self.pipeline else ""


def plan_maintenance(pipeline: CheckpointedPipeline, coordinator: Coordinator) -> tuple[TableUpkeep, ...]:
    """Return the upkeep that ``maintain_tables`` would do; nothing is changed. Raises as it does."""
    return _each(pipeline, coordinator, lambda sink, needed: sink.upkeep(needed))


def maintain_tables(pipeline: CheckpointedPipeline, coordinator: Coordinator) -> tuple[TableUpkeep, ...]:
    """Maintain every table of the pipeline, also while it runs; a table that fails does not stop the others.

    Raises Corrupt where a retained snapshot cannot be read (then nothing can be called old), NotFound, Unavailable.
    """
    return _each(pipeline, coordinator, lambda sink, needed: sink.maintain(needed))


def retained_tables(deployment: Deployment) -> Iterator[RetainedTable]:
    """Yield the tables of all retained checkpoints and savepoints of all pipelines: a fork's may be another's.

    Raises Corrupt, Unavailable where one cannot be read.
    """
    for pipeline in deployment.store.pipelines():
        for entry in entries_of(load_record(deployment.store, pipeline)):
            storage = deployment.open_storage(entry.location.base_uri)
            source = open_snapshot(storage, entry.location.folder, recorded=entry.metadata_checksum)
            for stage in source.metadata.stages:
                if stage.table is not None:
                    yield RetainedTable(
                        key=entry.known.key,
                        source=source,
                        stage=stage,
                        table=stage.table,
                        pipeline=pipeline,
                    )


def shown_tables(deployment: Deployment) -> Iterator[TableSnapshot]:
    """Yield the tables that readers of several at one moment find, of all pipelines."""
    for pipeline in deployment.store.pipelines():
        shown = load_record(deployment.store, pipeline).shown
        yield from () if shown is None else (table.as_cut() for table in shown.tables.values())


def _each(
    pipeline: CheckpointedPipeline,
    coordinator: Coordinator,
    act: Callable[[Sink, Sequence[TableSnapshot]], Sequence[Upkeep]],
) -> tuple[TableUpkeep, ...]:
    deployment = coordinator.deployment(pipeline)
    load_record(deployment.store, pipeline.name)  # says what there is
    retained = list(retained_tables(deployment))
    done = []
    for uid, stage in pipeline.stages.items():
        if stage.table is not None:
            sink = open_sink(pipeline, uid, coordinator)
            left = (one for found in retained for one in found.source.metadata.left_tables.values())
            tables = [*(found.table for found in retained), *left, *shown_tables(deployment)]
            needed = [table for table in tables if same_place(table.uri, sink.place)]
            began = (
                found for found in retained if found.began == pipeline.name and found.stage.uid in stage.names
            )
            needed += [as_fork_began(found.table, sink.place) for found in began]
            done.append(_one(uid, sink, needed, act))
    return tuple(done)


def _one(
    uid: StageUid,
    sink: Sink,
    needed: Sequence[TableSnapshot],
    act: Callable[[Sink, Sequence[TableSnapshot]], Sequence[Upkeep]],
) -> TableUpkeep:
    try:
        return TableUpkeep(sink=uid, place=sink.place, done=tuple(act(sink, needed)))
    except CheckpointError as error:
        return TableUpkeep(sink=uid, place=sink.place, problem=str(error))


CHOSEN_BY: dict[str, type] = {"condition": str, "id": str, "stage": str, "batch": int, "tries": int}
"""Columns of a quarantine that rows are chosen by."""
COLUMNS = "columns"
"""Struct of a quarantine with the columns of the stage, and first part of the names of others that it has had."""
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_ONE = re.compile(r"\s*(\w+)\s*(=|<>|<=|>=|<|>)\s*('(?:[^']|'')*'|-?[0-9]{1,18}\b)\s*")
_AND = re.compile(r"AND\b", re.IGNORECASE)


def is_struct(name: str) -> bool:
    """Tell whether a column of a quarantine is such a struct."""
    return re.fullmatch(rf"{COLUMNS}(_\d+)?", name) is not None


def conditions_in(where: str) -> list[tuple[str, str, str | int]]:
    """Return the comparisons of ``condition = 'amount > 0' AND tries < 3``. Raises InvalidRequest for anything else.

    So small a language means the same to whoever counts the rows and to Spark, which takes them.
    """
    found: list[tuple[str, str, str | int]] = []
    at = 0
    while where.strip():
        one = _ONE.match(where, at)
        if one is None:
            raise _refused(where, f"{where[at:].strip() or 'its end'!r} is none")
        column, sign, literal = one.groups()
        value: str | int = literal[1:-1].replace("''", "'") if literal.startswith("'") else int(literal)
        if column not in CHOSEN_BY or not isinstance(value, CHOSEN_BY[column]):
            kinds = {str: "a text in single quotes", int: "a whole number"}
            why = (
                f"{column} takes {kinds[CHOSEN_BY[column]]}"
                if column in CHOSEN_BY
                else f"{column!r} is no column"
            )
            raise _refused(where, why)
        found.append((column, sign, value))
        joined = _AND.match(where, one.end())
        if joined is None and one.end() == len(where):
            break
        if joined is None:
            raise _refused(where, f"before {where[one.end() :]!r} there is no AND")
        at = joined.end()
    return found


def _refused(where: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"where={where!r}: give comparisons of {', '.join(CHOSEN_BY)} by {' '.join(_OPERATORS)}, joined by AND, such "
        f"as \"condition = 'amount > 0' AND tries < 3\": {why}"
    )


def selected(where: str, column: Callable[[str], Any], names: Sequence[str] = ()) -> Any:
    """Return the condition on a row that ``where`` means, of columns as the reader has them; None: every row.

    ``names``: those that the stage has had; by one of them all of its rows are meant.
    """

    def compared(name: str, sign: str, value: str | int) -> Any:
        if name == "stage" and value in names and sign in ("=", "<>"):
            return reduce(operator.or_, (column(name) == one for one in names)) == (sign == "=")
        return _OPERATORS[sign](column(name), value)

    parts = [compared(*one) for one in conditions_in(where)]
    return reduce(operator.and_, parts) if parts else None


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
    names = pipeline.stages[uid].names
    waiting = sum(one.stage in names for one in record.requeue)
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
        if row["state"] == "quarantined" and selected(where, row.__getitem__, names) in (None, True)
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
    return Stays.LATE if row["condition"] == LATE else Stays.UNPARSED
