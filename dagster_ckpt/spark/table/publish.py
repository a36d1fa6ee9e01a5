"""Second phase of a table: what a completed checkpoint covers becomes visible, once, whatever crashes in between.

A publish is: write its record (the intent), move or merge its files, set the head. Every step can be repeated,
and a publish that stopped anywhere is finished from its record by the next one that opens the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import assert_never

from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.files import classified, flush_to_disk, move_whole
from dagster_ckpt.spark.sink.committables import (
    PreparedBatch,
    TableFile,
    from_last_replacing,
    shown_files,
)
from dagster_ckpt.spark.sink.intact import refuse_changed
from dagster_ckpt.spark.sink.port import AlreadyPublished, AttemptId, Published
from dagster_ckpt.spark.table.buckets import (
    located_versions,
    refuse_changed_versions,
    show_versions,
    touched_buckets,
    write_versions,
)
from dagster_ckpt.spark.table.log import Table, refuse_fenced, refuse_half_rolled_back, refuse_written_through
from dagster_ckpt.spark.table.records import (
    Append,
    BucketVersion,
    PublishRecord,
    TableState,
    Upsert,
)
from dagster_ckpt.spark.table.schema import has_same_columns, merged


def publish(
    table: Table, batches: Sequence[PreparedBatch], permit: CommitPermit
) -> Published | AlreadyPublished:
    """Make those of these batches visible that are not yet, as the permit's checkpoint.

    Idempotent. Raises Fenced when a newer attempt owns the table, Corrupt when a staged file is gone or changed,
    Unavailable or OutcomeUnknown for the file system's failures; then it is to be repeated.
    """
    _check_permit(table, permit)
    attempt = AttemptId(permit.lineage, permit.epoch)
    with table.locked() as found, classified(f"publishing to table {table.uri}"):
        refuse_fenced(table, found, attempt)
        refuse_half_rolled_back(table, found)
        refuse_written_through(table, found)
        state = finish_begun(table, found)
        done = state.published_through
        waiting = [batch for batch in batches if done is None or batch.batch_id > done]
        files = [file for batch in waiting for file in batch.files]
        if not files and not any(batch.replaces for batch in waiting):
            return AlreadyPublished()
        if state.head is not None and permit.checkpoint_id <= state.head:
            raise InvalidRequest(
                f"table {table.uri} stands at checkpoint {state.head}: batches {[b.batch_id for b in waiting]} cannot "
                f"be published for the older checkpoint {permit.checkpoint_id}; publish them for a newer one"
            )
        locate_intact(table, shown_files(waiting)[0])
        record = new_record(table, state.head, waiting, checkpoint_id=permit.checkpoint_id, attempt=attempt)
        begin_and_finish(table, state, record)
    return Published(
        files=len(files),
        rows=sum(file.rows for file in files),
        bytes=sum(file.bytes for file in files),
        version=str(record.checkpoint_id),
    )


def adopt(table: Table, attempt: AttemptId) -> TableState:
    """Take the table over as it stands, at the start of an attempt that continues in its predecessor's
    directory.

    A publish that stopped half-way is finished. Older attempts are fenced from here on. Raises Corrupt where its
    log does not say which rows readers see.
    """
    with table.locked() as state, classified(f"taking over table {table.uri}"):
        refuse_fenced(table, state, attempt)
        refuse_half_rolled_back(table, state)
        refuse_written_through(table, state)
        finished = finish_begun(table, state)
        explain_files(table, finished)
        adopted = finished.model_copy(update={"epoch": attempt.epoch, "lineage": attempt.lineage})
        table.write_state(adopted)
        return adopted


def explain_files(table: Table, state: TableState) -> None:
    """Let readers see what the head's publishes name. Raises Corrupt where that cannot be: a part was put back."""
    head = None if state.head is None else table.record(state.head)
    if head is not None and state.head_lineage not in ("", head.lineage):
        raise Corrupt(
            f"the publish record of checkpoint {state.head} of table {table.uri} is another history's "
            f"({head.lineage or 'none'}, the table's is {state.head_lineage}): it was swapped. Bring it back, or "
            "choose another snapshot with restore_from"
        )
    if isinstance(table.mode, Upsert):
        show_versions(table.paths, located_versions(table.paths, _versions_of(table, state.head)))
        return
    wanted = {file.name for record in table.lineage(state.head) for file in record.files}
    missing, extra = wanted - table.visible(), table.visible() - wanted
    if missing or extra:
        name, what = (min(missing), "is gone") if missing else (min(extra), "is in none of its publishes")
        raise Corrupt(
            f"{name} of table {table.uri} {what}: a part of the table was lost or put back to an older copy. Bring it "
            "back, or choose a snapshot with restore_from, which brings the table to exactly its rows"
        )


def new_record(
    table: Table,
    parent: int | None,
    batches: Sequence[PreparedBatch],
    *,
    checkpoint_id: int,
    attempt: AttemptId,
) -> PublishRecord:
    """Return the record that publishes ``batches`` on top of ``parent``. Raises Corrupt when a staged file is
    gone.
    """
    shown, replaces = from_last_replacing(batches)
    files = tuple(file for batch in shown for file in batch.files)
    before_schema, row_schema = _schema_of(table, parent), shown[-1].row_schema
    versions: dict[int, BucketVersion] = {}
    match table.mode:
        case Append():
            pass
        case Upsert():
            before = {} if replaces else _versions_of(table, parent)
            touched = set(touched_buckets(table.paths.root, files))
            if before and not has_same_columns(before_schema, merged(before_schema, row_schema)):
                touched |= before.keys()  # every file of the table has the same columns
            mine = BucketVersion(checkpoint_id, attempt.lineage)
            versions = {**before, **dict.fromkeys(sorted(touched), mine)}
        case _:
            assert_never(table.mode)
    return PublishRecord(
        checkpoint_id=checkpoint_id,
        parent=parent,
        through_batch=max(batch.batch_id for batch in batches),
        epoch=attempt.epoch,
        lineage=attempt.lineage,
        files=files,
        buckets={bucket: version.checkpoint_id for bucket, version in versions.items()},
        bucket_lineages={b: v.lineage for b, v in versions.items() if v.lineage != attempt.lineage},
        replaces=replaces,
        row_schema=row_schema if replaces else merged(before_schema, row_schema),
    )


def _schema_of(table: Table, number: int | None) -> str:
    record = None if number is None else table.record(number)
    return "" if record is None else record.row_schema


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
    if isinstance(table.mode, Append):
        locate_intact(table, record.files)
    return finish(table, state, record)


def begin_and_finish(table: Table, state: TableState, record: PublishRecord) -> TableState:
    """Carry out one publish: the record first, then the mark that files move, the files, and the new head."""
    record = table.add_record(record)
    update = {"publishing": record.checkpoint_id, "epoch": record.epoch, "lineage": record.lineage}
    state = state.model_copy(update=update)
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
            show_versions(table.paths, located_versions(table.paths, record.versions))
        case _:
            assert_never(table.mode)
    update = {
        "head": record.checkpoint_id,
        "head_lineage": record.lineage,
        "published_through": record.through_batch,
        "publishing": None,
    }
    done = state.model_copy(update=update)
    table.write_state(done)
    return done


def make_versions(table: Table, record: PublishRecord) -> None:
    """Write the bucket versions of a publish that do not exist yet; a table without buckets has none."""
    if isinstance(table.mode, Append):
        return
    before = {} if record.replaces else _versions_of(table, record.parent)
    mine = [bucket for bucket, number in record.buckets.items() if number == record.checkpoint_id]
    targets = {bucket: table.paths.version(record.checkpoint_id, bucket) for bucket in mine}
    missing = {bucket for bucket, path in targets.items() if not path.exists()}
    bases = located_versions(table.paths, {b: before[b] for b in missing if b in before})
    refuse_changed_versions(table.paths, bases)
    if missing:
        locate_intact(table, record.files)
    write_versions(
        table.paths.root,
        table.mode,
        files=record.files,
        bases=bases,
        targets=targets,
        lineage=record.lineage,
        row_schema=record.row_schema,
    )


def check_versions(table: Table, record: PublishRecord, *, reads_all: bool) -> None:
    """Raise Corrupt, naming the file, where a bucket version of a publish is gone and cannot be made again.

    ``reads_all``: also where one that readers do not see is not what was written.
    """
    number = record.checkpoint_id
    missing = {b for b, n in record.buckets.items() if n == number and not table.paths.version(n, b).exists()}
    versions = {bucket: version for bucket, version in record.versions.items() if bucket not in missing}
    if missing:
        locate_intact(table, record.files)
        before = {} if record.replaces else _versions_of(table, record.parent)
        versions |= {bucket: before[bucket] for bucket in missing if bucket in before}
    places = located_versions(table.paths, versions)
    if reads_all:
        refuse_changed_versions(table.paths, places)


def _versions_of(table: Table, number: int | None) -> dict[int, BucketVersion]:
    if number is None:
        return {}
    record = table.record(number)
    if record is None:
        raise Corrupt(f"table {table.uri}: publish {number} is gone from its log; restore a later checkpoint")
    return record.versions


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


def locate_intact(table: Table, files: Iterable[TableFile]) -> dict[str, Path]:
    """Return the same, and raise Corrupt also where one of those files is not what was staged. Reads all of them."""
    found = {file.name: file for file in files}
    hidden = locate_hidden(table, found.values())
    refuse_changed((found[name], place) for name, place in hidden.items())
    return hidden


def _check_permit(table: Table, permit: CommitPermit) -> None:
    if permit.pipeline != table.pipeline:
        raise InvalidRequest(
            f"table {table.uri} belongs to pipeline {table.pipeline!r}, the permit is for {permit.pipeline!r}"
        )
