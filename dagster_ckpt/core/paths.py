"""The only file that spells a storage key.

::

    <base>/<pipeline>/chk-<N>/{_metadata, <uid>/manifest.parquet, <uid>/<file>…}   exclusive files of
    checkpoint N <base>/<pipeline>/shared/<uid>/<N>/<file>…                 files first uploaded by N,
    reusable by later ones <target>/savepoint-<pipeline>-<6 random>/…                 one savepoint:
    self-contained, relocatable

A key is relative to the base of its storage and uses '/'. ``<file>`` is the path relative to the stage's
working directory (``query/offsets/7``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dagster_ckpt.core.ids import CheckpointId, PipelineId, StageUid, leaves_room, relative_path
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.errors import InvalidRequest

METADATA_FILE = "_metadata"
MANIFEST_FILE = "manifest.parquet"


def checked_relative(path: str) -> str:
    """Return ``path`` when it stays below its root; raises InvalidRequest for absolute paths and '..'."""
    try:
        return relative_path(path)
    except ValueError as error:
        raise InvalidRequest(f"{path!r} is not a relative path below its root") from error


def is_below(folder: str, key: str) -> bool:
    """Tell whether ``key`` names an object in ``folder``; a key that leaves it by '..' does not."""
    if not key.startswith(f"{folder}/"):
        return False
    try:
        relative_path(key.removeprefix(f"{folder}/"))
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class CheckpointPaths:
    """Storage keys of one pipeline."""

    pipeline: PipelineId

    def checkpoint(self, number: CheckpointId) -> str:
        """Folder of the exclusive files of a checkpoint."""
        return f"{self.pipeline}/chk-{number}"

    def shared(self) -> str:
        """Folder of all files that several checkpoints may use."""
        return f"{self.pipeline}/shared"

    def shared_of(self, uid: StageUid, number: CheckpointId) -> str:
        """Folder of the shared files of a stage that checkpoint ``number`` uploaded first."""
        return f"{self.shared()}/{uid}/{number}"

    def shared_file(self, uid: StageUid, number: CheckpointId, relative: str) -> str:
        """Key of one such file; ``relative`` is relative to the stage's working directory."""
        return f"{self.shared_of(uid, number)}/{checked_relative(relative)}"

    def number_of(self, key: str) -> CheckpointId | None:
        """Checkpoint that wrote ``key``, read off the key; None for a key that is not one of these."""
        found = re.match(rf"{re.escape(self.pipeline)}/(?:chk-|shared/[^/]+/)([1-9][0-9]*)/.", key)
        return _written_by(found[1]) if found else None

    def shared_creator(self, key: str) -> CheckpointId | None:
        """Checkpoint that uploaded the shared file ``key``; None for a key that is no shared file."""
        parts = key.split("/", 4)
        is_shared = len(parts) == 5 and parts[0] == self.pipeline and parts[1] == "shared"
        return _written_by(parts[3]) if is_shared and parts[3].isdecimal() else None

    def savepoint(self, suffix: str) -> str:
        """Folder of a savepoint below its target; ``suffix`` is six random characters."""
        return f"savepoint-{self.pipeline}-{suffix}"


def _written_by(digits: str) -> CheckpointId | None:
    """Return the number in a key; None for one that no checkpoint of ours has."""
    number = int(digits) if len(digits) <= 20 else 0
    return CheckpointId(number) if number and leaves_room(number) else None


def metadata(location: str) -> str:
    """Key of ``_metadata`` in a checkpoint's or savepoint's folder; its existence makes the folder
    complete."""
    return f"{location}/{METADATA_FILE}"


def manifest(location: str, uid: StageUid) -> str:
    """Key of a stage's file list in a checkpoint's or savepoint's folder."""
    return f"{location}/{uid}/{MANIFEST_FILE}"


def exclusive_file(location: str, uid: StageUid, relative: str) -> str:
    """Key of a file that belongs to one checkpoint or savepoint alone."""
    return f"{location}/{uid}/{checked_relative(relative)}"


def checkpoint_key(number: CheckpointId) -> str:
    """Partition key of a checkpoint in Dagster: zero-padded, so that lists sort."""
    return f"chk-{number:06d}"


def savepoint_key(number: CheckpointId) -> str:
    """Partition key of a savepoint in Dagster: zero-padded, so that lists sort."""
    return f"savepoint-{number:06d}"


def snapshot_key(kind: CheckpointKind, number: int) -> str:
    """Partition key of a checkpoint or savepoint: what ``restore_from`` takes."""
    make = savepoint_key if kind.is_savepoint else checkpoint_key
    return make(CheckpointId(number))


@dataclass(frozen=True, slots=True)
class Digest:
    """Size in bytes and checksum (``xxh3_128:<32 hex digits>``) of stored content."""

    size: int
    checksum: str


@dataclass(frozen=True, slots=True)
class AlreadyExists:
    """The key is taken; nothing was written."""

    key: str


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object found by ``list``."""

    key: str
    size: int
