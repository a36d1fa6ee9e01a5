"""Note of a stage's directory: what its sink had published when it was last asked.

A directory that is worked on in again needs a sink that has not been put back meanwhile: both are compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from dagster_ckpt.core.model import Record
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.spark.sink.committables import encoded, read_record
from dagster_ckpt.spark.sink.port import SinkPosition


class PublishedNote(Record):
    """``sink/published.json``, replaced whole after every publish."""

    format_version: Literal[1] = 1
    lineage: str
    epoch: int
    checkpoint_id: int | None
    through_batch: int | None
    place: str = ""
    """Where the rows are; empty: written before this was kept."""


def note_published(stage_dir: Path, place: str, position: SinkPosition | None) -> None:
    """Write down where the sink, whose rows are in ``place``, stands."""
    if position is None:
        return
    path = StageDirectory(stage_dir).published
    path.parent.mkdir(parents=True, exist_ok=True)
    note = PublishedNote(
        lineage=position.lineage,
        epoch=position.epoch,
        checkpoint_id=position.head,
        through_batch=position.through_batch,
        place=place,
    )
    replace_whole(path, encoded(note))


def place_of_rows(stage_dir: Path) -> str:
    """Return where the rows are that this directory has published; empty: there are none, or nobody knows."""
    note = read_record(PublishedNote, StageDirectory(stage_dir).published)
    return "" if note is None or note.checkpoint_id is None else note.place


def why_put_back(stage_dir: Path, place: str, position: SinkPosition | None) -> str:
    """Return what is missing of a sink that shows less than this directory has published to it; empty: nothing is."""
    note = read_record(PublishedNote, StageDirectory(stage_dir).published)
    if note is None or note.checkpoint_id is None:
        return ""
    shown = position.head if position is not None else None
    if shown is not None and shown >= note.checkpoint_id:
        return ""
    at = "nothing" if shown is None else f"checkpoint {shown}"
    return (
        f"{place} shows {at}, but checkpoint {note.checkpoint_id} was published to it: it was put back to an older "
        "copy, or emptied"
    )
