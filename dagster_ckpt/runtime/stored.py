"""A snapshot in its storage: where its files go, its metadata and lists read and compared with their digests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagster_ckpt.core import paths
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.metadata_text import read_metadata_text
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata, ObjectRef, StageSnapshot
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import Corrupt, NotFound
from dagster_ckpt.ports import CheckpointStorage


class MissingFile(Corrupt):
    """A file that a snapshot names is not in its storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMetadata:
    """Metadata as it was found in the storage."""

    metadata: CheckpointMetadata
    checksum: str
    """Of the file: what the coordinator's record keeps."""
    has_own_checksum: bool
    """False: it was written before ``_metadata`` carried a checksum of itself."""


def read_metadata(storage: CheckpointStorage, location: str, *, recorded: str = "") -> CheckpointMetadata:
    """Return the metadata at ``location``; everything as for ``read_stored_metadata``."""
    return read_stored_metadata(storage, location, recorded=recorded).metadata


def read_stored_metadata(storage: CheckpointStorage, location: str, *, recorded: str = "") -> StoredMetadata:
    """Return the metadata at ``location``: the key of a snapshot's folder or of its ``_metadata`` file.

    ``recorded``: the file's checksum in the coordinator's record; empty: none is known. Raises NotFound when there is
    no metadata, Corrupt when it cannot be understood or is not the recorded one, Unavailable.
    """
    folder = folder_of(location)
    key = paths.metadata(folder)
    try:
        content = storage.read(key)
    except NotFound as error:
        raise NotFound(
            f"{storage.base_uri}/{folder} is no checkpoint or savepoint: it has no {paths.METADATA_FILE} file "
            "(it was never completed, has been disposed of, or the path is wrong)"
        ) from error
    name = f"{storage.base_uri}/{key}"
    decoded = read_metadata_text(content, name=name)
    checksum = digest_bytes(content).checksum
    if recorded not in ("", checksum):
        raise Corrupt(
            f"{name} is not the one that the coordinator recorded (its checksum differs): it was edited, or is of "
            "another snapshot; bring back the original, or restore from another checkpoint or savepoint"
        )
    return StoredMetadata(metadata=decoded.metadata, checksum=checksum, has_own_checksum=decoded.has_checksum)


def folder_of(location: str) -> str:
    """Return the key of a snapshot's folder, also where its ``_metadata`` file is named."""
    return location.rstrip("/").removesuffix(f"/{paths.METADATA_FILE}").rstrip("/")


def read_list(
    storage: CheckpointStorage, recorded: ObjectRef, *, uid: str, key: str | None = None, owner: str = ""
) -> bytes:
    """Return the content of a stage's file list as it was written.

    ``key`` where it is not the recorded one, ``owner``: whose it is, for people (else the storage). Raises
    MissingFile, Corrupt, Unavailable.
    """
    found_at, whose = key or recorded.key, owner or storage.base_uri
    way_out = "restore from another checkpoint or savepoint"
    try:
        content = storage.read(found_at)
    except NotFound as error:
        raise MissingFile(f"manifest {found_at} of stage {uid} is missing from {whose}: {way_out}") from error
    found = digest_bytes(content)
    # Lists of subtasks that were found written already have been recorded without a checksum.
    if found.size != recorded.size or recorded.checksum not in ("", found.checksum):
        raise Corrupt(
            f"manifest {found_at} of stage {uid} is damaged (size or checksum differ) in {whose}: {way_out}"
        )
    return content


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLocation:
    """Location of a checkpoint: where its files go, and what it may reuse."""

    checkpoint_id: CheckpointId
    kind: CheckpointKind
    storage: CheckpointStorage
    folder: str
    """Key of its folder in ``storage``."""
    previous: Mapping[StageUid, StageSnapshot] = field(default_factory=dict)
    """Per stage, the snapshot whose files need not be uploaded again; empty: everything is uploaded."""

    @property
    def uri(self) -> str:
        """The folder as a URI a user can restore from."""
        return f"{self.storage.base_uri}/{self.folder}"
