"""Retention of a table's files: what restorable checkpoints need, and what may be removed."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.spark.files import batch_of, classified, remove_files, replace_whole
from dagster_ckpt.spark.sink.committables import PreparedBatch, encoded
from dagster_ckpt.spark.table.log import Table
from dagster_ckpt.spark.table.records import (
    PublishRecord,
    TableState,
)
from dagster_ckpt.spark.table.version_digests import digest_path

_MERGE_FROM = 256
"""Older publish records are merged into one when there are this many: merging rewrites a long list of files.
"""


def collect_garbage(table: Table, needed: Sequence[TableSnapshot], waiting: Sequence[PreparedBatch]) -> int:
    """Remove what neither the table nor a cut in ``needed`` needs; return how many files went.

    ``needed`` names every restorable checkpoint and savepoint, and those in progress. Visible rows, rows set
    aside and the publishes of other lineages are never touched.
    """
    with table.locked() as state, classified(f"collecting garbage of table {table.uri}"):
        batches = {batch for snapshot in needed for batch in snapshot.prepared}
        lineage = table.lineage(state.head)
        kept = _kept(table, lineage, heads={s.head for s in needed if s.head is not None})
        unpublished = {Path(file.staged).parent.name for batch in waiting for file in batch.files}
        return (
            _remove_versions(_versions_superseded(table, lineage, kept))
            + _remove_staged(table, state, lineage, needed=batches, waiting=unpublished)
            + _merge_older(table, lineage, kept)
        )


def superseded(table: Table, needed: Sequence[TableSnapshot]) -> list[Path]:
    """Return the bucket versions that neither the table nor a cut in ``needed`` shows, nor one in progress can.

    Without any cut nothing can be called old: a checkpoint in progress goes back at most to where the newest stood.
    """
    heads = {snapshot.head for snapshot in needed if snapshot.head is not None}
    if not heads:
        return []
    lineage = table.lineage(table.state().head)
    kept = _kept(table, lineage, heads=heads)
    return [path for path in _versions_superseded(table, lineage, kept) if path.exists()]


def remove_superseded(table: Table, needed: Sequence[TableSnapshot]) -> list[tuple[Path, int]]:
    """Remove them, while nobody publishes; return what went, with sizes."""
    with table.locked(), classified(f"removing old versions of table {table.uri}"):
        gone = [(path, path.stat().st_size) for path in superseded(table, needed)]
        _remove_versions(path for path, _ in gone)
        return gone


def _remove_versions(versions: Iterable[Path]) -> int:
    """Remove bucket versions, each before its digest: one without it would be taken for an older release's."""
    removed = 0
    for version in versions:
        removed += remove_files([version])
        remove_files([digest_path(version)])
    return removed


def _kept(table: Table, lineage: Sequence[PublishRecord], *, heads: Collection[int]) -> list[PublishRecord]:
    """Return the publishes of the lineage, newest first, down to the oldest that some needed head contains
    last.
    """
    mine = {record.checkpoint_id: index for index, record in enumerate(lineage)}
    oldest = 0
    for head in heads:
        joint = next((mine[r.checkpoint_id] for r in _ancestors(table, head) if r.checkpoint_id in mine), 0)
        oldest = max(oldest, joint)
    return list(lineage[: oldest + 1])


def _ancestors(table: Table, head: int) -> Iterator[PublishRecord]:
    following: int | None = head
    while following is not None and (record := table.record(following)) is not None:
        yield record
        following = record.parent


def _versions_superseded(
    table: Table, lineage: Sequence[PublishRecord], kept: Sequence[PublishRecord]
) -> Iterator[Path]:
    """Yield bucket versions of this lineage that no kept publish, nor any of another lineage, shows."""
    mine = {record.checkpoint_id for record in lineage}
    showing = [*kept, *(record for record in table.records() if record.checkpoint_id not in mine)]
    shown = {(number, bucket) for record in showing for bucket, number in record.buckets.items()}
    for record in lineage:
        for bucket, number in record.buckets.items():
            if number == record.checkpoint_id and (number, bucket) not in shown:
                yield table.paths.version(number, bucket)


def _remove_staged(
    table: Table,
    state: TableState,
    lineage: Sequence[PublishRecord],
    *,
    needed: Collection[int],
    waiting: Collection[str],
) -> int:
    """Remove staged folders of published batches, and those that an earlier attempt left for nobody."""
    published = {Path(file.staged).parent.name for record in lineage for file in record.files}
    removed = 0
    for folder in table.paths.all_staged.glob("*/batch-*"):
        batch = batch_of(folder.name)
        if batch is None or batch in needed or folder.name in waiting or not folder.parent.name.isdecimal():
            continue
        if folder.name in published or int(folder.parent.name) < state.epoch:
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
    return removed


def _merge_older(table: Table, lineage: Sequence[PublishRecord], kept: Sequence[PublishRecord]) -> int:
    """Merge the publishes below the oldest kept one into it: its rows stay tellable, their steps do not."""
    older = lineage[len(kept) :]
    if len(older) < _MERGE_FROM:
        return 0
    files = tuple(file for record in lineage[len(kept) - 1 :] for file in record.files)
    merged = kept[-1].model_copy(update={"parent": None, "files": files})
    replace_whole(table.paths.record(merged.checkpoint_id), encoded(merged))
    return remove_files(table.paths.record(record.checkpoint_id) for record in older)
