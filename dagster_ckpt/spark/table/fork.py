"""The table of a fork: it begins with exactly the rows of a cut of another table, which is only read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.files import classified, link_or_copy
from dagster_ckpt.spark.sink.committables import PreparedBatch, TableFile, from_last_replacing
from dagster_ckpt.spark.sink.port import AttemptId, SinkCut
from dagster_ckpt.spark.table.buckets import (
    located_versions,
    refuse_changed_versions,
    touched_buckets,
    write_versions,
)
from dagster_ckpt.spark.table.log import Table, refuse_fenced
from dagster_ckpt.spark.table.publish import begin_and_finish, locate_intact
from dagster_ckpt.spark.table.records import (
    SEED,
    Append,
    BucketVersion,
    PublishRecord,
    TableState,
    Upsert,
)
from dagster_ckpt.spark.table.roll_back import unique_files
from dagster_ckpt.spark.table.schema import has_same_columns, merged
from dagster_ckpt.spark.table.version_digests import digest_path


@dataclass(frozen=True, slots=True)
class Seeded:
    """Beginning of a fork's table."""

    files: int

    def __str__(self) -> str:
        return f"{self.files} files"


def seed_fork(
    source: Table,
    *,
    cut: SinkCut,
    target: Table,
    attempt: AttemptId,
) -> Seeded:
    """Give ``target``, just created, exactly the rows that ``source`` had at ``cut``.

    Files are hard-linked where that is
    possible. Repeating a call finishes it, or changes nothing. Raises InvalidRequest when the target has
    other rows already or is of another mode, Corrupt when rows of the cut are gone.
    """
    if target.mode != source.mode:
        raise InvalidRequest(
            f"table {target.uri} is made as {target.mode!r} and cannot begin with rows of {source.mode!r}"
        )
    with target.locked() as state, classified(f"seeding table {target.uri}"):
        refuse_fenced(target, state, attempt)
        origin = f"{source.uri} at checkpoint {cut.checkpoint_id}"
        begun = target.record(SEED) if state.head == SEED else None
        if begun is not None and begun.origin == origin:  # the fork's run failed before its first checkpoint
            target.write_state(state.model_copy(update={"epoch": attempt.epoch, "lineage": attempt.lineage}))
            return Seeded(len(begun.files) + len(begun.buckets))
        if state.head is not None:
            raise InvalidRequest(f"table {target.uri} has rows already: give the fork an empty folder")
        seed = _seed_record(source, target, cut.snapshot, cut.batches, attempt)
        if not seed.files and not seed.buckets:
            target.write_state(
                TableState(epoch=attempt.epoch, lineage=attempt.lineage, published_through=seed.through_batch)
            )
            return Seeded(0)
        begin_and_finish(target, state, seed.model_copy(update={"origin": origin}))
    return Seeded(len(seed.files) + len(seed.buckets))


def _seed_record(
    source: Table,
    target: Table,
    snapshot: TableSnapshot,
    batches: Sequence[PreparedBatch],
    attempt: AttemptId,
) -> PublishRecord:
    """Put the files of the cut into the target's folder and return the publish that shows them."""
    lineage = source.lineage(snapshot.head)
    before = lineage[0] if lineage else None
    shown, replaces = from_last_replacing(batches)
    prepared = [file for batch in shown for file in batch.files]
    was = before.row_schema if before is not None and not replaces else ""
    row_schema = merged(was, shown[-1].row_schema) if shown else was
    files: tuple[TableFile, ...] = ()
    versions: dict[int, BucketVersion] = {}
    match source.mode:
        case Append():
            files = unique_files([*(file for record in lineage for file in record.files), *prepared])
            _link_files(source, target, files)
        case Upsert() as mode:
            versions = _merge_into(
                target,
                source,
                mode,
                before.versions if before and not replaces else {},
                prepared,
                attempt=attempt,
                row_schema=row_schema,
                gets_columns=not has_same_columns(was, row_schema),
            )
        case _:
            assert_never(source.mode)
    through = max((batch.batch_id for batch in batches), default=before.through_batch if before else None)
    return PublishRecord(
        checkpoint_id=SEED,
        parent=None,
        through_batch=through,
        epoch=attempt.epoch,
        lineage=attempt.lineage,
        files=files,
        buckets=dict.fromkeys(versions, SEED),
        bucket_lineages={b: v.lineage for b, v in versions.items() if v.lineage != attempt.lineage},
        row_schema=row_schema,
    )


def _link_files(source: Table, target: Table, files: Sequence[TableFile]) -> None:
    hidden = locate_intact(source, files)
    for file in files:
        link_or_copy(
            hidden.get(file.name, source.paths.published(file.name)), target.paths.published(file.name)
        )


def _merge_into(
    target: Table,
    source: Table,
    mode: Upsert,
    before: dict[int, BucketVersion],
    prepared: Sequence[TableFile],
    *,
    attempt: AttemptId,
    row_schema: str,
    gets_columns: bool,
) -> dict[int, BucketVersion]:
    """Link or write the target's first version of every bucket, and return it: linked ones stay of their history."""
    versions = located_versions(source.paths, before)
    refuse_changed_versions(source.paths, versions)
    locate_intact(source, prepared)
    touched = {*touched_buckets(source.paths.root, prepared), *(before if gets_columns else ())}
    seeds = {bucket: target.paths.version(SEED, bucket) for bucket in {*before, *touched}}
    linked = set(before) - touched
    for bucket in linked:
        if digest_path(versions[bucket]).exists():
            link_or_copy(digest_path(versions[bucket]), digest_path(seeds[bucket]))
        link_or_copy(versions[bucket], seeds[bucket])
    targets = {bucket: seeds[bucket] for bucket in touched}
    write_versions(
        source.paths.root,
        mode,
        files=prepared,
        bases=versions,
        targets=targets,
        lineage=attempt.lineage,
        row_schema=row_schema,
    )
    return {
        bucket: BucketVersion(SEED, before[bucket].lineage if bucket in linked else attempt.lineage)
        for bucket in seeds
    }
