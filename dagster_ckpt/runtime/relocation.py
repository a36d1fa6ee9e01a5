"""A record in another store than it was left in: the deployment was copied (``cp -a``, a database restored), or moved.

It names the original's checkpoints. What lies whole in the own storage too is taken from there; the rest may be
restored, and is the original's to delete. In the store it was left in, a checkpoint of another storage is still the
pipeline's own: ``checkpoint_dir`` was changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from dagster_ckpt.core.checkpoint.record import (
    CleanupRecord,
    CompletedRecord,
    CoordinatorRecord,
    PendingRecord,
)
from dagster_ckpt.core.paths import SnapshotLocation, is_in_store, same_place
from dagster_ckpt.core.restore.facts import RestoreLine
from dagster_ckpt.errors import Corrupt, NotFound
from dagster_ckpt.runtime.attempt_setup import AttemptSetup
from dagster_ckpt.runtime.files import handles_of
from dagster_ckpt.runtime.stored import read_metadata

log = logging.getLogger("dagster_ckpt.coordinator")

_LEFT = (
    "the coordinator store of pipeline %r is a copy, or was moved, and these checkpoints are not whole in its "
    "checkpoint_dir %s: %s. They can be restored from and are never deleted: they may be the original's. Remove them "
    "when nothing needs them"
)


def at_home(setup: AttemptSetup, record: CoordinatorRecord) -> CoordinatorRecord:
    """Return the record as an attempt is to go on from it; changed only where it is a copy.

    Checkpoints of another storage are taken from the own one where they lie there whole; the others may be restored,
    and are never deleted, nor are files shared with them (Flink: NO_CLAIM). Raises Unavailable.
    """
    if record.store_place in ("", setup.store_place) or not setup.store_place:
        return record
    away = [entry for entry in record.completed if _was_written_elsewhere(setup, entry)]
    begun = [p.location for p in record.pending if not p.properties.kind.is_savepoint]
    over = [c.location for c in record.cleanup if not c.savepoint]
    if not away and not any(_is_away(setup, location) for location in (*begun, *over)):
        return record
    moves = _Moves(setup)
    completed = tuple(moves.of(e) if _is_away(setup, e.location) else e for e in record.completed)
    savepoints = tuple(moves.of_savepoint(e) for e in record.savepoints)
    left = [e for e in completed if e.properties.unclaimed and _is_away(setup, e.location)]
    if left:
        log.warning(_LEFT, record.pipeline, setup.storage.base_uri, ", ".join(e.location.uri for e in left))
    not_claimed = max((record.highest_not_claimed or 0, *(e.checkpoint_id for e in left)))
    return record.model_copy(
        update={
            "completed": completed,
            "savepoints": savepoints,
            "pending": tuple(_pending_here(setup, p) for p in record.pending),
            "cleanup": tuple(_cleanup_here(setup, c) for c in record.cleanup),
            "line": _line_here(record.line, (*completed, *savepoints)),
            "highest_not_claimed": not_claimed or None,
        }
    )


class _Moves:
    """Finds in the attempt's own places what a record names elsewhere."""

    def __init__(self, setup: AttemptSetup) -> None:
        self._setup = setup
        self._there: set[str] | None = None

    def of(self, entry: CompletedRecord) -> CompletedRecord:
        """Return a checkpoint where it lies in the own storage, or as one that is not ours."""
        own = entry.location.model_copy(update={"base_uri": self._setup.storage.base_uri})
        if entry.taken_as is None and self._is_whole(entry, own):
            return entry.model_copy(update={"location": own})
        properties = entry.properties.model_copy(
            update={
                "unclaimed": True,
                "discard_subsumed": False,
                "discard_finished": False,
                "discard_canceled": False,
                "discard_failed": False,
                "discard_suspended": False,
            }
        )
        return entry.model_copy(update={"properties": properties})

    def of_savepoint(self, entry: CompletedRecord) -> CompletedRecord:
        """Return a savepoint where it lies below the own ``savepoint_dir``, or unchanged: no attempt deletes one."""
        folder = self._setup.config.savepoint_dir
        if not folder or same_place(folder, entry.location.base_uri):
            return entry
        storage = self._setup.storage_at(folder)
        own = entry.location.model_copy(update={"base_uri": storage.base_uri})
        is_there = entry.metadata_checksum and _reads(
            lambda: read_metadata(storage, own.folder, recorded=entry.metadata_checksum)
        )
        return entry.model_copy(update={"location": own}) if is_there else entry

    def _is_whole(self, entry: CompletedRecord, own: SnapshotLocation) -> bool:
        if not entry.metadata_checksum:
            return False
        return _reads(lambda: self._check(own, entry.metadata_checksum))

    def _check(self, own: SnapshotLocation, recorded: str) -> None:
        """Raise NotFound, Corrupt where a checkpoint does not lie whole in the own storage."""
        storage = self._setup.storage
        metadata = read_metadata(storage, own.folder, recorded=recorded)
        needed = {handle.key for handle in handles_of(storage, metadata, self._setup.read_manifest)}
        if self._there is None:
            self._there = {found.key for found in storage.list(self._setup.graph.pipeline)}
        if missing := needed - self._there:
            raise NotFound(f"{storage.base_uri}/{min(missing)} is not there")


def _reads(look: Callable[[], object]) -> bool:
    try:
        look()
    except (NotFound, Corrupt):
        return False
    return True


def _is_away(setup: AttemptSetup, location: SnapshotLocation | None) -> bool:
    """Tell whether files lie in another storage; those in a coordinator store lie in this one's own."""
    if location is None or is_in_store(location.base_uri):
        return False
    return not same_place(location.base_uri, setup.storage.base_uri)


def _was_written_elsewhere(setup: AttemptSetup, entry: CompletedRecord) -> bool:
    """Tell whether the pipeline itself wrote a checkpoint into another storage, and it is still counted as its own."""
    is_own = entry.taken_as is None and not entry.properties.unclaimed
    return is_own and _is_away(setup, entry.location)


def _pending_here(setup: AttemptSetup, pending: PendingRecord) -> PendingRecord:
    return pending.model_copy(
        update={"location": _location_here(setup, pending.location, pending.properties.kind.is_savepoint)}
    )


def _cleanup_here(setup: AttemptSetup, cleanup: CleanupRecord) -> CleanupRecord:
    return cleanup.model_copy(update={"location": _location_here(setup, cleanup.location, cleanup.savepoint)})


def _location_here(
    setup: AttemptSetup, location: SnapshotLocation | None, is_savepoint: bool
) -> SnapshotLocation | None:
    """Return where what is over may be deleted: in the attempt's own places only."""
    if location is None or is_in_store(location.base_uri):
        return location
    if not is_savepoint:
        return location.model_copy(update={"base_uri": setup.storage.base_uri})
    folder = setup.config.savepoint_dir
    return location if folder and same_place(folder, location.base_uri) else None


def _line_here(line: RestoreLine | None, entries: Sequence[CompletedRecord]) -> RestoreLine | None:
    if line is None or line.base is None:
        return line
    base = next((e.known for e in entries if e.checkpoint_id == line.base.checkpoint_id), line.base)
    return line.model_copy(update={"base": base})
