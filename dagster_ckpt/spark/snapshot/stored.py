"""A stored checkpoint or savepoint: opened for reading, its local copy, and a working directory built of it.

Whatever is read is compared with the size and checksum that were recorded when it was written. The local copy::

    <directory>/<checkpoint id>/<path relative to the stage's working directory>

is made of hard links where that is possible, so it costs no space while the stage still uses the files.
``core.files.retention`` decides which are kept. It is an optimization only: a file that is missing or damaged is
taken from checkpoint storage instead.

The working directory grows under ``<target>.inprogress`` and is renamed last, so a killed restore leaves nothing
that looks complete. Files come from a local recovery copy where it has them intact, else from storage, which
hard-links on one file system.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dagster_ckpt.core.chains import QueryPart
from dagster_ckpt.core.files.retention import LocalChange, LocalCopies
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.model import CheckpointMetadata, FileEntry, StageSnapshot
from dagster_ckpt.core.paths import Digest
from dagster_ckpt.core.restore.parted import JoinedSink
from dagster_ckpt.digests import digest_bytes, digest_file
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.runtime.stored import MissingFile, folder_of, read_list, read_metadata, read_stored_metadata
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import link_or_copy, run_in_parallel
from dagster_ckpt.spark.snapshot.capture import note_topic_ids
from dagster_ckpt.spark.snapshot.manifest import decode_manifest
from dagster_ckpt.spark.snapshot.rewritten import count_on, is_of_judge, is_of_part, name_directory, take_part
from dagster_ckpt.spark.snapshot.state_files import PlannedFile

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


@dataclass(frozen=True, slots=True)
class LocalCopy:
    """The local files of one checkpoint of one stage."""

    folder: Path

    @classmethod
    def of(cls, directory: Path, checkpoint_id: CheckpointId) -> LocalCopy:
        """Return the copy of a checkpoint below the stage's local directory; it need not exist."""
        return cls(directory / str(checkpoint_id))

    def bring(self, entry: FileEntry, target: Path) -> bool:
        """Put the entry's file at ``target`` if the copy has it intact; False: take it from storage."""
        path = self.folder / entry.path
        try:
            if digest_file(path) != Digest(entry.size, entry.checksum):
                return False
            link_or_copy(path, target)
        except OSError:
            with suppress(OSError):
                target.unlink()
            return False
        return True


def keep_local_copy(
    files: Sequence[PlannedFile], *, stage_dir: Path, directory: Path, checkpoint_id: CheckpointId
) -> LocalCopy:
    """Keep the files of a capture under ``directory``; call it while their pins are held. Raises OSError."""
    copy = LocalCopy.of(directory, checkpoint_id)
    shutil.rmtree(copy.folder, ignore_errors=True)
    for file in files:
        source = Path(file.source) if file.source else stage_dir / file.path
        link_or_copy(source, copy.folder / file.path)
    return copy


def find_local_copy(directory: Path, checkpoint_id: CheckpointId) -> LocalCopy | None:
    """Return the copy of a checkpoint, if there is one; its files are compared with the manifest when used."""
    found = _copies_in(directory).find(checkpoint_id)
    return None if found is None else LocalCopy.of(directory, found)


def drop_local_copies_before(directory: Path, checkpoint_id: CheckpointId) -> None:
    """Remove the copies that are of no use once ``checkpoint_id`` is complete: call it then."""
    _prune(directory, _copies_in(directory).confirm(checkpoint_id))


def drop_local_copy(directory: Path, checkpoint_id: CheckpointId) -> None:
    """Remove the copy of a checkpoint that is over without completing: call it then.

    Its links keep files on disk that the stage has long replaced, and while storage is down none completes.
    """
    _prune(directory, _copies_in(directory).abort(checkpoint_id))


def _copies_in(directory: Path) -> LocalCopies:
    names = os.listdir(directory) if directory.is_dir() else []
    return LocalCopies(stored=tuple(sorted(CheckpointId(int(name)) for name in names if name.isdecimal())))


def _prune(directory: Path, change: LocalChange) -> None:
    for checkpoint_id in change.pruned:
        shutil.rmtree(LocalCopy.of(directory, checkpoint_id).folder, ignore_errors=True)


QUERY_METADATA = "query/metadata"


def build_stage_directory(
    source: StoredSnapshot,
    snapshot: StageSnapshot,
    *,
    target_dir: Path,
    named_as: Path | None = None,
    new_query_id: str | None = None,
    local_copy: LocalCopy | None = None,
    part: QueryPart | None = None,
    joined: JoinedSink | None = None,
    parallelism: int = 8,
) -> list[FileEntry]:
    """Create the stage's working directory ``target_dir`` as it stood at the cut; returns the snapshot's
    entries.

    ``named_as``: the path that Spark's own files are to name, where it is not ``target_dir``. ``new_query_id`` is for a
    fork: two running queries must not share an id (Spark stops one of them silently). None keeps the id, for a restore
    in place. A query that had never started gets an empty directory. ``part``: part of the saved query that is restored
    here; ``joined``: a sink's query and its judge's, restored as one. Raises InvalidRequest when the directory exists,
    Corrupt naming a missing or damaged file, and Unavailable; nothing is visible then.
    """
    if target_dir.exists():
        raise InvalidRequest(f"{target_dir} exists already: restore into a directory that does not")
    files: list[tuple[FileEntry, StageSnapshot, LocalCopy | None]] = [
        (entry, snapshot, local_copy) for entry in source.entries(snapshot)
    ]
    if joined is not None:
        rows = [entry for entry in source.entries(joined.sink) if entry.path.startswith("sink/")]
        files = [file for file in files if is_of_judge(file[0].path)]
        files += [(entry, joined.sink, None) for entry in rows]
    if part is not None:
        files = [file for file in files if is_of_part(file[0].path, part, snapshot)]
    entries = [entry for entry, *_ in files]
    building = target_dir.with_name(f"{target_dir.name}.inprogress")
    shutil.rmtree(building, ignore_errors=True)
    try:
        _make_folders(building, entries)
        run_in_parallel(
            lambda file: _bring(file[0], building / file[0].path, source, *file[1:]),
            sorted(files, key=lambda file: -file[0].size),
            parallelism=parallelism,
        )
        name_directory(building, entries, named_as or target_dir)
        note_topic_ids(StageDirectory(building), snapshot.topic_ids)
        if joined is not None:
            count_on(StageDirectory(building), joined.judge, snapshot)
        if part is not None:
            take_part(StageDirectory(building), part, snapshot)
        if new_query_id is not None and (building / QUERY_METADATA).exists():
            _give_query_id(building, new_query_id)
        building.rename(target_dir)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return entries


def _make_folders(root: Path, entries: Sequence[FileEntry]) -> None:
    folders = {entry.path.rpartition("/")[0] for entry in entries}
    for folder in folders | {""}:
        (root / folder).mkdir(parents=True, exist_ok=True)


def _give_query_id(root: Path, query_id: str) -> None:
    # Replaced, never edited: the file may be a hard link to the one in checkpoint storage.
    path = root / QUERY_METADATA
    path.unlink()
    path.write_text(json.dumps({"id": query_id}, separators=(",", ":")))


def _bring(
    entry: FileEntry,
    target: Path,
    source: StoredSnapshot,
    snapshot: StageSnapshot,
    local_copy: LocalCopy | None,
) -> None:
    """Put one verified file at ``target``, from the local copy where that has it."""
    is_stored = entry.inline is None and entry.key is not None
    if local_copy is None or not is_stored or not local_copy.bring(entry, target):
        source.fetch(snapshot, entry, target)
