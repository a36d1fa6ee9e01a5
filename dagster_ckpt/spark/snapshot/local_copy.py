"""A local copy of the latest checkpoint's files (Flink: local recovery), preferred on restore where it is intact.

::

    <directory>/<checkpoint id>/<path relative to the stage's working directory>

It is made of hard links where that is possible, so it costs no space while the stage still uses the files.
``core.files.local_recovery`` decides which are kept. It is an optimization only: a file that is missing or damaged is
taken from checkpoint storage instead.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dagster_ckpt.core.files.local_recovery import LocalChange, LocalCopies
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.model import FileEntry
from dagster_ckpt.core.paths import Digest
from dagster_ckpt.digests import digest_file
from dagster_ckpt.spark.files import link_or_copy
from dagster_ckpt.spark.snapshot.state_files import PlannedFile


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
