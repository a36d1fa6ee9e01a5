"""The entries of a channel log and their JSON form.

Standard library only: every Python worker that reads a channel imports this module, and pydantic would cost
it a tenth of a second. What is read is checked strictly all the same: an unknown kind or field is refused.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, assert_never

from dagster_ckpt.core.ids import BatchId, CheckpointId, LogPosition, relative_path
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.spark.files import DataFile

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
