"""The newest attempt of a sink whose table was not made yet: a table tells it itself once it is there.

A newer attempt writes this note and then looks for the table; an older one makes the table, then reads the note, then
publishes: so one of them sees the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from dagster_ckpt.core.model import Record
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.files import classified, replace_whole
from dagster_ckpt.spark.sink.committables import encoded, read_record
from dagster_ckpt.spark.sink.port import AttemptId, SinkPosition


class Owner(Record):
    """``owner.json`` of the sink's folder."""

    format_version: Literal[1] = 1
    lineage: str
    epoch: int

    def position(self) -> SinkPosition:
        """Return the owner as a position: nothing was published."""
        return SinkPosition(lineage=self.lineage, epoch=self.epoch)


def read_owner(path: Path) -> Owner | None:
    """Return the note; None: no attempt took over."""
    return read_record(Owner, path)


def note_owner(path: Path, attempt: AttemptId) -> None:
    """Write the note, unless it says so."""
    note = Owner(lineage=attempt.lineage, epoch=int(attempt.epoch))
    if note != read_owner(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with classified(f"writing {path}"):
            replace_whole(path, encoded(note))


RENAMED = "renamed.json"
"""Note in the folder that a sink had under its pipeline's former name: a run of the old code finds that it moved."""


class Renamed(Record):
    """``renamed.json``: the names under which the sink goes on."""

    format_version: Literal[1] = 1
    pipeline: str
    uid: str


def is_renamed(folder: Path) -> bool:
    """Tell whether a sink has left this folder for one of another name."""
    return (folder / RENAMED).exists()


def note_renamed(folder: Path, pipeline: str, uid: str) -> None:
    """Leave a note in the folder of a former name."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_whole(folder / RENAMED, encoded(Renamed(pipeline=pipeline, uid=uid)))


def refuse_renamed(folder: Path, place: str) -> None:
    """Raise InvalidRequest where a sink goes on under another name: this one's rows would go out a second time."""
    note = read_record(Renamed, folder / RENAMED)
    if note is not None:
        raise InvalidRequest(
            f"{place} goes on as sink {note.uid!r} of pipeline {note.pipeline!r}, which was renamed: run that code. To "
            f"go back to this name, say previous_names=[{note.pipeline!r}]; a new pipeline takes a name of its own"
        )
