"""Small files of a stage's directory, one for each micro-batch; of them the counts of rows by condition.

A restored directory has one, ``restored.json``: whatever the next batches are numbered, it lies before them.

Objects that are stages' own have their states kept so, in ``own/<batch>.json``, by stage uid.

Counts are running totals. A checkpoint takes the totals at its cut with it, so what a restore takes back is taken
back of them too; and it tells what came since the last completed one.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field, ValidationError

from dagster_ckpt.authoring.stage_settings import StageParticipant
from dagster_ckpt.core.checkpoint.tables import LATE
from dagster_ckpt.core.ids import BatchId, CheckpointId
from dagster_ckpt.core.model import FileKind, Record
from dagster_ckpt.core.units import counted
from dagster_ckpt.errors import Corrupt, Declined
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


COUNTS = "rows"
_RESTORED = f"{COUNTS}/{RESTORED}"
_LATE = "late.json"


class RowCounts(Record):
    """``rows/<batch>.json``: totals through a batch; with ``since``, of one checkpoint."""

    model_config = ConfigDict(extra="ignore")  # limits, which lay here once

    format_version: Literal[1] = 1
    rows: int = 0
    """Rows that were judged."""
    refused: int = 0
    """Those that broke a condition, one or several."""
    broken: dict[str, int] = Field(default_factory=dict)
    """By condition: rows that broke it."""
    late: int = 0
    """Rows that watermarks dropped, as far as Spark's progress has told."""
    late_kept: int = 0
    """Late rows that are in the quarantine."""
    read: int = 0
    """Rows that came to a stage that keeps late ones: those are a share of them."""
    requeued: int = 0
    """Rows of the quarantine that were judged again."""
    orders: tuple[str, ...] = ()
    """Orders to requeue that were taken, as long as the record has them."""
    requeued_in: int | None = None
    """Newest batch that took some: only a table that shows it tells which rows are left."""
    bad_in: int | None = None
    """Newest batch with a row that broke a condition."""

    def plus(self, rows: int, refused: int, broken: Mapping[str, int]) -> RowCounts:
        """Return the totals with a batch more."""
        names = self.broken.keys() | broken.keys()
        return self.model_copy(
            update={
                "rows": self.rows + rows,
                "refused": self.refused + refused,
                "broken": {one: self.broken.get(one, 0) + broken.get(one, 0) for one in sorted(names)},
            }
        )

    def minus(self, before: RowCounts) -> RowCounts:
        """Return the counts behind earlier totals; conditions of which nothing came are 0."""
        return self.model_copy(
            update={
                "rows": self.rows - before.rows,
                "refused": self.refused - before.refused,
                "late": self.late - before.late,
                "late_kept": self.late_kept - before.late_kept,
                "read": self.read - before.read,
                "requeued": self.requeued - before.requeued,
                "broken": {one: n - before.broken.get(one, 0) for one, n in self.broken.items()},
            }
        )


def is_beyond(at_most: str, number: int, *, of: int) -> bool:
    """Tell whether more rows broke a condition than may: ``at_most`` is a number, or a share (``1 %``); empty: any."""
    if not at_most:
        return False
    most, _, share = at_most.partition(" ")
    return number * 100 > Fraction(most) * of if share else number > int(most)


def total_through(directory: StageDirectory, batch: BatchId | None) -> RowCounts:
    """Return the totals at the newest batch up to this one; zeros: nothing was judged yet."""
    path = through_batch(directory.root / COUNTS, batch)
    return (None if path is None else _read(path)) or RowCounts()


def note(directory: StageDirectory, batch: BatchId, totals: RowCounts) -> None:
    """Write down the totals through a batch, before its rows are in the channel log."""
    note_batch(directory.root / COUNTS, batch, totals.model_dump_json().encode())


def note_late(directory: StageDirectory, rows: int) -> None:
    """Add rows that watermarks have dropped, as Spark tells behind a batch."""
    if rows:
        folder = directory.root / COUNTS
        folder.mkdir(exist_ok=True)
        total = RowCounts(late=_late(directory) + rows)
        replace_whole(folder / _LATE, total.model_dump_json().encode(), durably=False)


def _late(directory: StageDirectory) -> int:
    found = _read(directory.root / COUNTS / _LATE) or _read(directory.root / _RESTORED)
    return 0 if found is None else found.late


def captured(directory: StageDirectory, checkpoint: CheckpointId) -> tuple[PlannedFile, ...]:
    """Return the file that holds a cut's totals, once they are noted; none where there is nothing to tell."""
    path = _of_checkpoint(directory, checkpoint)
    if not path.exists():
        return ()
    size = path.stat().st_size
    return (PlannedFile(path=_RESTORED, size=size, kind=FileKind.QUERY, source=str(path)),)


def noted_at(directory: StageDirectory, checkpoint: CheckpointId, batch: BatchId | None) -> RowCounts | None:
    """Write down the totals at a checkpoint's cut, for the next one, and return them; None: nothing to tell."""
    if not (directory.root / COUNTS).is_dir():
        return None
    totals = total_through(directory, batch).model_copy(update={"late": _late(directory)})
    replace_whole(_of_checkpoint(directory, checkpoint), totals.model_dump_json().encode(), durably=False)
    return totals


def since(directory: StageDirectory, totals: RowCounts, completed: CheckpointId | None) -> RowCounts:
    """Return the counts since the last completed checkpoint, or since the restored one."""
    before = None if completed is None else _read(_of_checkpoint(directory, completed))
    before = before or _read(directory.root / _RESTORED)
    folder = directory.root / COUNTS
    older = (path for path in folder.glob("at-*.json") if completed and int(path.stem[3:]) < completed - KEPT)
    remove_files(list(older))
    return totals if before is None else totals.minus(before)


def refuse_beyond(uid: str, counts: RowCounts, asked: StageParticipant) -> None:
    """Raise Declined where more rows broke a condition than a checkpoint may have, as its stage says it today."""
    of = {one: counts.read if one == LATE else counts.rows for one in asked.judges if one in counts.broken}
    beyond = {one: n for one, n in of.items() if is_beyond(asked.limit, counts.broken[one], of=n)}
    if asked.fails and beyond:
        worst = max(beyond, key=lambda one: counts.broken[one])
        raise Declined(
            f"stage {uid!r}: {worst!r} does not hold for {counts.broken[worst]:,} of {counted(of[worst], 'row')}, and "
            f"at_most allows {asked.limit}: raise it, or restore a checkpoint from before them and mend the rows"
        )


def _read(path: Path) -> RowCounts | None:
    try:
        return RowCounts.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise Corrupt(f"{path} is damaged: restore the pipeline from its latest checkpoint") from error


def _of_checkpoint(directory: StageDirectory, checkpoint: CheckpointId) -> Path:
    return directory.root / COUNTS / f"at-{checkpoint}.json"
