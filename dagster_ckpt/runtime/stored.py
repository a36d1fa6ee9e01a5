"""Metadata and lists of a snapshot, read from its storage and compared with their digests."""

from __future__ import annotations

from dagster_ckpt.core import paths
from dagster_ckpt.core.metadata_text import decode_metadata
from dagster_ckpt.core.model import CheckpointMetadata, ObjectRef
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import Corrupt, NotFound
from dagster_ckpt.ports import CheckpointStorage


class MissingFile(Corrupt):
    """A file that a snapshot names is not in its storage."""


def read_metadata(storage: CheckpointStorage, location: str) -> CheckpointMetadata:
    """Return the metadata at ``location``: the key of a snapshot's folder or of its ``_metadata`` file.

    Raises NotFound when there is none, Corrupt when it cannot be understood, Unavailable.
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
    return decode_metadata(content, name=f"{storage.base_uri}/{key}")


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
