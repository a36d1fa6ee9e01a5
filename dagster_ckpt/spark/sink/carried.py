"""Files of a staged sink's own folder: what a checkpoint takes with it, and the last batch of each publish."""

from __future__ import annotations

import filecmp
import hashlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import Field

from dagster_ckpt.core.model import Record
from dagster_ckpt.spark.files import link_or_copy, replace_by_link, replace_whole
from dagster_ckpt.spark.sink.committables import PreparedBatch, encoded, read_record

COPIES = "carried"
"""Folder of copies of notes: a note may be replaced while its checkpoint is stored, a copy is not."""


def staged_by(root: Path, batches: Sequence[PreparedBatch]) -> dict[str, Path]:
    """Return the staged files of these batches by name; those of published batches may be gone already."""
    names = (file.staged for batch in batches for file in batch.files)
    return {name: root / name for name in names if (root / name).exists()}


def put_back(restored: Path, target: Path) -> None:
    """Give the sink's folder a staged file that was restored.

    One that is here and has other content is replaced: a checkpoint's files were compared with its manifest.
    """
    if target.exists() and not (target.samefile(restored) or filecmp.cmp(target, restored, shallow=False)):
        replace_by_link(restored, target)
    link_or_copy(restored, target)


def copied_notes(root: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return copies of the notes that are there, by the note's name."""
    found = {}
    for name, content in _notes(root, names):
        copy = _copy_of(root, name, content)
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            replace_whole(copy, content, durably=False)
        found[name] = copy
    return found


def remove_copies(root: Path, names: Sequence[str]) -> None:
    """Remove copies of what the notes do not say any more; a checkpoint that begins now takes the others."""
    kept = {_copy_of(root, name, content).parent for name, content in _notes(root, names)}
    for folder in (root / COPIES).glob("*"):
        if folder not in kept:
            shutil.rmtree(folder, ignore_errors=True)


def _notes(root: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for name in names:
        with suppress(FileNotFoundError):
            yield name, (root / name).read_bytes()


def _copy_of(root: Path, name: str, content: bytes) -> Path:
    return root / COPIES / hashlib.blake2b(content, digest_size=16).hexdigest() / name


THROUGH = "through.json"
"""In the sink's folder."""


class ThroughBatches(Record):
    """``through.json``: a restore that keeps later rows goes on behind the last batch that was published.

    A help and not the truth: without it rows that were kept are published again from the restored stage's first batch
    on, which are the same ones.
    """

    format_version: Literal[1] = 1
    publishes: dict[int, dict[int, int]] = Field(default_factory=dict)
    """Checkpoint -> attempt -> last micro-batch of those it staged that the checkpoint made visible."""


def note_through(folder: Path, checkpoint_id: int, batches: Sequence[PreparedBatch]) -> None:
    """Write down a publish before it is made."""
    through = {batch.epoch: batch.batch_id for batch in batches}
    _write(folder, _read(folder).publishes | {checkpoint_id: through})


def through_at(folder: Path, checkpoint_id: int | None) -> int | None:
    """Return the last batch of a publish; None: not known."""
    found = {} if checkpoint_id is None else _read(folder).publishes.get(checkpoint_id, {})
    return max(found.values(), default=None)


def published_in(folder: Path, batch: PreparedBatch) -> set[int]:
    """Return the checkpoints that made a batch of this very attempt visible, or a later one of it."""
    publishes = _read(folder).publishes.items()
    return {number for number, through in publishes if through.get(batch.epoch, -1) >= batch.batch_id}


def forget_before(folder: Path, checkpoint_id: int) -> None:
    """Remove the publishes before this one."""
    publishes = _read(folder).publishes
    kept = {number: through for number, through in publishes.items() if number >= checkpoint_id}
    if kept != publishes:
        _write(folder, kept)


def merge_through(folder: Path, restored: Path) -> None:
    """Take over what a restored file tells of publishes that are not known here."""
    found = read_record(ThroughBatches, restored) or ThroughBatches()
    known = _read(folder).publishes
    if found.publishes.keys() - known.keys():
        _write(folder, found.publishes | known)


def _read(folder: Path) -> ThroughBatches:
    return read_record(ThroughBatches, folder / THROUGH) or ThroughBatches()


def _write(folder: Path, publishes: dict[int, dict[int, int]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    replace_whole(folder / THROUGH, encoded(ThroughBatches(publishes=publishes)), durably=False)
