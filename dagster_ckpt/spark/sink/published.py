"""Note of a stage's directory: what its sink had published when it was last asked.

A directory that is worked on in again needs a sink that has not been put back meanwhile: both are compared, at the
start, and before each cut and publish.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from dagster_ckpt.core.checkpoint.tables import ShownTable
from dagster_ckpt.core.model import Record
from dagster_ckpt.core.paths import same_place
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.spark.sink.committables import encoded, prepared_batches, read_record
from dagster_ckpt.spark.sink.port import Sink, SinkPosition


class PublishedNote(Record):
    """``sink/published.json``, replaced whole after every publish."""

    format_version: Literal[1] = 1
    lineage: str
    epoch: int
    checkpoint_id: int | None
    through_batch: int | None
    place: str = ""
    """Where the rows are; empty: written before this was kept."""


MOVED = (
    "to write another from here on, give the sink a new uid and restore with allow_non_restored_state (load_table "
    "reads the earlier rows, to copy them); restore_from: none writes all rows again"
)
"""What to do about a sink that is given another table, or another kind of target."""


def note_published(stage_dir: Path, place: str, position: SinkPosition | None) -> None:
    """Write down where the sink, whose rows are in ``place``, stands."""
    if position is None:
        return
    note = PublishedNote(
        lineage=position.lineage,
        epoch=position.epoch,
        checkpoint_id=position.head,
        through_batch=position.through_batch,
        place=place,
    )
    if note == _note(stage_dir):
        return
    path = StageDirectory(stage_dir).published
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_whole(path, encoded(note))


def shown_as_noted(stage_dir: Path, place: str) -> ShownTable:
    """Return a sink's table as readers find it, as the directory has noted."""
    note = _note(stage_dir)
    return ShownTable(uri=place, head=None if note is None else note.checkpoint_id)


def shown_by(sink: Sink) -> ShownTable:
    """Return a sink's table as readers find it; the sink is asked."""
    position = sink.position()
    return ShownTable(uri=sink.place, head=None if position is None else position.head)


def has_waiting(stage_dir: Path) -> bool:
    """Tell whether rows are prepared that the sink does not show, as the directory has noted it."""
    through = noted_through(stage_dir)
    return any(through is None or number > through for number in prepared_batches(stage_dir))


def noted_through(stage_dir: Path) -> int | None:
    """Return the last batch that the sink shows, as the directory has noted it; None: it has noted none."""
    note = _note(stage_dir)
    return None if note is None else note.through_batch


def place_of_rows(stage_dir: Path) -> str:
    """Return where the rows are that this directory has published; empty: there are none, or nobody knows."""
    note = _note(stage_dir)
    return "" if note is None or note.checkpoint_id is None else note.place


def why_put_back(stage_dir: Path, sink: Sink, called: str) -> str:
    """Return the loss of a sink that shows less than this directory has published to it; empty: none.

    Raises InvalidRequest for one that was given another table.
    """
    return _why_put_back(_note(stage_dir), called, sink, sink.position())


def position_of(sink: Sink, stage_dir: Path) -> SinkPosition | None:
    """Return where a sink stands while its stage runs.

    Raises Corrupt for one that shows less than was published to it: what it has lost is prepared no more, and rows
    behind the gap would look as if nothing were missing.
    """
    note = _note(stage_dir)  # first: a publish may end meanwhile, which moves the sink and then the note
    position = sink.position()
    why = _why_put_back(note, sink.place, sink, position)
    if why:
        raise Corrupt(
            f"{why}, while the pipeline runs. Bring it back, or choose a snapshot with restore_from, which brings it "
            "to exactly its rows"
        )
    return position


def in_another_table(called: str, place: str) -> InvalidRequest:
    """Return the refusal of a sink that was given another table than its rows are in."""
    return InvalidRequest(
        f"{called} has none of the rows that were published: they are in {place}. Write that table again, or {MOVED}"
    )


def _note(stage_dir: Path) -> PublishedNote | None:
    return read_record(PublishedNote, StageDirectory(stage_dir).published)


def _why_put_back(note: PublishedNote | None, called: str, sink: Sink, position: SinkPosition | None) -> str:
    if note is None or note.checkpoint_id is None:
        return ""
    shown = position.head if position is not None else None
    if shown is not None and shown >= note.checkpoint_id:
        return ""
    if note.place and not same_place(note.place, sink.place):
        raise in_another_table(called, note.place)
    if position is None and (why := sink.cannot_roll_back(None)):
        raise InvalidRequest(f"{called}: {why}")  # it is another pipeline's by now
    at = "nothing" if shown is None else f"checkpoint {shown}"
    return (
        f"{called} shows {at}, but checkpoint {note.checkpoint_id} was published to it: it was put back to an older "
        "copy, or emptied"
    )
