"""A stored checkpoint or savepoint, opened for reading: its metadata, and the manifests of its stages."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.core import paths
from dagster_ckpt.core.metadata_text import decode_metadata
from dagster_ckpt.core.model import CheckpointMetadata, FileEntry, StageSnapshot
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import Corrupt, NotFound
from dagster_ckpt.ports import CheckpointStorage, Digest
from dagster_ckpt.spark.manifest import decode_manifest

__all__ = ["StoredSnapshot", "open_snapshot", "read_entries", "read_metadata"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshot:
    """Where a snapshot lies and what it says about itself."""

    storage: CheckpointStorage
    """For a checkpoint its base is the one it was written under: keys of shared files are relative to it."""
    folder: str
    """Key of the snapshot's folder."""
    metadata: CheckpointMetadata

    def key(self, recorded: str) -> str:
        """Return the storage key of a key as manifests spell it (a savepoint's: relative to its folder)."""
        return f"{self.folder}/{recorded}" if self.metadata.kind.is_savepoint else recorded

    def describe(self) -> str:
        """Name the snapshot for people."""
        kind = "savepoint" if self.metadata.kind.is_savepoint else "checkpoint"
        number, pipeline = self.metadata.checkpoint_id, self.metadata.pipeline
        return f"{kind} {number} of {pipeline} ({self.storage.base_uri}/{self.folder})"


def read_metadata(storage: CheckpointStorage, location: str) -> CheckpointMetadata:
    """Return the metadata at ``location``: the key of a snapshot's folder or of its ``_metadata`` file.

    Raises NotFound when there is none, Corrupt when it cannot be understood, Unavailable.
    """
    key = paths.metadata(_folder(location))
    try:
        content = storage.read(key)
    except NotFound as error:
        raise NotFound(
            f"{storage.base_uri}/{_folder(location)} is no checkpoint or savepoint: it has no "
            f"{paths.METADATA_FILE} file (it was never completed, has been disposed of, or the path is wrong)"
        ) from error
    return decode_metadata(content, name=f"{storage.base_uri}/{key}")


def open_snapshot(storage: CheckpointStorage, location: str) -> StoredSnapshot:
    """Read the metadata at ``location`` and return the snapshot; raises as ``read_metadata`` does."""
    return StoredSnapshot(
        storage=storage, folder=_folder(location), metadata=read_metadata(storage, location)
    )


def _folder(location: str) -> str:
    return location.rstrip("/").removesuffix(f"/{paths.METADATA_FILE}").rstrip("/")


def read_entries(source: StoredSnapshot, snapshot: StageSnapshot) -> list[FileEntry]:
    """Return the files of one stage; none when it had no manifest. Raises Corrupt, Unavailable."""
    if snapshot.manifest is None:
        return []
    reference = snapshot.manifest
    key = source.key(reference.key)
    try:
        content = source.storage.read(key)
    except NotFound as error:
        raise Corrupt(
            f"manifest {key} of stage {snapshot.uid} is missing from {source.describe()}: "
            "restore from another checkpoint or savepoint"
        ) from error
    if digest_bytes(content) != Digest(reference.size, reference.checksum):
        raise Corrupt(
            f"manifest {key} of stage {snapshot.uid} is damaged (size or checksum differ) in "
            f"{source.describe()}: restore from another checkpoint or savepoint"
        )
    return decode_manifest(content, name=key)
