"""Committables: what one micro-batch has staged, in files of a stage's directory that checkpoints take with them."""

from __future__ import annotations

import filecmp
import hashlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field, ValidationError

from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.core.json_text import first_problem
from dagster_ckpt.core.model import FileName, Record, RelativePath, SetAside
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import create_exclusively, link_or_copy, replace_by_link, replace_whole

_ASIDE = ".aside"
_AnyRecord = TypeVar("_AnyRecord", bound=Record)


class TableFile(Record):
    """A Parquet file of staged rows."""

    name: FileName
    staged: RelativePath
    """Where it was staged, relative to the sink's folder."""
    rows: int
    bytes: int
    checksum: str = ""
    """``xxh3_128:<hex>`` of its content; empty: written before this was kept."""


class StagedAs(Record):
    """Definition of the sink that a batch was staged for; compared before its rows are shown."""

    sink: str
    """Kind of the target, as snapshots have it."""
    key: tuple[str, ...] = ()
    """Key columns, sorted."""
    partition_by: tuple[str, ...] = ()
    """Columns whose values are the folders that the files lie in."""
    place: str = ""
    """Table that the rows are staged for; empty: written before this was kept."""


class PreparedBatch(Record):
    """A committable: what one micro-batch has staged."""

    format_version: Literal[1] = 1
    batch_id: int
    epoch: int
    lineage: str = ""
    """History of the attempt; empty: written before histories had an identity."""
    files: tuple[TableFile, ...]
    row_schema: str
    """Spark schema of the rows."""
    replaces: bool = False
    """Output mode *complete*: these rows are all there are, earlier ones go."""
    staged_as: StagedAs | None = None
    """None: written before this was kept."""


class AsideNote(SetAside):
    """``sink/prepared/<batch>.aside.json``: rows of a batch that its sink could not show."""

    format_version: Literal[1] = 1


def from_last_replacing(batches: Sequence[PreparedBatch]) -> tuple[Sequence[PreparedBatch], bool]:
    """Return the batches from the last one that replaces all rows, and whether there is one."""
    last = max((index for index, batch in enumerate(batches) if batch.replaces), default=None)
    return (batches, False) if last is None else (batches[last:], True)


def shown_files(batches: Sequence[PreparedBatch]) -> tuple[list[TableFile], bool]:
    """Return the files whose rows are there in the end, and whether they are all there is."""
    shown, replaces = from_last_replacing(batches)
    return [file for batch in shown for file in batch.files], replaces


def batches_with_rows(batches: Sequence[PreparedBatch]) -> tuple[PreparedBatch, ...]:
    """Return the batches by which a table changes: those with rows, and those that replace all rows."""
    return tuple(batch for batch in batches if batch.files or batch.replaces)


def prepared_folder(stage_dir: Path) -> Path:
    """Folder of a sink's prepared batches in its stage's working directory."""
    return StageDirectory(stage_dir).prepared


def prepared_batches(stage_dir: Path) -> list[int]:
    """Return the ids of the batches a stage has prepared, ascending; below 0: of rows that its table begins with."""
    names = {path.stem for path in prepared_folder(stage_dir).glob("*.json")}
    waiting = (name for name in names if f"{name}{_ASIDE}" not in names)
    return sorted(int(name) for name in waiting if name.removeprefix("-").isdecimal())


def batches_between(stage_dir: Path, after: int | None, through: BatchId | None) -> tuple[int, ...]:
    """Return the prepared batches behind ``after`` up to ``through`` (None: only what the table begins with)."""
    newest = -1 if through is None else through
    return tuple(
        batch for batch in prepared_batches(stage_dir) if batch <= newest and (after is None or batch > after)
    )


def is_prepared(stage_dir: Path, batch_id: int) -> bool:
    """Tell whether a batch was prepared before: its second try stages nothing."""
    return _path(stage_dir, batch_id).exists() or _aside(stage_dir, batch_id).exists()


def write_committable(stage_dir: Path, batch: PreparedBatch) -> None:
    """Write a committable once."""
    prepared_folder(stage_dir).mkdir(parents=True, exist_ok=True)
    create_exclusively(_path(stage_dir, batch.batch_id), encoded(batch))


def write_aside_note(stage_dir: Path, note: AsideNote) -> None:
    """Write down, once, that a batch's rows were set aside."""
    prepared_folder(stage_dir).mkdir(parents=True, exist_ok=True)
    create_exclusively(_aside(stage_dir, note.batch_id), encoded(note))


def aside_notes(stage_dir: Path) -> list[AsideNote]:
    """Return the notes of batches set aside in a stage's directory. Raises Corrupt."""
    paths = prepared_folder(stage_dir).glob(f"*{_ASIDE}.json")
    notes = (read_record(AsideNote, path) for path in paths)
    return sorted((note for note in notes if note is not None), key=lambda note: note.batch_id)


def read_committables(stage_dir: Path, batches: Sequence[int]) -> list[PreparedBatch]:
    """Return the named prepared batches in order. Raises Corrupt when one is missing or damaged."""
    return [_committable(_path(stage_dir, batch)) for batch in batches]


def committable_paths(stage_dir: Path, batches: Sequence[int]) -> list[Path]:
    """Return the files of these committables."""
    return [_path(stage_dir, batch) for batch in batches]


def _path(stage_dir: Path, batch_id: int) -> Path:
    return prepared_folder(stage_dir) / f"{batch_id}.json"


def _aside(stage_dir: Path, batch_id: int) -> Path:
    return prepared_folder(stage_dir) / f"{batch_id}{_ASIDE}.json"


def _committable(path: Path) -> PreparedBatch:
    batch = read_record(PreparedBatch, path)
    if batch is None:
        raise Corrupt(f"{path} is missing: the sink cannot publish this batch; restore another checkpoint")
    if str(batch.batch_id) != path.stem:
        raise Corrupt(
            f"{path} is the committable of batch {batch.batch_id}: it is not the file that was written there; restore "
            "another checkpoint"
        )
    return batch


def read_record(kind: type[_AnyRecord], path: Path) -> _AnyRecord | None:
    """Return the record in ``path``, or None when there is no such file. Raises Corrupt when it is not
    understood.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        raise Corrupt(
            f"{path} is damaged or of a newer version ({first_problem(error)}): restore the file, or restore into a "
            "new table"
        ) from error


def encoded(record: Record) -> bytes:
    """Return a record as it is written."""
    return record.model_dump_json().encode()


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
