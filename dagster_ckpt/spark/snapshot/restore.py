"""Builds a stage's working directory from a stored snapshot; every file is verified before any is visible.

The directory grows under ``<target>.inprogress`` and is renamed last, so a killed restore leaves nothing
that looks complete. Files come from a local recovery copy where it has them intact, else from storage, which
hard-links on one file system.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from dagster_ckpt.core.chains import QueryPart
from dagster_ckpt.core.model import FileEntry, StageSnapshot
from dagster_ckpt.core.restore.parted import JoinedSink
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import run_in_parallel
from dagster_ckpt.spark.snapshot.capture import note_topic_ids
from dagster_ckpt.spark.snapshot.local_copy import LocalCopy
from dagster_ckpt.spark.snapshot.own_paths import name_directory
from dagster_ckpt.spark.snapshot.parted import count_on, is_of_judge, is_of_part, take_part
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot

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
