"""Small files of a stage's directory, one for each micro-batch: what is true through it, and travels with a cut there.

A restored directory has one, ``restored.json``: whatever the next batches are numbered, it lies before them.

Objects that are stages' own have their states kept so, in ``own/<batch>.json``, by stage uid.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.core.model import FileKind, Record
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import remove_files, replace_whole
from dagster_ckpt.spark.snapshot.state_files import PlannedFile

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


FOLDER = "own"


class OwnStatesNote(Record):
    """States through a batch: by stage uid, as ``encode_state`` spells them."""

    format_version: Literal[1] = 1
    states: Mapping[str, str] = Field(default_factory=dict)
    lists: Mapping[str, Mapping[str, bool]] = Field(default_factory=dict)
    """Stages whose state is of several subtasks, each with its lists: whether every subtask gets all items."""


def note_states(directory: StageDirectory, batch: BatchId, states: OwnStatesNote) -> None:
    """Write the states through a batch, before its rows are in the channel log."""
    silent = None if states.lists else {"lists"}  # versions before it refuse what they do not know
    note_batch(directory.root / FOLDER, batch, states.model_dump_json(exclude=silent).encode())


def path_through(directory: StageDirectory, batch: BatchId | None) -> Path | None:
    """Return the note through a batch; None: there is none."""
    return through_batch(directory.root / FOLDER, batch)


def read_states(path: Path | None) -> OwnStatesNote:
    """Return the states in a note; None: it says nothing. Raises Corrupt."""
    if path is None:
        return OwnStatesNote()
    try:
        return OwnStatesNote.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise Corrupt(f"{path} is damaged: restore the pipeline from its latest checkpoint") from error


def captured_states(directory: StageDirectory, batch: BatchId | None) -> tuple[PlannedFile, ...]:
    """Return the file that holds the states at a cut; none where no stage has an object of its own."""
    path = path_through(directory, batch)
    if path is None:
        return ()
    return (
        PlannedFile(
            path=f"{FOLDER}/{RESTORED}", size=path.stat().st_size, kind=FileKind.QUERY, source=str(path)
        ),
    )
