"""The entries of a channel log and their JSON form.

Standard library only: every Python worker that reads a channel imports this module, and pydantic would cost
it a tenth of a second. What is read is checked strictly all the same: an unknown kind or field is refused.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, assert_never

from dagster_ckpt.core.ids import BatchId, CheckpointId, LogPosition
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.spark.staged_files import DataFile

if TYPE_CHECKING:
    from dagster_ckpt.core.messages import BarrierOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
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
class Barrier:
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
        """What travels with the barrier. Raises Corrupt when it is not understood."""
        return _decoded_options(self.options_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """The stage could not take its part of the checkpoint: nobody need wait for its barrier."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class End:
    """The stage's input was bounded and is processed: no data follows (barriers may, for the final
    checkpoint).
    """


Entry: TypeAlias = Data | Barrier | Cancel | End


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
    """The barrier comes too late: the log has gone on to checkpoint ``newest``, or cancelled this one.
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
        return _entry(json.loads(content))
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"{name} is not an entry of a channel log ({type(error).__name__}: {error}): "
            "restore the pipeline from its latest checkpoint"
        ) from error


def encode_options(options: BarrierOptions) -> str:
    """Return ``options`` as the JSON text that a Barrier carries."""
    return json.dumps(asdict(options), separators=(",", ":"))


def _document(entry: Entry) -> dict[str, Any]:
    match entry:
        case Data():
            files = [[file.name, file.rows, file.bytes] for file in entry.files]
            return {"kind": "data", "batch_id": entry.batch_id, "files": files}
        case Barrier():
            return {"kind": "barrier", **asdict(entry)}
        case Cancel():
            return {"kind": "cancel", "checkpoint_id": entry.checkpoint_id}
        case End():
            return {"kind": "end"}
        case _:
            assert_never(entry)


def _entry(document: dict[str, Any]) -> Entry:
    fields = dict(document)
    match fields.pop("kind"):
        case "data":
            return Data(files=tuple(DataFile(*file) for file in fields.pop("files")), **fields)
        case "barrier":
            return Barrier(**fields)
        case "cancel":
            return Cancel(**fields)
        case "end":
            return End(**fields)
        case other:
            raise ValueError(f"unknown kind {other!r}")


def _decoded_options(text: str) -> BarrierOptions:
    from dagster_ckpt.core.messages import Alignment, BarrierOptions
    from dagster_ckpt.core.model import CheckpointKind

    try:
        fields = json.loads(text)
        if "kind" in fields:
            fields["kind"] = CheckpointKind(fields["kind"])
        if "alignment" in fields:
            fields["alignment"] = Alignment(fields["alignment"])
        return BarrierOptions(**fields)
    except (ValueError, TypeError) as error:
        raise Corrupt(f"a barrier carries options that this version does not understand: {error}") from error
