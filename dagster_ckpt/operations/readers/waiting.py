"""Rows that wait: what a pipeline's sinks do not show yet, why, and whether they can be shown as the sinks are now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.authoring.stages import StageDefinition
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.paths import same_place
from dagster_ckpt.core.restore.choice import newest_on_line
from dagster_ckpt.errors import CheckpointError, InvalidRequest
from dagster_ckpt.operations.deployment import Deployment, load_record
from dagster_ckpt.operations.readers.load_table import cut_of
from dagster_ckpt.operations.readers.open_sink import Coordinator, open_sink
from dagster_ckpt.runtime.restore_facts import facts_of
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.sink.phases import waiting_in
from dagster_ckpt.spark.sink.port import Sink
from dagster_ckpt.spark.sink.positions import to_publish
from dagster_ckpt.spark.sink.published import in_another_table, why_put_back
from dagster_ckpt.spark.sink.waiting import (
    RefusedNote,
    SinkNow,
    refuse_changed_sink,
    refused_in,
    to_set_aside,
)
from dagster_ckpt.spark.snapshot.stored import open_snapshot

SHOWN = 5
"""Rows that are shown of a sink."""
_WIDE = 40
"""Characters that are shown of a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRows:
    """Rows of one sink that it does not show yet."""

    sink: StageUid
    place: str
    rows: int
    batches: tuple[int, ...]
    checkpoint_id: int | None = None
    """Checkpoint that the sink has refused; None: none was tried yet."""
    why: str = ""
    """Why they cannot be shown as everything is now; empty: nothing is known against it."""
    columns: tuple[str, ...] = ()
    examples: tuple[tuple[str, ...], ...] = ()
    """The first rows, each value cut short."""


def waiting_rows(pipeline: CheckpointedPipeline, coordinator: Coordinator) -> tuple[WaitingRows, ...]:
    """Return the rows that wait for a pipeline's sinks, by its newest working directory or checkpoint.

    Changes nothing. Raises NotFound for a pipeline that has never run, InvalidRequest where a sink's rows are in
    another table than it has now, Corrupt, Unavailable.
    """
    deployment = coordinator.deployment(pipeline)
    record = load_record(deployment.store, pipeline.name)
    directory = Path(record.working_directory)
    is_adopted = record.clean and bool(record.working_directory) and directory.is_dir()
    attempt = AttemptDirectory(directory) if is_adopted else None  # None: the next attempt restores
    found = []
    for uid, stage in pipeline.stages.items():
        if stage.table is None:
            continue
        sink = open_sink(pipeline, uid, coordinator)
        if attempt is None:
            waiting, note, lost = _of_snapshot(deployment, record, stage, sink), None, ""
        else:
            roots = [
                attempt.stage(one).root for one in stage.names
            ]  # a renamed sink's: under its name of then
            root = next((one for one in roots if one.is_dir()), roots[0])
            lost = why_put_back(root, sink, _called(uid, sink))
            waiting, note = waiting_in(root, sink), refused_in(root)
        if waiting:
            told = _told(pipeline, uid, sink, to_set_aside(waiting, note), note)
            found.append(replace(told, why=lost) if lost else told)
    return tuple(found)


def _of_snapshot(
    deployment: Deployment, record: CoordinatorRecord, definition: StageDefinition, sink: Sink
) -> Sequence[PreparedBatch]:
    """Return the batches the newest checkpoint has prepared for a sink: the working directory is gone."""
    newest = newest_on_line(facts_of(record))
    if newest is None:
        return ()
    source = open_snapshot(deployment.open_storage(newest.location.base_uri), newest.location.folder)
    saved = (source.metadata.stage(one) for one in definition.names)
    stage = next((one for one in saved if one is not None), None)
    if stage is None or stage.table is None:
        return ()
    cut = cut_of(source, stage, stage.table)
    head, place = cut.snapshot.head, cut.snapshot.uri
    if head is not None and not same_place(place, sink.place) and not sink.has_published(head):
        raise in_another_table(_called(definition.uid, sink), place)
    return to_publish(sink.position(), cut)


def _called(uid: StageUid, sink: Sink) -> str:
    return f"sink {uid} ({sink.place})"


def _told(
    pipeline: CheckpointedPipeline,
    uid: StageUid,
    sink: Sink,
    waiting: Sequence[PreparedBatch],
    note: RefusedNote | None,
) -> WaitingRows:
    columns, examples, lost = _examples(sink, waiting)
    return WaitingRows(
        sink=uid,
        place=sink.place,
        rows=sum(file.rows for batch in waiting for file in batch.files),
        batches=tuple(batch.batch_id for batch in waiting),
        checkpoint_id=None if note is None else note.checkpoint_id,
        why=lost or _why_not(pipeline, uid, sink, waiting) or ("" if note is None else note.why),
        columns=columns,
        examples=examples,
    )


def _why_not(
    pipeline: CheckpointedPipeline, uid: StageUid, sink: Sink, waiting: Sequence[PreparedBatch]
) -> str:
    try:
        refuse_changed_sink(uid, pipeline.name, waiting, SinkNow.of(pipeline.stages[uid], sink))
        sink.refuse_unfit(waiting)
    except InvalidRequest as error:
        return " ".join(str(error).split())
    return ""


def _examples(
    sink: Sink, waiting: Sequence[PreparedBatch]
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...], str]:
    """Return columns, first rows, and why these cannot be read."""
    try:
        sink.refuse_lost(waiting)
        part = next(iter(sink.waiting_rows(waiting)), None)
    except CheckpointError as error:
        return (), (), " ".join(str(error).split())
    if part is None:
        return (), (), ""
    rows = islice(part.slice(0, SHOWN).to_pylist(), SHOWN)
    shown = tuple(tuple(_cut(value) for value in row.values()) for row in rows)
    return tuple(part.column_names), shown, ""


def _cut(value: object) -> str:
    text = str(value)
    return text if len(text) <= _WIDE else f"{text[: _WIDE - 1]}…"
