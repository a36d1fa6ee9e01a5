"""A stored checkpoint or savepoint, opened for reading: the only way to a file of a snapshot.

Whatever is read is compared with the size and checksum that were recorded when it was written.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dagster_ckpt.core.model import CheckpointMetadata, FileEntry, StageSnapshot
from dagster_ckpt.core.paths import Digest
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import Corrupt, NotFound
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.runtime.stored import MissingFile, folder_of, read_list, read_metadata, read_stored_metadata
from dagster_ckpt.spark.snapshot.manifest import decode_manifest

__all__ = ["MissingFile", "StoredSnapshot", "open_snapshot", "read_manifest", "read_metadata"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshot:
    """Stored snapshot: its folder, opened, with its metadata."""

    storage: CheckpointStorage
    """For a checkpoint its base is the one it was written under: keys of shared files are relative to it."""
    folder: str
    """Key of the snapshot's folder."""
    metadata: CheckpointMetadata
    metadata_checksum: str = ""
    """Of its ``_metadata`` file."""
    has_own_checksum: bool = True
    """False: its ``_metadata`` was written before it carried a checksum of itself."""

    @property
    def uri(self) -> str:
        """The snapshot's folder."""
        return f"{self.storage.base_uri}/{self.folder}"

    def key(self, recorded: str) -> str:
        """Return the storage key of a key as manifests spell it (a savepoint's: relative to its folder)."""
        return f"{self.folder}/{recorded}" if self.metadata.kind.is_savepoint else recorded

    def describe(self) -> str:
        """Name the snapshot for people."""
        kind = "savepoint" if self.metadata.kind.is_savepoint else "checkpoint"
        number, pipeline = self.metadata.checkpoint_id, self.metadata.pipeline
        return f"{kind} {number} of {pipeline} ({self.uri})"

    def entries(self, stage: StageSnapshot) -> list[FileEntry]:
        """Return the files of one stage; none when it had no manifest. Raises Corrupt, Unavailable."""
        if stage.manifest is None:
            return []
        return read_manifest(self.storage, stage, key=self.key(stage.manifest.key), owner=self.describe())

    def fetch(self, stage: StageSnapshot, entry: FileEntry, target: Path) -> None:
        """Put a stage's file at ``target``, hard-linked where that is the same file system.

        Raises MissingFile or Corrupt, naming file, stage and snapshot, and Unavailable; ``target`` is not there then.
        """
        inline = self._inline(stage, entry)
        if inline is not None:
            target.write_bytes(inline)
            return
        key = self._key_of(stage, entry)
        try:
            self.storage.fetch(key, target, Digest(entry.size, entry.checksum))
        except NotFound as error:
            raise self._missing(stage, entry, key) from error
        except Corrupt as error:
            raise self._damaged(stage, entry, f"is damaged in storage ({error})") from error

    def read(self, stage: StageSnapshot, entry: FileEntry) -> bytes:
        """Return the content of a stage's file; raises as ``fetch`` does."""
        inline = self._inline(stage, entry)
        if inline is not None:
            return inline
        key = self._key_of(stage, entry)
        try:
            content = self.storage.read(key)
        except NotFound as error:
            raise self._missing(stage, entry, key) from error
        if digest_bytes(content) != Digest(entry.size, entry.checksum):
            raise self._damaged(stage, entry, f"is damaged in storage ({key}: size or checksum differ)")
        return content

    def _inline(self, stage: StageSnapshot, entry: FileEntry) -> bytes | None:
        if entry.inline is not None and digest_bytes(entry.inline) != Digest(entry.size, entry.checksum):
            raise self._damaged(stage, entry, "does not match its checksum")
        return entry.inline

    def _key_of(self, stage: StageSnapshot, entry: FileEntry) -> str:
        if entry.key is None:
            raise self._damaged(stage, entry, "has neither content nor a key")
        return self.key(entry.key)

    def _missing(self, stage: StageSnapshot, entry: FileEntry, key: str) -> MissingFile:
        return MissingFile(self._sentence(stage, entry, f"is missing from storage ({key})"))

    def _damaged(self, stage: StageSnapshot, entry: FileEntry, what: str) -> Corrupt:
        return Corrupt(self._sentence(stage, entry, what))

    def _sentence(self, stage: StageSnapshot, entry: FileEntry, what: str) -> str:
        return (
            f"{entry.path} of stage {stage.uid} {what}; it belongs to {self.describe()}: "
            "restore from another checkpoint or savepoint"
        )


def open_snapshot(storage: CheckpointStorage, location: str, *, recorded: str = "") -> StoredSnapshot:
    """Read the metadata at ``location`` and return the snapshot; everything as for ``read_stored_metadata``."""
    read = read_stored_metadata(storage, location, recorded=recorded)
    return StoredSnapshot(
        storage=storage,
        folder=folder_of(location),
        metadata=read.metadata,
        metadata_checksum=read.checksum,
        has_own_checksum=read.has_own_checksum,
    )


def read_manifest(
    storage: CheckpointStorage, stage: StageSnapshot, *, key: str | None = None, owner: str = ""
) -> list[FileEntry]:
    """Return the files of a stage of which nothing else is at hand; none when it had no manifest.

    ``key`` and ``owner`` as for ``read_list``. Raises MissingFile, Corrupt, Unavailable.
    """
    if stage.manifest is None:
        return []
    content = read_list(storage, stage.manifest, uid=stage.uid, key=key, owner=owner)
    return decode_manifest(content, name=key or stage.manifest.key)
