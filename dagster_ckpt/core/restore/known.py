"""Snapshots that a pipeline knows of, and those of them that a restore point names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from dagster_ckpt.core import paths
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch
from dagster_ckpt.core.location import SnapshotLocation
from dagster_ckpt.core.model import CheckpointKind, Record
from dagster_ckpt.core.properties import CheckpointProperties
from dagster_ckpt.core.restore_point import At, Key, Wanted
from dagster_ckpt.errors import NotFound


class KnownSnapshot(Record):
    """A completed snapshot in the coordinator's record."""

    checkpoint_id: CheckpointId
    kind: CheckpointKind
    location: SnapshotLocation
    properties: CheckpointProperties
    epoch: CoordinatorEpoch
    """Attempt that took it; for one from outside, the attempt that restored it."""
    metadata_checksum: str = ""
    """Of its ``_metadata`` file; empty: recorded before this was kept."""

    @property
    def key(self) -> str:
        """Its key as people see it."""
        return paths.snapshot_key(self.kind, self.checkpoint_id)


def find_by_key(point: Key, known: Iterable[KnownSnapshot]) -> KnownSnapshot:
    """Return the snapshot a key names. Raises NotFound, naming what exists."""
    snapshots = list(known)
    same_id = [s for s in snapshots if s.checkpoint_id == point.checkpoint_id]
    found = next((s for s in same_id if _is_wanted(point.wanted, s)), None)
    if found is not None:
        return found
    hint = f"; {point.checkpoint_id} is {same_id[0].key}" if same_id else ""
    raise NotFound(
        f"there is no {point.wanted}-{point.checkpoint_id} to restore from{hint}. {existing(snapshots)}"
    )


def find_by_folder_name(point: At, known: Iterable[KnownSnapshot]) -> KnownSnapshot:
    """Return the snapshot whose folder has this name. Raises NotFound, naming what exists."""
    snapshots = list(known)
    found = next((s for s in snapshots if s.location.folder.rpartition("/")[2] == point.uri), None)
    if found is None:
        raise NotFound(
            f"there is no savepoint in a folder named {point.uri!r}; give its whole path. "
            f"{existing(snapshots)}"
        )
    return found


def existing(known: Iterable[KnownSnapshot]) -> str:
    """Return one sentence that names what can be restored, newest first (at most ten)."""
    newest_first = sorted(known, key=lambda s: s.checkpoint_id, reverse=True)
    keys = list(dict.fromkeys(s.key for s in newest_first))  # a savepoint may be retained as a checkpoint too
    if not keys:
        return "The pipeline has no completed checkpoint or savepoint yet"
    more = f" and {len(keys) - 10} older ones" if len(keys) > 10 else ""
    return f"There are: {', '.join(keys[:10])}{more}"


def _is_wanted(wanted: Wanted, snapshot: KnownSnapshot) -> bool:
    match wanted:
        case Wanted.EITHER:
            return True
        case Wanted.CHECKPOINT:
            return not snapshot.kind.is_savepoint
        case Wanted.SAVEPOINT:
            return snapshot.kind.is_savepoint
    assert_never(wanted)
