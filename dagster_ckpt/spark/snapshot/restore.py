"""A stage's working directory built from a stored snapshot, and the local copy that a restore prefers.

The directory grows under ``<target>.inprogress`` and is renamed last, so a killed restore leaves nothing that looks
complete; every file is verified. The local copy of the latest checkpoint's files (Flink: local recovery)::

    <directory>/<checkpoint id>/<path relative to the stage's working directory>

is made of hard links where that is possible, so it costs no space while the stage still uses the files.
``core.files.retention`` decides which are kept. A file that is missing or damaged is taken from checkpoint storage
instead, which hard-links on one file system.
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
from dagster_ckpt.core.model import FileEntry, StageSnapshot
from dagster_ckpt.core.paths import Digest
from dagster_ckpt.core.restore.parted import JoinedSink
from dagster_ckpt.digests import digest_file
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import link_or_copy, run_in_parallel
from dagster_ckpt.spark.snapshot.capture import note_topic_ids
from dagster_ckpt.spark.snapshot.rewritten import count_on, is_of_judge, is_of_part, name_directory, take_part
from dagster_ckpt.spark.snapshot.state_files import PlannedFile
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot


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
