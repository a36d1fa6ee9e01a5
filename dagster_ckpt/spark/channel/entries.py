"""The entries of a channel log, their JSON form, and the release by which readers pass the barriers among them.

Standard library only: every Python worker that reads a channel imports this module, and pydantic would cost
it a tenth of a second. What is read is checked strictly all the same: an unknown kind or field is refused.

The rules of the release, in order: never past a barrier that the reading stage has not released; at least one entry
with rows, so that a limit can never stop the stream; and nothing at all when no row lies ahead, so that Spark runs no
empty batch. A reader with no row before a barrier has arrived at it without moving, wherever it stands
(``InputChannel.arrived``).

Two readers move over what has no rows for its own sake: one whose query ends with what is there goes onto a held
barrier, because the next query begins where this one stood; and one with ``MIN_EMPTY_ENTRIES_PER_BATCH`` such entries
ahead passes them, because the log must keep what a reader has not passed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, assert_never

from dagster_ckpt.core.ids import BatchId, CheckpointId, LogPosition, relative_path
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import DataFile, classified, replace_whole

if TYPE_CHECKING:
    from dagster_ckpt.core.messages import BarrierOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class DataEntry:
    """The output of one micro-batch; ``files`` is empty when the batch produced no rows."""

    batch_id: BatchId
    files: tuple[DataFile, ...]
    """Named relative to the log's folder."""

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierEntry:
    """CheckpointBarrier: everything before it belongs to the checkpoint, everything behind it does not."""

    checkpoint_id: CheckpointId
    batch_id: BatchId | None
    """The last batch before it; None when the stage had produced none."""
    timestamp: float
    """When the checkpoint was triggered, in seconds since the Unix epoch."""
    options_json: str = "{}"
    """``BarrierOptions`` as JSON, decoded on demand by ``options``."""

    @property
    def options(self) -> BarrierOptions:
        """Options that travel with the barrier. Raises Corrupt when they are not understood."""
        return _decoded_options(self.options_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelEntry:
    """The stage could not take its part of the checkpoint: nobody need wait for its barrier."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class EndEntry:
    """The stage's input was bounded and is processed: no data follows (barriers may, for the final
    checkpoint).

    Nothing writes it; the format has it, so a log that holds one is read and its end respected.
    """


Entry: TypeAlias = DataEntry | BarrierEntry | CancelEntry | EndEntry


@dataclass(frozen=True, slots=True)
class Appended:
    """This call created the entry at ``position``."""

    position: LogPosition


@dataclass(frozen=True, slots=True)
class AlreadyAppended:
    """The log held the entry before; nothing was written. ``position`` is None where it is truncated away."""

    position: LogPosition | None


@dataclass(frozen=True, slots=True)
class Outdated:
    """The barrier comes too late: the log has gone on to checkpoint ``newest``, or canceled this one.
    Nothing was written.
    """

    newest: CheckpointId


AppendResult = Appended | AlreadyAppended


def encode(entry: Entry) -> bytes:
    """Return the JSON text of an entry."""
    return json.dumps(_document(entry), separators=(",", ":")).encode()


def decode(content: bytes, name: str) -> Entry:
    """Return the entry in ``content``; raises Corrupt, naming the file, when it is not one this version
    understands.
    """
    try:
        return _entry(parse_json(content))
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise Corrupt(
            f"{name} is not an entry of a channel log ({type(error).__name__}: {str(error)[:200]}): "
            "restore the pipeline from its latest checkpoint"
        ) from error


def encode_options(options: BarrierOptions) -> str:
    """Return ``options`` as the JSON text that a BarrierEntry carries."""
    return json.dumps(asdict(options), separators=(",", ":"))


def _document(entry: Entry) -> dict[str, Any]:
    match entry:
        case DataEntry():
            files = [[file.name, file.rows, file.bytes] for file in entry.files]
            return {"kind": "data", "batch_id": entry.batch_id, "files": files}
        case BarrierEntry():
            return {"kind": "barrier", **asdict(entry)}
        case CancelEntry():
            return {"kind": "cancel", "checkpoint_id": entry.checkpoint_id}
        case EndEntry():
            return {"kind": "end"}
        case _:
            assert_never(entry)


_WHOLE_NUMBERS = frozenset({"batch_id", "checkpoint_id"})


def _entry(document: dict[str, Any]) -> Entry:
    fields = dict(document)
    for name in _WHOLE_NUMBERS & fields.keys():
        if not isinstance(fields[name], int | None):
            raise ValueError(f"its {name} is no number")
    match fields.pop("kind"):
        case "data":
            return DataEntry(files=tuple(_file(*file) for file in fields.pop("files")), **fields)
        case "barrier":
            return BarrierEntry(**fields)
        case "cancel":
            return CancelEntry(**fields)
        case "end":
            return EndEntry(**fields)
        case other:
            raise ValueError(f"unknown kind {other!r}")


def _file(name: str, rows: int, size: int) -> DataFile:
    return DataFile(relative_path(name), int(rows), int(size))


def _decoded_options(text: str) -> BarrierOptions:
    from dagster_ckpt.core.messages import Alignment, BarrierOptions
    from dagster_ckpt.core.model import CheckpointKind

    try:
        fields = parse_json(text)
        if "kind" in fields:
            fields["kind"] = CheckpointKind(fields["kind"])
        if "alignment" in fields:
            fields["alignment"] = Alignment(fields["alignment"])
        return BarrierOptions(**fields)
    except (ValueError, TypeError) as error:
        raise Corrupt(
            f"a barrier carries options that this version does not understand: {str(error)[:200]}"
        ) from error


MIN_EMPTY_ENTRIES_PER_BATCH = 100

"""Entries without rows that a reader leaves unread before it spends an empty batch on them."""


@dataclass(frozen=True, slots=True)
class ReleasedThrough:
    """Barriers up to and including ``checkpoint_id`` are passed, the next one holds (0: all hold)."""

    checkpoint_id: int = 0


@dataclass(frozen=True, slots=True)
class HoldNothing:
    """No barrier ever holds: at-least-once, or nobody takes checkpoints."""


Released = ReleasedThrough | HoldNothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Limit of one micro-batch; None: no limit. One entry is always taken whole."""

    entries: int | None = None
    rows: int | None = None


def holds(released: Released, checkpoint_id: CheckpointId) -> bool:
    """Tell whether a reader stops at the barrier of ``checkpoint_id``."""
    match released:
        case ReleasedThrough(through):
            return checkpoint_id > through
        case HoldNothing():
            return False
        case _:
            assert_never(released)


def next_end(
    start: LogPosition,
    ahead: Iterable[tuple[LogPosition, Entry]],
    *,
    released: Released,
    limit: Limit,
    onto_barrier: bool = False,
) -> LogPosition:
    """Return where a batch that begins at ``start`` ends; ``start`` itself when there is nothing to do.

    ``ahead`` are the entries from ``start`` on, in order; only as many are read as the decision needs.
    ``onto_barrier``: go onto a held barrier also when no row lies before it.
    """
    end = reached = start
    entries = rows = 0
    for position, entry in ahead:
        match entry:
            case BarrierEntry():
                if holds(released, entry.checkpoint_id):
                    reached = position
                    end = position if entries or onto_barrier else end
                    break
            case DataEntry():
                if entry.files:
                    if entries and _over(limit, entries + 1, rows + entry.rows):
                        return end
                    entries, rows, end = entries + 1, rows + entry.rows, LogPosition(position + 1)
            case CancelEntry() | EndEntry():
                pass
            case _:
                assert_never(entry)
        reached = LogPosition(position + 1)
    return reached if not entries and reached - start >= MIN_EMPTY_ENTRIES_PER_BATCH else end


def _over(limit: Limit, entries: int, rows: int) -> bool:
    return (limit.entries is not None and entries > limit.entries) or (
        limit.rows is not None and rows > limit.rows
    )


_one_writer = threading.Lock()

"""Stage and coordinator threads of one process may release at once; a stage lives in one process."""


class Release:
    """``<stage>/released``: written by the stage runner, read before every batch by the readers of its
    inputs.
    """

    __slots__ = ("_path",)

    def __init__(self, stage_dir: str | Path) -> None:
        self._path = StageDirectory(Path(stage_dir)).released

    @classmethod
    def at(cls, file: str | Path) -> Release:
        """Return the release whose file is ``file``; raises InvalidRequest for any other file name."""
        path = Path(file)
        release = cls(path.parent)
        if path.name != release.path.name:
            raise InvalidRequest(f"a release file is named {release.path.name!r}, got {path}")
        return release

    @property
    def path(self) -> Path:
        """The file, for the data source's ``release`` option."""
        return self._path

    def read(self) -> Released:
        """Return the barriers that are released: none, when there is no file. Raises Corrupt when it is damaged."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return ReleasedThrough()
        try:
            through = parse_json(content)["through"]
            return HoldNothing() if through == "all" else ReleasedThrough(CheckpointId(int(through)))
        except (ValueError, LookupError, TypeError, OverflowError) as error:
            raise Corrupt(
                f"{self._path} is damaged: {error}. Restart the pipeline: it is written again"
            ) from error

    def through(self, checkpoint_id: CheckpointId) -> None:
        """Let readers pass all barriers up to and including ``checkpoint_id``; never takes a release back."""
        with _one_writer:
            current = self.read()
            if isinstance(current, ReleasedThrough) and checkpoint_id > current.checkpoint_id:
                self._write({"through": int(checkpoint_id)})

    def reset(self, checkpoint_id: CheckpointId) -> None:
        """State what an attempt begins with, also where an earlier one released more; no reader may run."""
        with _one_writer:
            self._write({"through": int(checkpoint_id)})

    def everything(self) -> None:
        """Let readers pass every barrier, also those to come (at-least-once)."""
        with _one_writer:
            self._write({"through": "all"})

    def _write(self, document: dict[str, int | str]) -> None:
        with classified(f"letting readers pass a barrier ({self._path})"):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_whole(self._path, json.dumps(document).encode(), durably=False)
