"""Builds a stage's working directory from a stored snapshot; every file is verified before any is visible.

The directory grows under ``<target>.inprogress`` and is renamed last, so a killed restore leaves nothing
that looks complete. Files come from a local recovery copy where it has them intact, else from storage, which
hard-links on one file system.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dagster_ckpt.core.model import FileEntry, StageSnapshot
from dagster_ckpt.core.paths import checked_relative
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound
from dagster_ckpt.ports import Digest
from dagster_ckpt.spark.local_copy import LocalCopy
from dagster_ckpt.spark.parallel import run_in_parallel
from dagster_ckpt.spark.snapshots import StoredSnapshot, read_entries

__all__ = ["materialise_stage", "verify_stage"]

QUERY_METADATA = "query/metadata"


def verify_stage(source: StoredSnapshot, snapshot: StageSnapshot, *, parallelism: int = 8) -> list[FileEntry]:
    """Read every file of a stage and compare size and checksum; returns the verified entries.

    Raises Corrupt naming the first file that is missing or damaged, and Unavailable.
    """
    entries = read_entries(source, snapshot)
    with tempfile.TemporaryDirectory(prefix="dagster-ckpt-verify-") as folder:

        def check(item: tuple[int, FileEntry]) -> None:
            target = Path(folder) / str(item[0])
            _bring(item[1], target, source, snapshot, None)
            target.unlink()

        run_in_parallel(check, list(enumerate(entries)), parallelism=parallelism)
    return entries


def materialise_stage(
    source: StoredSnapshot,
    snapshot: StageSnapshot,
    *,
    target_dir: Path,
    new_query_id: str | None = None,
    local_copy: LocalCopy | None = None,
    parallelism: int = 8,
) -> list[FileEntry]:
    """Create the stage's working directory ``target_dir`` as it stood at the cut; returns the snapshot's
    entries.

    ``new_query_id`` is for a fork: two running queries must not share an id (Spark stops one of them
    silently). None keeps the id, for a restore in place. A query that had never started gets an empty
    directory. Raises InvalidRequest when the directory exists, Corrupt naming a missing or damaged file, and
    Unavailable; nothing is visible then.
    """
    if target_dir.exists():
        raise InvalidRequest(f"{target_dir} exists already: restore into a directory that does not")
    entries = read_entries(source, snapshot)
    building = target_dir.with_name(f"{target_dir.name}.inprogress")
    shutil.rmtree(building, ignore_errors=True)
    try:
        _make_folders(building, entries)
        run_in_parallel(
            lambda entry: _bring(entry, building / entry.path, source, snapshot, local_copy),
            sorted(entries, key=lambda e: -e.size),
            parallelism=parallelism,
        )
        if new_query_id is not None and any(e.path == QUERY_METADATA for e in entries):
            _give_query_id(building, new_query_id)
        building.rename(target_dir)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return entries


def _make_folders(root: Path, entries: Sequence[FileEntry]) -> None:
    try:
        folders = {checked_relative(e.path).rpartition("/")[0] for e in entries}
    except InvalidRequest as error:
        raise Corrupt(f"the manifest is damaged: {error}; restore from another checkpoint") from error
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
    """Put one verified file at ``target``; raises Corrupt naming it, its checkpoint and the way out."""
    expected = Digest(entry.size, entry.checksum)
    if entry.inline is not None:
        if digest_bytes(entry.inline) != expected:
            raise _damaged(entry, source, snapshot, "does not match its checksum")
        target.write_bytes(entry.inline)
        return
    if entry.key is None:
        raise _damaged(entry, source, snapshot, "has neither content nor a key")
    if local_copy is not None and local_copy.bring(entry, target):
        return
    try:
        source.storage.fetch(source.key(entry.key), target, expected)
    except NotFound as error:
        raise _damaged(
            entry, source, snapshot, f"is missing from storage ({source.key(entry.key)})"
        ) from error
    except Corrupt as error:
        raise _damaged(entry, source, snapshot, f"is damaged in storage ({error})") from error


def _damaged(entry: FileEntry, source: StoredSnapshot, snapshot: StageSnapshot, what: str) -> Corrupt:
    return Corrupt(
        f"{entry.path} of stage {snapshot.uid} {what}; it belongs to {source.describe()}. "
        "Nothing was restored: restore from another checkpoint or savepoint"
    )
