"""Small files of a stage's directory, one for each micro-batch: what is true through it, and travels with a cut there.

A restored directory has one, ``restored.json``: whatever the next batches are numbered, it lies before them.
"""

from __future__ import annotations

from pathlib import Path

from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.spark.files import remove_files, replace_whole

RESTORED = "restored.json"
KEPT = 256
"""Notes of so many batches are kept: more than Spark keeps batches, to which a cut may go back."""


def note_batch(folder: Path, batch: BatchId, content: bytes) -> None:
    """Write a batch's note, over one of an earlier try."""
    folder.mkdir(exist_ok=True)
    replace_whole(folder / f"{batch}.json", content, durably=False)
    if batch % KEPT == 0:
        remove_files(folder / f"{one}.json" for one in _batches(folder) if one < batch - KEPT)


def through_batch(folder: Path, batch: BatchId | None) -> Path | None:
    """Return the newest note up to a batch, the restored one before any; None: nothing was noted."""
    numbers = [one for one in _batches(folder) if batch is not None and one <= batch]
    if numbers:
        return folder / f"{max(numbers)}.json"
    restored = folder / RESTORED
    return restored if restored.exists() else None


def _batches(folder: Path) -> list[int]:
    return [int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal()]
