"""Maintenance of an Iceberg table: small files merged, and snapshots and files that nothing needs any more gone.

Each change is one commit on exactly the snapshot that was read, so a publish at the same time is decided by the
catalog: whoever comes second reads again. Snapshots that cuts go back to get tags, so that nobody's expiry takes them;
ours that no cut needs are expired once they are older than the table says (``history.expire.max-snapshot-age-ms``).
Others' snapshots are left alone.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import FileScanTask, Transaction
from pyiceberg.table.snapshots import Snapshot

from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.ext.iceberg.backend import IcebergBackend
from dagster_ckpt.ext.iceberg.files import write_files, written_below
from dagster_ckpt.ext.iceberg.lake import Outside, TableChange, committing, reading
from dagster_ckpt.ext.iceberg.version import IcebergVersion
from dagster_ckpt.ext.tables.engine import (
    LATE,
    MERGED,
    TARGET,
    AttemptGarbage,
    Raced,
    nothing_is_old,
)
from dagster_ckpt.ext.tables.rewrite import conformed, small_alike
from dagster_ckpt.spark.sink.port import AttemptId, Upkeep

_DEFAULT_AGE_MS = 5 * 86_400_000
_SETTLED_MS = 3_600_000
"""A cut younger than this may be subsumed soon: no tag yet."""
_WORTH_A_COMMIT = 10
"""Snapshots that are expired together."""


@dataclass
class ReadManifests:
    """Manifests that were read, which never change, and since when no snapshot shows a staged folder."""

    of_snapshots: dict[int, tuple[str, ...]] = field(default_factory=dict)
    folders: dict[str, frozenset[str]] = field(default_factory=dict)
    """Manifest -> staged folders of the files that it shows."""
    left: dict[str, float] = field(default_factory=dict)
    """Folder -> when the last snapshot went that showed it; of those that went here."""

    def shown(self, version: IcebergVersion, now: float) -> set[str]:
        """Return the folders whose files some snapshot shows; what was read of those that went is forgotten."""
        used = {path for snapshot in version.snapshots.values() for path in self.manifests(version, snapshot)}
        for path in self.folders.keys() - used:
            self.left.update(dict.fromkeys(self.folders.pop(path), now))
        for number in self.of_snapshots.keys() - version.snapshots.keys():
            del self.of_snapshots[number]
        return {folder for path in used for folder in self.folders[path]}

    def manifests(self, version: IcebergVersion, snapshot: Snapshot) -> tuple[str, ...]:
        """Return the manifests of a snapshot, each of them read."""
        io = version.table.io
        known = self.of_snapshots.get(snapshot.snapshot_id)
        if known is not None:
            return known
        start = f"{version.table.location().rstrip('/')}/"
        with reading(version.place):
            manifests = snapshot.manifests(io)
            for manifest in manifests:
                if manifest.manifest_path not in self.folders and manifest.content is ManifestContent.DATA:
                    entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
                    names = (entry.data_file.file_path.removeprefix(start) for entry in entries)
                    self.folders[manifest.manifest_path] = frozenset(n.rpartition("/")[0] for n in names)
                self.folders.setdefault(manifest.manifest_path, frozenset())
        self.of_snapshots[snapshot.snapshot_id] = tuple(manifest.manifest_path for manifest in manifests)
        return self.of_snapshots[snapshot.snapshot_id]


@dataclass(frozen=True)
class Expiry:
    """Snapshots that are kept and that go, at a moment."""

    needed: Sequence[TableSnapshot]
    now: float
    read: ReadManifests = field(default_factory=ReadManifests)
    knows_pending: bool = True
    """``needed`` names checkpoints in progress too. Otherwise what they may go back to stays, every tag stays, and
    all that may go goes at once."""

    def carry_out(self, version: IcebergVersion) -> int:
        """Set and remove tags, expire snapshots; return how many went. Raises Raced."""
        tags, untagged = self._tags(version)
        expired = self.expired(version)
        if len(expired) < (_WORTH_A_COMMIT if self.knows_pending else 1):
            expired = []
        if not (tags or untagged or expired):
            return 0
        gone = self._only_in(version, expired)
        numbers = [snapshot.snapshot_id for snapshot in expired]
        with committing(version.place):
            Outside.keep_and_expire(version, tags, untagged, numbers)
        for path in gone:
            with contextlib.suppress(OSError):
                version.table.io.delete(path)
        return len(expired)

    def expired(self, version: IcebergVersion) -> list[Snapshot]:
        """Return the snapshots of ours that are old enough to go, and that no cut needs."""
        pinned = self._pinned(version)
        kept = {snapshot.snapshot_id for snapshot in pinned.values()}
        newest = max((snapshot.sequence_number or 0 for snapshot in pinned.values()), default=0)
        _, untagged = self._tags(version)
        found = (snapshot for snapshot in self._old(version, untagged) if snapshot.snapshot_id not in kept)
        return [s for s in found if self.knows_pending or (s.sequence_number or 0) < newest]

    def _pinned(self, version: IcebergVersion) -> dict[int, Snapshot]:
        heads = {snapshot.head for snapshot in self.needed if snapshot.head is not None}
        found = {head: state for head in heads if (state := version.showing(head)) is not None}
        return {head: version.snapshots[state.number] for head, state in found.items()}

    def _tags(self, version: IcebergVersion) -> tuple[dict[str, int], list[str]]:
        """Return the tags to be set, and those to be removed."""
        settled = _SETTLED_MS if self.knows_pending else 0
        tags = {
            version.refs.cut(head): snapshot.snapshot_id
            for head, snapshot in self._pinned(version).items()
            if self.now * 1000 - snapshot.timestamp_ms > settled
        }
        tags = {name: number for name, number in tags.items() if version.ref(name) != number}
        if not self.knows_pending:
            return tags, []
        kept = {version.refs.cut(snapshot.head) for snapshot in self.needed if snapshot.head is not None}
        return tags, [n for n in version.table.metadata.refs if version.refs.is_cut(n) and n not in kept]

    def _old(self, version: IcebergVersion, untagged: Sequence[str]) -> Iterator[Snapshot]:
        """Yield snapshots of ours that are old enough to go, and that no reference holds."""
        metadata = version.table.metadata
        age = int(metadata.properties.get("history.expire.max-snapshot-age-ms", _DEFAULT_AGE_MS))
        newest = int(metadata.properties.get("history.expire.min-snapshots-to-keep", 1))
        held = {ref.snapshot_id for name, ref in metadata.refs.items() if name not in untagged}
        for state in version.history[newest:]:
            is_old = self.now * 1000 - state.timestamp_ms > age
            if is_old and state.number not in held and version.is_ours(state):
                yield version.snapshots[state.number]

    def _only_in(self, version: IcebergVersion, expired: Sequence[Snapshot]) -> list[str]:
        """Return the files of metadata that only these snapshots have."""
        if not expired or version.table.metadata.properties.get("gc.enabled") == "false":
            return []
        numbers = {snapshot.snapshot_id for snapshot in expired}
        manifests = {path for snapshot in expired for path in self.read.manifests(version, snapshot)}
        for number, snapshot in version.snapshots.items():
            if number not in numbers:
                manifests -= set(self.read.manifests(version, snapshot))
        return [*manifests, *(snapshot.manifest_list for snapshot in expired)]


STAYS = 3600
"""Seconds that files stay which left the table: readers of before may be at them."""


@dataclass(frozen=True)
class Garbage(AttemptGarbage[IcebergVersion]):
    """Snapshots and staged folders that nothing needs."""

    read: ReadManifests = field(default_factory=ReadManifests)

    @property
    def _expiry(self) -> Expiry:
        return Expiry(self.needed, self.now, self.read)

    def collect(self) -> int:
        """Remove it; return how many snapshots and folders went."""
        version = self.engine.newest(self.attempt)
        removed = 0
        if version is not None:
            with contextlib.suppress(Raced):  # others committed: next time
                removed = self._expiry.carry_out(version)
            version = self.engine.newest(self.attempt)
        staged = self.engine.staged
        folders = [f for f in staged.not_waiting(self.needed, self.waiting) if self.is_over(version, f)]
        if version is not None:
            shown = {staged.folder_of(name) for name in self.read.shown(version, self.now)}
            left = {staged.folder_of(name): time for name, time in self.read.left.items()}
            folders = [f for f in folders if f.path not in shown and self.now - left.get(f.path, 0) > STAYS]
        for folder in folders:
            staged.remove(folder)
        return removed + len(folders)


_EXPIRED = "snapshots expired that are older than the table keeps them"
Bins = list[list[FileScanTask]]


def planned(backend: IcebergBackend, needed: Sequence[TableSnapshot]) -> list[Upkeep]:
    """Return the upkeep that ``maintained`` would do."""
    version = backend.load()
    if version is None:
        return []
    if not _is_known(version, needed):
        return [_merge(version, _bins(version)), nothing_is_old(_EXPIRED)]
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
        done = Upkeep(what=MERGED, note=LATE)
    version = backend.load()
    if version is None or not _is_known(version, needed):
        return [done, nothing_is_old(_EXPIRED)]
    try:
        expired = Expiry(needed, time.time(), knows_pending=False).carry_out(version)
    except Raced:
        return [done, Upkeep(what=_EXPIRED, note=LATE)]
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
    return [t for t in tasks if t.file.file_size_in_bytes < TARGET and t.file.spec_id == spec]


def _bins(version: IcebergVersion) -> Bins:
    """Return small files that become one, by partition."""
    groups: dict[object, list[FileScanTask]] = defaultdict(list)
    for task in _small(version):
        groups[repr(task.file.partition)].append(task)
    bins: Bins = []
    for group in groups.values():
        size = TARGET
        for task in group:
            if size >= TARGET:
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
        return Upkeep(what=MERGED, note=note)
    sizes = [task.file.file_size_in_bytes for tasks in bins for task in tasks]
    return Upkeep(what=MERGED, files=len(sizes), bytes=sum(sizes))


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
