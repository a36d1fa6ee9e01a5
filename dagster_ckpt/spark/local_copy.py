"""A local copy of the latest checkpoint's files (Flink: local recovery), preferred on restore where it is
intact.

::

    <directory>/<checkpoint id>/<path relative to the stage's working directory>

It is made of hard links where that is possible, so it costs no space while the stage still uses the files.
It is an optimisation only: a file that is missing or damaged is taken from checkpoint storage instead.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.model import FileEntry
from dagster_ckpt.digests import digest_file
from dagster_ckpt.ports import Digest
from dagster_ckpt.spark.state_files import PlannedFile

__all__ = ["LocalCopy", "drop_local_copies_before", "drop_local_copy", "keep_local_copy"]


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
            _link_or_copy(path, target)
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
        target = copy.folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        _link_or_copy(Path(file.source) if file.source else stage_dir / file.path, target)
    return copy


def drop_local_copies_before(directory: Path, checkpoint_id: CheckpointId) -> None:
    """Remove the copies of checkpoints older than ``checkpoint_id``: call it when that one is complete."""
    names = os.listdir(directory) if directory.is_dir() else []
    for name in names:
        if name.isdigit() and int(name) < checkpoint_id:
            shutil.rmtree(directory / name, ignore_errors=True)


def drop_local_copy(directory: Path, checkpoint_id: CheckpointId) -> None:
    """Remove the copy of exactly this checkpoint: call it when that one is over without completing.

    Its links keep files on disk that the stage has long replaced, and while storage is down none completes.
    Source: TaskLocalStateStoreImplTest#abortCheckpoint.
    """
    shutil.rmtree(LocalCopy.of(directory, checkpoint_id).folder, ignore_errors=True)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)
