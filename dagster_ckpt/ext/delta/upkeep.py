"""Maintenance of a Delta table beside the pipeline that writes it: small files merged, old ones removed.

Both are commits or removals of Delta's own, so a publish at the same time is decided by the table: whoever comes second
reads again. What retained cuts go back to is named to VACUUM, which keeps it whatever its age.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.core.restore.horizon import Pin
from dagster_ckpt.ext.delta.garbage import log_retention_hours, pinned_versions, retention_hours
from dagster_ckpt.ext.delta.lake import Lake, Outside, Raced, Version, committing, reading
from dagster_ckpt.ext.delta.marks import Commit, version_of
from dagster_ckpt.ext.delta.publish import Writer
from dagster_ckpt.ext.delta.roll_back import way_to
from dagster_ckpt.spark.sink.log_table import why_not
from dagster_ckpt.spark.sink.port import SinkCut, Upkeep
from dagster_ckpt.spark.sink.table_files import STAGED

_TARGET = 100 * 1024 * 1024
"""Size of a file from which delta-rs leaves it as it is."""
_ADVICE = "Take a newer savepoint before that, and vacuum with dagster-ckpt maintain only, which keeps it"
_MERGED = "small files merged"
_REMOVED = "files removed that left the table before its retention"


def planned(lake: Lake, needed: Sequence[TableSnapshot]) -> list[Upkeep]:
    """Return what ``maintained`` would do."""
    version = lake.load()
    if version is None:
        return []
    small, size = _small_files(version)
    keep = kept_versions(version, needed)
    found = [Upkeep(what=_MERGED, files=small, bytes=size)]
    if keep is None:
        return [*found, _not_vacuumed()]
    with reading(lake.uri):
        old = version.table.vacuum(dry_run=True, keep_versions=keep)
    return [*found, Upkeep(what=_REMOVED, files=len(old))]


def maintained(lake: Lake, needed: Sequence[TableSnapshot]) -> list[Upkeep]:
    """Merge small files, and remove what neither readers nor these cuts can need."""
    version = lake.load()
    if version is None:
        return []
    done = [_merge(version)]
    version = lake.load() or version
    keep = kept_versions(version, needed)
    if keep is None:
        return [*done, _not_vacuumed()]
    with committing(lake.uri):
        removed = Outside.vacuum(version.table, keep)
    return [*done, Upkeep(what=_REMOVED, files=len(removed))]


def kept_versions(version: Version, needed: Sequence[TableSnapshot]) -> list[int] | None:
    """Return the versions that VACUUM must keep; None: nobody can say, so it must not run.

    A checkpoint in progress may go back to any version since the newest retained one.
    """
    pinned = pinned_versions(version, needed)
    if not pinned:
        return None
    return sorted({*pinned, *range(max(pinned), version.number + 1)})


def pins(writer: Writer, cut: SinkCut, why: str = "") -> list[Pin]:
    """Return the version that a cut goes back to, and until when others may leave it alone."""
    version = writer.lake.load()
    why = why or why_not(lambda: way_to(writer, writer.lake.load(), cut))
    head = cut.snapshot.head
    found = None
    if version is not None:
        whole = version_of(version.history, cut.checkpoint_id) if cut.batches else None
        found = whole or (version_of(version.history, head) if head is not None else None)
    named = f"version {found.version} of table" if found is not None else "table"
    until = None if version is None or found is None or why else _until(version, found)
    advice = why or ("" if until is None else _ADVICE)
    return [Pin(what=f"{named} {writer.lake.uri}", is_there=not why, until=until, advice=advice)]


def _until(version: Version, found: Commit) -> float | None:
    """Return when others' clean-up may take an older version: its log entry, or files that left the table since."""
    if found.version == version.number:
        return None
    configuration = version.table.metadata().configuration
    times = []
    if configuration.get("delta.enableExpiredLogCleanup", "true") != "false":
        times.append(found.timestamp_ms / 1000 + 3600 * log_retention_hours(configuration))
    now = set(version.table.file_uris())
    old = version.lake.at(found.version)
    gone = [uri for uri in old.file_uris() if uri not in now and STAGED not in uri]
    left = [c for c in version.history if c.version > found.version and not c.only_adds]
    if gone and left:
        times.append(left[-1].timestamp_ms / 1000 + 3600 * retention_hours(configuration))
    return min(times, default=None)


def _small_files(version: Version) -> tuple[int, int]:
    with reading(version.lake.uri):
        actions = version.table.get_add_actions(flatten=True)
    partitions = [name for name in actions.schema.names if name.startswith("partition.")]
    keys = list(zip(*(actions.column(name).to_pylist() for name in partitions), strict=True)) or None
    sizes = actions.column("size_bytes").to_pylist()
    small = [(keys[i] if keys else (), size) for i, size in enumerate(sizes) if size < _TARGET]
    count = Counter(key for key, _ in small)
    merged = [size for key, size in small if count[key] > 1]
    return len(merged), sum(merged)


def _merge(version: Version) -> Upkeep:
    small, size = _small_files(version)
    if not small:
        return Upkeep(what=_MERGED)
    try:
        with committing(version.lake.uri):
            metrics = Outside.compact(version.table)
    except Raced:
        return Upkeep(what=_MERGED, note="a publish was faster and changed the same files: the next time")
    return Upkeep(what=_MERGED, files=int(metrics.get("numFilesRemoved", 0)), bytes=size)


def _not_vacuumed() -> Upkeep:
    return Upkeep(
        what=_REMOVED,
        note="no retained checkpoint or savepoint has published to this table: nothing can be called old",
    )
