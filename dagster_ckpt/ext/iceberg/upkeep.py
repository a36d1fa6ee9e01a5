"""Maintenance of an Iceberg table beside the pipeline that writes it: small files merged, snapshots expired.

Each is one commit on exactly the snapshot that was read, so a publish at the same time is decided by the catalog:
whoever comes second reads again. What retained cuts go back to gets tags before anything is expired.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import FileScanTask, Transaction

from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.ext.iceberg.backend import IcebergBackend
from dagster_ckpt.ext.iceberg.expiry import Expiry
from dagster_ckpt.ext.iceberg.files import write_files
from dagster_ckpt.ext.iceberg.lake import Outside, TableChange, committing, reading
from dagster_ckpt.ext.iceberg.upsert import written_below
from dagster_ckpt.ext.iceberg.version import IcebergVersion
from dagster_ckpt.spark.sink.port import AttemptId, Upkeep
from dagster_ckpt.spark.sink.rewrite import conformed, small_alike
from dagster_ckpt.spark.sink.versioned.backend import Raced

_TARGET = 100 * 1024 * 1024
"""Size of a file from which it is left as it is."""
_MERGED = "small files merged"
_EXPIRED = "snapshots expired that are older than the table keeps them"
_LATE = "a publish was faster: the next time"
Bins = list[list[FileScanTask]]


def planned(backend: IcebergBackend, needed: Sequence[TableSnapshot]) -> list[Upkeep]:
    """Return the upkeep that ``maintained`` would do."""
    version = backend.load()
    if version is None:
        return []
    if not _is_known(version, needed):
        return [_merge(version, _bins(version)), _not_expired()]
    expired = Expiry(needed, time.time(), knows_pending=False).expired(version)
    return [_merge(version, _bins(version)), Upkeep(what=_EXPIRED, files=len(expired))]


def maintained(backend: IcebergBackend, needed: Sequence[TableSnapshot]) -> list[Upkeep]:
    """Merge small files, tag what these cuts go back to, and expire what nothing needs."""
    version = backend.load()
    if version is None:
        return []
    bins = _bins(version)
    done = _merge(version, bins)
    if bins and not _is_merged(version, bins):
        done = Upkeep(what=_MERGED, note=_LATE)
    version = backend.load()
    if version is None or not _is_known(version, needed):
        return [done, _not_expired()]
    try:
        expired = Expiry(needed, time.time(), knows_pending=False).carry_out(version)
    except Raced:
        return [done, Upkeep(what=_EXPIRED, note=_LATE)]
    return [done, Upkeep(what=_EXPIRED, files=expired)]


def merge_small(backend: IcebergBackend, version: IcebergVersion, attempt: AttemptId) -> None:
    """Merge some files into one, in one commit, beside publishing; not where they are too few or others faster."""
    files = small_alike(
        _small(version), lambda task: task.file.file_size_in_bytes, lambda task: task.file.partition
    )
    if files and version.mark is not None:
        folder = backend.folder(attempt.epoch, version.mark.through_batch or 0)
        _is_merged(version, [files], folder)


def _is_merged(version: IcebergVersion, bins: Bins, folder: str = "") -> bool:
    """Merge each bin, in one commit; tell whether it was not too late. Raises InvalidRequest.

    ``folder``: where it is written; by default beside the first of its files, of which no clean-up takes the folder.
    """
    assert version.mark is not None
    mark = version.mark.model_copy(update={"theirs": version.theirs})
    step = TableChange(mark=mark, rewrite=lambda t: _rewritten(t, bins, folder), rearranges=True)
    try:
        with committing(version.place):
            Outside.commit(version, step)
    except Raced:
        return False
    return True


def _is_known(version: IcebergVersion, needed: Sequence[TableSnapshot]) -> bool:
    """Tell whether a retained cut goes back to a snapshot of this table: without one nothing can be called old."""
    return any(s.head is not None and version.showing(s.head) is not None for s in needed)


def _small(version: IcebergVersion) -> list[FileScanTask]:
    """Return files that may be merged; none where the table shows nothing of ours."""
    snapshot = version.snapshots.get(version.number or 0)
    if snapshot is None or version.mark is None or version.mark.head is None or _has_deletes(version):
        return []
    with reading(version.place):
        tasks = list(version.table.scan().plan_files())
    spec = version.table.metadata.default_spec_id
    return [t for t in tasks if t.file.file_size_in_bytes < _TARGET and t.file.spec_id == spec]


def _bins(version: IcebergVersion) -> Bins:
    """Return small files that become one, by partition."""
    groups: dict[object, list[FileScanTask]] = defaultdict(list)
    for task in _small(version):
        groups[repr(task.file.partition)].append(task)
    bins: Bins = []
    for group in groups.values():
        size = _TARGET
        for task in group:
            if size >= _TARGET:
                bins.append([])
                size = 0
            bins[-1].append(task)
            size += task.file.file_size_in_bytes
    return [tasks for tasks in bins if len(tasks) > 1]


def _has_deletes(version: IcebergVersion) -> bool:
    """Tell whether rows are deleted by delete files, which say by sequence number which files they belong to."""
    snapshot = version.snapshots[version.number or 0]
    with reading(version.place):
        return any(m.content is not ManifestContent.DATA for m in snapshot.manifests(version.table.io))


def _merge(version: IcebergVersion, bins: Bins) -> Upkeep:
    if version.number is not None and _has_deletes(version):
        note = "the table has delete files, which pyiceberg cannot compact: run rewrite_data_files of Spark"
        return Upkeep(what=_MERGED, note=note)
    sizes = [task.file.file_size_in_bytes for tasks in bins for task in tasks]
    return Upkeep(what=_MERGED, files=len(sizes), bytes=sum(sizes))


def _rewritten(transaction: Transaction, bins: Bins, below: str) -> tuple[list[DataFile], list[DataFile]]:
    """Write each bin's rows again."""
    metadata, io = transaction.table_metadata, transaction._table.io
    schema = metadata.schema()
    arrow = schema_to_pyarrow(schema, include_field_ids=False)
    added: list[DataFile] = []
    for tasks in bins:
        rows = conformed(ArrowScan(metadata, io, schema, AlwaysTrue()).to_table(tasks), arrow)
        folder = below or tasks[0].file.file_path.rpartition("/")[0]
        added += write_files(written_below(metadata, folder), rows, io)
    return added, [task.file for tasks in bins for task in tasks]


def _not_expired() -> Upkeep:
    return Upkeep(
        what=_EXPIRED,
        note="no retained checkpoint or savepoint has published to this table: nothing can be called old",
    )
