"""Rules on a sink's position: who may write, what is shown already, and how it lies to a cut.

Numbers of checkpoints are unique within one place, over all histories, and grow: so they can be compared.

Before there is a table, a newer attempt writes a note and then looks for the table; an older one makes the table,
then reads the note, then publishes: so one of them sees the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from enum import Enum
from itertools import takewhile
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict

from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.model import Record, TableSnapshot
from dagster_ckpt.errors import Fenced, InvalidRequest
from dagster_ckpt.spark.files import classified, replace_whole
from dagster_ckpt.spark.sink.committables import PreparedBatch, encoded, read_record
from dagster_ckpt.spark.sink.port import AttemptId, Sink, SinkCut, SinkPosition

SEED = 0
"""Head of a sink that shows the rows a fork began with: no checkpoint has this number."""


class PositionRecord(Record):
    """A position as it is written, wherever that is."""

    model_config = ConfigDict(from_attributes=True)

    lineage: str
    epoch: int
    checkpoint_id: int | None = None
    head: int | None = None
    through_batch: int | None = None

    @classmethod
    def of(cls, position: SinkPosition) -> PositionRecord:
        """Return a position to write."""
        return cls.model_validate(position)

    def position(self) -> SinkPosition:
        """Return the position that was written."""
        return SinkPosition(**{name: getattr(self, name) for name in PositionRecord.model_fields})


class CutRelation(Enum):
    """How what a sink shows lies to a cut."""

    AT = "at"
    """It shows the cut's rows, but for some that the cut had prepared."""
    BEHIND = "behind"
    """It shows fewer: it was put back, or rolled back since."""
    AHEAD = "ahead"
    """It shows rows that came after the cut."""


def refuse_fenced(place: str, before: SinkPosition | None, attempt: AttemptId) -> None:
    """Raise Fenced when a newer attempt, or one of another history, has taken the sink over."""
    if before is None or attempt.epoch > before.epoch:
        return
    is_another = bool(before.lineage and attempt.lineage) and before.lineage != attempt.lineage
    if attempt.epoch < before.epoch or is_another:
        raise Fenced(
            f"attempt {attempt.epoch} may not change {place}: attempt {before.epoch} has taken it over. "
            "Stop this run; the newer one publishes what is committed"
        )


def not_shown(before: SinkPosition | None, batches: Sequence[PreparedBatch]) -> tuple[PreparedBatch, ...]:
    """Return the batches that are behind the position."""
    through = before.through_batch if before is not None else None
    return tuple(batch for batch in batches if through is None or batch.batch_id > through)


def taken_over(before: SinkPosition | None, attempt: AttemptId, **changes: int | None) -> SinkPosition:
    """Return the position with another attempt at work, and ``changes``."""
    position = before or SinkPosition(lineage="", epoch=0)
    return replace(position, lineage=attempt.lineage, epoch=int(attempt.epoch), **changes)


def published_position(
    place: str,
    before: SinkPosition | None,
    attempt: AttemptId,
    checkpoint_id: int,
    batches: Sequence[PreparedBatch],
) -> SinkPosition:
    """Return the position once ``batches`` are published. Raises InvalidRequest for a checkpoint that is not newer."""
    newest = before.checkpoint_id if before is not None else None
    if newest is not None and checkpoint_id <= newest:
        raise InvalidRequest(
            f"{place} has seen checkpoint {newest}: batches {[batch.batch_id for batch in batches]} cannot be "
            f"published for the older checkpoint {checkpoint_id}; publish them for a newer one"
        )
    return _after(before, attempt, checkpoint_id, batches)


def lies(before: SinkPosition | None, cut: SinkCut | None, *, is_exact: bool = False) -> CutRelation:
    """Compare what a sink shows with a cut (None: no rows).

    ``is_exact``: rows may have left it, so a number between those of the cut may be of another line of checkpoints.
    """
    shown = before.head if before is not None else None
    if cut is None:
        return CutRelation.AT if shown is None else CutRelation.AHEAD
    head = cut.snapshot.head
    if head is not None and (shown is None or shown < head):
        return CutRelation.BEHIND
    if shown is None or shown in (head, cut.checkpoint_id):
        return CutRelation.AT
    is_past = is_exact or shown > max(cut.checkpoint_id, head or 0)
    return CutRelation.AHEAD if is_past else CutRelation.AT


def named(head: int | None) -> str:
    """Return the checkpoint whose rows a sink shows, in words."""
    return "no rows" if head is None else f"checkpoint {head}"


def why_behind(place: str, before: SinkPosition | None, cut: SinkCut | None) -> str:
    """Return the rows that are gone of a sink that shows less than the cut, in a sentence; empty: none."""
    if cut is None or lies(before, cut) is not CutRelation.BEHIND:
        return ""
    shown = named(None if before is None else before.head)
    return (
        f"{place} shows {shown}, and the rows up to checkpoint {cut.snapshot.head} are gone from it: it was emptied, "
        "put back to an older copy, or rolled back since. Bring it back, or restore an older checkpoint"
    )


def why_another_history(
    place: str, shown_by: Iterable[str], cut: SinkCut | None, attempt: AttemptId | None = None
) -> str:
    """Return that rows which a sink shows are not those of the snapshot, whose numbers they have; empty: they may be.

    ``shown_by``: histories that have had these rows, those that only took them over included; empty ones say nothing.
    """
    mine = set() if cut is None else {*cut.lineages, *((attempt.lineage,) if attempt is not None else ())}
    others = set(shown_by)
    if cut is None or not cut.lineages or not others or "" in others or others & mine:
        return ""
    return (
        f"{place} shows rows of another history ({min(others)}) than the snapshot: its checkpoints have the same "
        "numbers, and other rows. Give the place that belongs to the snapshot, or begin without state (restore_from: "
        "none); where it was always this place, the coordinator store or the checkpoint storage is another deployment's"
    )


def as_fork_began(origins: TableSnapshot, place: str) -> TableSnapshot:
    """Return the part that a fork's own table has of the snapshot of another pipeline which the fork began with."""
    has_rows = origins.head is not None or bool(origins.prepared)
    changes = {"uri": place, "head": SEED if has_rows else None, "prepared": (), "cannot_roll_back": ""}
    return origins.model_copy(update=changes)


def has_begun(sink: Sink) -> bool:
    """Tell whether a sink shows, or has shown, rows of the pipeline that asks."""
    position = sink.position()
    return position is not None and (position.head is not None or position.checkpoint_id is not None)


def refuse_where_impossible(
    sinks: Iterable[tuple[StageUid, Sink, SinkCut | None]],
    *,
    since: CheckpointId | None = None,
    left: Collection[StageUid] = (),
) -> None:
    """Raise InvalidRequest where a sink cannot show its cut; none has changed then.

    ``since``: checkpoint that is restored, where a sink without a cut is one that it does not know; ``left``: sinks of
    which it knows that they had rows before, whatever they have shown since.
    """
    found = {}
    for uid, sink, cut in sinks:
        older = "" if cut is not None or since is None else _why_unknown(sink, since, had_rows=uid in left)
        if why := older or sink.cannot_roll_back(cut):
            found[uid] = why
    if found:
        reasons = "; ".join(f"sink {uid}: {why}" for uid, why in found.items())
        raise InvalidRequest(
            f"{reasons}. Nothing was changed. Restore without taking back the rows of {_these(found)} (keep_rows_of: "
            f"[{', '.join(found)}]), or of any sink (roll_back_tables: false): rows after the restore point are then "
            "written again"
        )


def _these(found: Collection[str]) -> str:
    return "this sink" if len(found) == 1 else "these sinks"


def _why_unknown(sink: Sink, since: CheckpointId, *, had_rows: bool) -> str:
    """Return why rows must not leave a sink that a snapshot does not know; empty: all of them came after it."""
    shown = sink.position()
    if shown is None or shown.head is None or (shown.head > since and not had_rows):
        return ""
    return (
        f"{sink.place} shows rows up to checkpoint {shown.head}, some no newer than the restore point, and that does "
        "not know the sink: it was renamed, or left out for a while. Name its old uid in previous_uids, or "
        "another table (of a quarantine: another name, quarantine=...)"
    )


def missing_of_cut(before: SinkPosition | None, cut: SinkCut | None) -> tuple[PreparedBatch, ...]:
    """Return the batches that the cut had prepared and a sink that lies at it does not show."""
    if cut is None:
        return ()
    shown = before.head if before is not None else None
    return cut.batches if shown == cut.snapshot.head else not_shown(before, cut.batches)


def to_publish(
    before: SinkPosition | None, cut: SinkCut | None, *, is_exact: bool = False
) -> Sequence[PreparedBatch]:
    """Return the batches of the cut that a roll-back publishes, once later rows have left."""
    is_at = lies(before, cut, is_exact=is_exact) is CutRelation.AT
    return missing_of_cut(before, cut) if cut is None or is_at else cut.batches


def why_left(place: str, shown: int | None, cut: SinkCut) -> str:
    """Return that a sink which shows a checkpoint does not show the cut's rows, so later ones cannot stay on them."""
    return (
        f"{place} shows {named(shown)}, without the rows of {named(cut.snapshot.head)}: those left it, and cannot be "
        "kept. Restore without keeping its rows, which shows exactly those of the restore point, or fork that into a "
        "table of its own"
    )


def last_shown(batches: Iterable[PreparedBatch], is_shown: Callable[[PreparedBatch], bool]) -> int | None:
    """Return the last of a cut's batches up to which all are shown; None: the first one is not."""
    return max((batch.batch_id for batch in takewhile(is_shown, batches)), default=None)


def position_at_cut(
    before: SinkPosition | None, attempt: AttemptId, cut: SinkCut | None, batches: Sequence[PreparedBatch]
) -> SinkPosition:
    """Return the position of a sink that lay at the cut and has published ``batches`` of it."""
    if cut is None or not batches:
        return taken_over(before, attempt)
    return _after(before, attempt, cut.checkpoint_id, batches)


def _after(
    before: SinkPosition | None, attempt: AttemptId, checkpoint_id: int, batches: Sequence[PreparedBatch]
) -> SinkPosition:
    newest = before.checkpoint_id if before is not None else None
    return taken_over(
        before,
        attempt,
        checkpoint_id=max(checkpoint_id, newest or 0),
        head=checkpoint_id,
        through_batch=max(batch.batch_id for batch in batches),
    )


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
