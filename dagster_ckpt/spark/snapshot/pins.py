"""Keeps captured files alive while they are uploaded, however long that takes.

Spark deletes files of batches older than about a hundred; at ten triggers a second a slow upload would lose
them. A pin is a hard link in ``<stage working directory>/pins/<checkpoint>``: it costs some 20 µs, and Spark
never edits a file in place, so the content is fixed. File systems without hard links go unpinned: a file
that vanishes under the upload then declines the checkpoint.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path

from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.model import FileEntry
from dagster_ckpt.errors import Declined
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import has_no_links
from dagster_ckpt.spark.snapshot.state_files import PlannedFile


def uploaded_already(previous: Sequence[FileEntry]) -> frozenset[tuple[str, int]]:
    """Return (path, size) of the files an earlier checkpoint holds: content-named ones need no pin."""
    return frozenset((entry.path, entry.size) for entry in previous)


def pin_files(
    files: Sequence[PlannedFile],
    *,
    stage_dir: Path,
    checkpoint_id: CheckpointId,
    uploaded: Container[tuple[str, int]] = frozenset(),
) -> tuple[PlannedFile, ...]:
    """Hard-link the files that will have to be read; returns the same files with ``source`` at their pins.

    Raises Declined when one has vanished since it was planned: plan again. End with ``release_pins``.
    """
    folder = StageDirectory(stage_dir).pins(checkpoint_id)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pinned = []
    try:
        for number, file in enumerate(files):
            if (file.content_named and (file.path, file.size) in uploaded) or file.source is not None:
                pinned.append(file)
                continue
            target = os.path.join(folder, str(number))
            os.link(os.path.join(stage_dir, file.path), target)
            pinned.append(replace(file, source=target))
    except FileNotFoundError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise Declined(
            f"{error.filename} was removed by Spark before it could be captured: plan again"
        ) from error
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        if not has_no_links(error):
            raise
        return tuple(files)
    return tuple(pinned)


def release_pins(stage_dir: Path, checkpoint_id: CheckpointId) -> None:
    """Let go of the pins of one checkpoint; none is no error."""
    shutil.rmtree(StageDirectory(stage_dir).pins(checkpoint_id), ignore_errors=True)


def sweep_pins(stage_dir: Path) -> None:
    """Remove all pins: what an attempt that was killed left in the directory it hands on."""
    shutil.rmtree(StageDirectory(stage_dir).all_pins, ignore_errors=True)
