"""Mark of a working directory: whose it is, and whether its last attempt ended cleanly.

A directory is worked on in again only as its last attempt left it: an older copy of it, put back from a backup, has an
older mark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.model import Record
from dagster_ckpt.core.restore.facts import Seen
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.spark.directories import AttemptDirectory, StageDirectory
from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.spark.sink.committables import encoded, read_record


def digest_of(directory: AttemptDirectory) -> str:
    """Return a digest over names and contents, in order. Raises OSError where one cannot be read."""
    found = hashlib.blake2b(digest_size=16)
    for stage in sorted(
        path for path in directory.root.iterdir() if path.is_dir() and path.name[0] not in "._"
    ):
        for path in _files(StageDirectory(stage)):
            content = path.read_bytes()
            found.update(f"{path.relative_to(directory.root)} {len(content)}\n".encode())
            found.update(content)
    return found.hexdigest()


def _files(stage: StageDirectory) -> Iterator[Path]:
    """Yield positions of the query, entries of the channel log, committables, and the note of what was published."""
    for folder in (stage.query / "offsets", stage.query / "commits", stage.log, stage.prepared):
        with suppress(FileNotFoundError):
            yield from sorted(path for path in folder.iterdir() if path.is_file() and path.name[0] != ".")
    yield from (path for path in (stage.query / "metadata", stage.published) if path.exists())


class AttemptMark(Record):
    """``attempt.json``: replaced whole when an attempt begins to work in the directory, and when it ends."""

    format_version: Literal[1] = 1
    lineage: str
    epoch: int
    """Attempt that works there, or did last."""
    ended: bool = False
    """All its queries were stopped at batch boundaries, and nothing was written since."""
    left: str = ""
    """Digest of what it left (``digest_of``); empty: it has not ended, or a version without it has written this."""


def mark(directory: AttemptDirectory, lineage: str, epoch: int, *, ended: bool = False) -> None:
    """Write the mark, durably."""
    directory.root.mkdir(parents=True, exist_ok=True)
    left = digest_of(directory) if ended else ""
    replace_whole(directory.mark, encoded(AttemptMark(lineage=lineage, epoch=epoch, ended=ended, left=left)))


def mark_ended(coordinator: CheckpointCoordinator) -> None:
    """Write that the attempt ended cleanly; before its coordinator is closed, which says the same in the store."""
    if coordinator.working_directory:
        directory = AttemptDirectory(Path(coordinator.working_directory))
        mark(directory, coordinator.lineage, coordinator.epoch, ended=True)


def is_as_left(directory: AttemptDirectory, record: CoordinatorRecord) -> bool:
    """Tell whether the directory is as the record's last attempt left it; before there were marks, it is believed."""
    if not record.lineage:
        return True
    try:
        found = read_record(AttemptMark, directory.mark)
        return (
            found is not None
            and found.ended
            and found.epoch == record.status_epoch
            and found.lineage in (record.lineage, *record.lineages)
            and found.left in ("", digest_of(directory))
        )
    except (Corrupt, OSError):
        return False


def seen_in_directory(work_dir: Path, pipeline: PipelineId) -> list[Seen]:
    """Return the newest attempt that worked below ``work_dir``; nothing where none did."""
    found: list[Seen] = []
    for number, directory in AttemptDirectory.all_of(work_dir, pipeline).items():
        try:
            left = read_record(AttemptMark, directory.mark)
        except Corrupt:
            left = None
        found.append(
            Seen(
                where=f"the working directory {directory.root}",
                lineage=left.lineage if left is not None else "",
                epoch=max(number, left.epoch if left is not None else 0),
                holds=False,
            )
        )
    return sorted(found, key=lambda seen: seen.epoch)[-1:]
