"""Second phase of a table: what a completed checkpoint covers becomes visible, once, whatever crashes in between.

A publish is: write its record (the intent), move or merge its files, set the head. Every step can be repeated,
and a publish that stopped anywhere is finished from its record by the next one that opens the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from dagster_ckpt.core.ids import BatchId, CoordinatorEpoch
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.files import classified, flush_to_disk, move_whole
from dagster_ckpt.spark.sink.committables import PreparedBatch, TableFile, read_committables
from dagster_ckpt.spark.table.buckets import located_versions, show_versions, touched_buckets, write_versions
from dagster_ckpt.spark.table.log import Table, refuse_fenced, refuse_half_rolled_back
from dagster_ckpt.spark.table.records import (
    Append,
    PublishRecord,
    TableState,
    Upsert,
)
from dagster_ckpt.spark.table.sink import (
    unpublished_batches,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """These rows became visible by this call; ``head`` is the table's new head."""

    head: int | None
    files: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class AlreadyPublished:
    """Everything the checkpoint covers was visible before; nothing was done."""

    head: int | None


def publish(
    table: Table, *, stage_dir: Path, through_batch: BatchId | None, permit: CommitPermit
) -> Published | AlreadyPublished:
    """Make the batches that the permit's checkpoint covers visible: those up to ``through_batch`` not yet
    published.

    Idempotent. Raises Fenced when a newer attempt owns the table, Corrupt when a staged file is gone,
    Unavailable or OutcomeUnknown for the file system's failures; then it is to be repeated.
    """
    _check_permit(table, permit)
    with table.locked() as found, classified(f"publishing to table {table.uri}"):
        refuse_fenced(table, found, permit.epoch)
        refuse_half_rolled_back(table, found)
        state = finish_begun(table, found)
        chosen = unpublished_batches(state, stage_dir, through_batch)
        batches = read_committables(stage_dir, chosen)
        files = [file for batch in batches for file in batch.files]
        if not files:
            return AlreadyPublished(state.head)
        if state.head is not None and permit.checkpoint_id <= state.head:
            raise InvalidRequest(
                f"table {table.uri} stands at checkpoint {state.head}: batches {chosen} cannot be published "
                f"for the older checkpoint {permit.checkpoint_id}; publish them for a newer one"
            )
        record = new_record(
            table, state.head, batches, checkpoint_id=permit.checkpoint_id, epoch=permit.epoch
        )
        begin_and_finish(table, state, record)
    return Published(
        head=record.checkpoint_id,
        files=len(files),
        rows=sum(file.rows for file in files),
        bytes=sum(file.bytes for file in files),
    )


def adopt(table: Table, *, epoch: CoordinatorEpoch) -> TableState:
    """Take the table over as it stands, at the start of an attempt that continues in its predecessor's
    directory.

    A publish that stopped half-way is finished. Older attempts are fenced from here on.
    """
    with table.locked() as state, classified(f"taking over table {table.uri}"):
        refuse_fenced(table, state, epoch)
        refuse_half_rolled_back(table, state)
        adopted = finish_begun(table, state).model_copy(update={"epoch": epoch})
        table.write_state(adopted)
        return adopted


def new_record(
    table: Table, parent: int | None, batches: list[PreparedBatch], *, checkpoint_id: int, epoch: int
) -> PublishRecord:
    """Return the record that publishes ``batches`` on top of ``parent``. Raises Corrupt when a staged file is
    gone.
    """
    files = tuple(file for batch in batches for file in batch.files)
    buckets: dict[int, int] = {}
    match table.mode:
        case Append():
            pass
        case Upsert():
            before = _buckets_of(table, parent)
            buckets = {**before, **dict.fromkeys(touched_buckets(table.paths.root, files), checkpoint_id)}
        case _:
            assert_never(table.mode)
    through = max(batch.batch_id for batch in batches)
    return PublishRecord(
        checkpoint_id=checkpoint_id,
        parent=parent,
        through_batch=through,
        epoch=epoch,
        files=files,
        buckets=buckets,
    )


def finish_begun(table: Table, state: TableState) -> TableState:
    """Finish the publish that has begun to move files and has not set the head; return the state after it."""
    if state.publishing is None:
        return state
    record = table.record(state.publishing)
    if record is None:
        raise Corrupt(
            f"table {table.uri}: the record of publish {state.publishing}, which was in progress, is gone "
            "from its log; "
            "restore a checkpoint to bring the table to a known state"
        )
    return finish(table, state, record)


def begin_and_finish(table: Table, state: TableState, record: PublishRecord) -> TableState:
    """Carry out one publish: the record first, then the mark that files move, the files, and the new head."""
    record = table.add_record(record)
    state = state.model_copy(update={"publishing": record.checkpoint_id, "epoch": record.epoch})
    table.write_state(state)
    return finish(table, state, record)


def finish(table: Table, state: TableState, record: PublishRecord) -> TableState:
    """Make the files of a publish visible and set the head; every step may have happened before."""
    make_versions(table, record)
    match table.mode:
        case Append():
            for name, place in locate_hidden(table, record.files).items():
                move_whole(place, table.paths.published(name))
            flush_to_disk(table.paths.root)
        case Upsert():
            show_versions(table.paths, located_versions(table.paths, record.buckets))
        case _:
            assert_never(table.mode)
    update = {"head": record.checkpoint_id, "published_through": record.through_batch, "publishing": None}
    done = state.model_copy(update=update)
    table.write_state(done)
    return done


def make_versions(table: Table, record: PublishRecord) -> None:
    """Write the bucket versions of a publish that do not exist yet; a table without buckets has none."""
    if isinstance(table.mode, Append):
        return
    before = _buckets_of(table, record.parent)
    mine = [bucket for bucket, number in record.buckets.items() if number == record.checkpoint_id]
    write_versions(
        table.paths.root,
        table.mode,
        files=record.files,
        bases={bucket: table.paths.version(before[bucket], bucket) for bucket in mine if bucket in before},
        targets={bucket: table.paths.version(record.checkpoint_id, bucket) for bucket in mine},
    )


def _buckets_of(table: Table, number: int | None) -> dict[int, int]:
    if number is None:
        return {}
    record = table.record(number)
    if record is None:
        raise Corrupt(f"table {table.uri}: publish {number} is gone from its log; restore a later checkpoint")
    return record.buckets


def locate_hidden(table: Table, files: Iterable[TableFile]) -> dict[str, Path]:
    """Return where each of these files lies that readers do not see: staged, or set aside by a roll-back.

    Raises Corrupt, naming it, when one is nowhere; nothing was moved then.
    """
    hidden = [file for file in files if not table.paths.published(file.name).exists()]
    if not hidden:
        return {}
    aside = {path.name: path for path in table.paths.all_set_aside.glob("*/*.parquet")}
    places = {file.name: aside.get(file.name, table.paths.root / file.staged) for file in hidden}
    for name, place in places.items():
        if not place.exists():
            raise Corrupt(
                f"{name} of table {table.uri} is gone ({place} does not exist): restore another checkpoint"
            )
    return places


def _check_permit(table: Table, permit: CommitPermit) -> None:
    if permit.pipeline != table.pipeline:
        raise InvalidRequest(
            f"table {table.uri} belongs to pipeline {table.pipeline!r}, the permit is for {permit.pipeline!r}"
        )
