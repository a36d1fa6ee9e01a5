"""Restore points: what a person may write in ``restore_from``, and the snapshots a pipeline knows of.

Accepted: ``latest``, ``none``, a key (``chk-31``, ``chk-000031``, ``savepoint-7``, or just ``31``), the
name of a known savepoint's folder, and the path or URI of any snapshot's folder or of the ``_metadata``
file in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from dagster_ckpt.core import paths
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch
from dagster_ckpt.core.location import SnapshotLocation
from dagster_ckpt.core.model import CheckpointKind, Record
from dagster_ckpt.core.properties import CheckpointProperties
from dagster_ckpt.core.settings import nearest
from dagster_ckpt.errors import InvalidRequest, NotFound

_KEY = re.compile(r"(?:(chk|savepoint)-)?([0-9]{1,18})", re.IGNORECASE)
_FORMS = (
    "use 'latest', 'none', a key such as 'chk-31' or 'savepoint-7', or the path or URI of a snapshot's "
    "folder or its _metadata file"
)


class Wanted(StrEnum):
    """Kind of snapshot that a key names."""

    CHECKPOINT = "chk"
    SAVEPOINT = "savepoint"
    EITHER = "snapshot"
    """A bare number: ids are never used twice, so it names one snapshot at most."""


@dataclass(frozen=True, slots=True)
class Latest:
    """Go on from where the pipeline stopped."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """Begin without any state."""


@dataclass(frozen=True, slots=True)
class ByKey:
    """A snapshot the coordinator knows, by number."""

    wanted: Wanted
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class ByFolderName:
    """A savepoint the coordinator knows, by the last part of its URI."""

    name: str


@dataclass(frozen=True, slots=True)
class ByUri:
    """Any snapshot, by the path or URI of its folder (without a trailing slash)."""

    uri: str


RestorePoint = Latest | Nothing | ByKey | ByFolderName | ByUri


def parse_restore_point(text: str) -> RestorePoint:
    """Return what ``text`` names. Raises InvalidRequest, saying what may be written, for anything else."""
    given = text.strip()
    if given.lower() == "latest":
        return Latest()
    if given.lower() == "none":
        return Nothing()
    if key := _KEY.fullmatch(given):
        number = int(key[2])
        if number < 1:
            raise InvalidRequest(f"restore_from {text!r} names no snapshot: ids start at 1")
        return ByKey(Wanted(key[1].lower()) if key[1] else Wanted.EITHER, CheckpointId(number))
    if "/" in given:
        return ByUri(_folder_uri(text))
    if given.startswith("savepoint-"):
        return ByFolderName(given)
    meant = nearest(given.lower(), ("latest", "none"))
    if meant:
        raise InvalidRequest(f"restore_from {text!r}: did you mean {meant!r}?")
    raise InvalidRequest(f"restore_from {text!r} is not a restore point: {_FORMS}")


def _folder_uri(text: str) -> str:
    uri = text.strip().rstrip("/").removesuffix(f"/{paths.METADATA_FILE}").rstrip("/")
    if not uri or uri.endswith(":"):
        raise InvalidRequest(f"restore_from {text!r} does not name a snapshot's folder: {_FORMS}")
    return uri


# --- where snapshots are --------------------------------------------------------------------------


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


# --- looking up -----------------------------------------------------------------------------------


def find_by_key(point: ByKey, known: Iterable[KnownSnapshot]) -> KnownSnapshot:
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


def find_by_folder_name(point: ByFolderName, known: Iterable[KnownSnapshot]) -> KnownSnapshot:
    """Return the snapshot whose folder has this name. Raises NotFound, naming what exists."""
    snapshots = list(known)
    found = next((s for s in snapshots if s.location.folder.rpartition("/")[2] == point.name), None)
    if found is None:
        raise NotFound(
            f"there is no savepoint in a folder named {point.name!r}; give its whole path. "
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
