"""Positions of a stage in its inputs, by channel, and the release that says where its next micro-batch may end.

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
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from dagster_ckpt.core.ids import BatchId, CheckpointId, LogPosition, StageUid
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.channel.entries import BarrierEntry, CancelEntry, DataEntry, EndEntry, Entry
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import classified, replace_whole
from dagster_ckpt.spark.snapshot.capture import latest_committed_batch, read_offsets

if TYPE_CHECKING:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline

Which = Callable[[LogPosition, LogPosition], LogPosition]


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """The newest committed batch and where its inputs stand after it."""

    batch: BatchId | None
    positions: Mapping[StageUid, LogPosition]


class CommittedBatches:
    """Follows the commit log of one query; a look costs one stat call unless something was committed."""

    def __init__(
        self,
        query_dir: Path,
        *,
        inputs: Mapping[str, StageUid],
        starts: Mapping[StageUid, LogPosition],
    ) -> None:
        """``inputs``: channel name in an offset -> upstream stage. ``starts``: positions before any batch."""
        self._query_dir = query_dir
        self._inputs = inputs
        self._starts = dict(starts)
        newest = latest_committed_batch(query_dir)
        self._current = CommittedBatch(newest, self.positions_at(newest))
        self._before = self._current.positions

    @property
    def current(self) -> CommittedBatch:
        """Positions seen last."""
        return self._current

    @property
    def before(self) -> Mapping[StageUid, LogPosition]:
        """Positions one look earlier than ``current``: a query that is started again may look back so far."""
        return self._before

    def look(self) -> CommittedBatch:
        """Return the newest committed batch. Raises InvalidRequest when the query does not read an input."""
        newest = self._current.batch
        number = -1 if newest is None else int(newest)
        if newest is None:
            found = latest_committed_batch(self._query_dir)
            number = -1 if found is None else int(found)
        while self.is_committed(BatchId(number + 1)):
            number += 1
        if number >= 0 and number != newest:
            self._before = self._current.positions
            self._current = CommittedBatch(BatchId(number), self.positions_at(BatchId(number)))
        return self._current

    def is_committed(self, batch: BatchId) -> bool:
        """True when Spark has committed the batch."""
        return os.path.exists(f"{self._query_dir}/commits/{batch}")

    def is_kept(self, batch: BatchId) -> bool:
        """True while Spark keeps the notes that a restart behind the batch needs."""
        needed = (batch, batch - 1) if batch else (batch,)
        return all(os.path.exists(f"{self._query_dir}/offsets/{number}") for number in needed)

    def positions_back(self, batches: int) -> dict[StageUid, LogPosition]:
        """Return where the inputs stood so many batches ago, or after the oldest batch since that Spark still knows."""
        newest = self._current.batch
        if newest is None or newest < batches:
            return dict(self._starts)
        for number in range(newest - batches, newest):
            if os.path.exists(f"{self._query_dir}/offsets/{number}"):
                return self.positions_at(BatchId(number))
        return dict(self._current.positions)

    def positions_at(self, batch: BatchId | None) -> dict[StageUid, LogPosition]:
        """Return where the inputs stand after a committed batch. Raises NotFound, InvalidRequest."""
        return self._positions(batch, min)

    def furthest_at(self, batch: BatchId | None) -> dict[StageUid, LogPosition]:
        """Return the same, but of an input that the query reads twice (a self-join) how far the faster one has come."""
        return self._positions(batch, max)

    def _positions(self, batch: BatchId | None, which: Which) -> dict[StageUid, LogPosition]:
        if batch is None:
            return dict(self._starts)
        found = channel_positions(read_offsets(self._query_dir, batch), self._inputs, which)
        unread = sorted(set(self._starts) - set(found))
        if unread:
            raise InvalidRequest(
                f"the query in {self._query_dir} does not read its input {unread[0]!r}: use every input of a "
                "stage in the DataFrame it returns, or leave it out of the stage's parameters"
            )
        return found


def names_of_inputs(pipeline: CheckpointedPipeline, uid: StageUid) -> dict[str, StageUid]:
    """Return which input a channel name in an offset means; a renamed stage is known by its earlier names."""
    names: dict[str, StageUid] = {}
    for upstream in pipeline.upstream[uid]:
        names |= {str(earlier): upstream for earlier in pipeline.stages[upstream].previous_uids}
        names[str(upstream)] = upstream
    return names


def channel_positions(
    offsets: Mapping[str, str], inputs: Mapping[str, StageUid], which: Which = min
) -> dict[StageUid, LogPosition]:
    """Return one position per channel among a batch's offsets; offsets of other sources are left out.

    A channel that is read twice (a self-join) has two offsets: ``which`` chooses, by default the least.
    """
    found: dict[StageUid, LogPosition] = {}
    for text in offsets.values():
        value = parsed_position(text)
        uid = inputs.get(str(value.get("channel")))
        at = value.get("pos")
        if uid is None or not isinstance(at, int):
            continue
        position = LogPosition(at)
        found[uid] = which(position, found.get(uid, position))
    return found


def with_positions(
    offset_lines: list[str], inputs: Mapping[str, StageUid], positions: Mapping[StageUid, LogPosition]
) -> list[str]:
    """Return the lines of an ``offsets/<N>`` file with other positions for some channels."""
    return [_moved(line, inputs, positions) for line in offset_lines]


def _moved(line: str, inputs: Mapping[str, StageUid], positions: Mapping[StageUid, LogPosition]) -> str:
    name, separator, text = line.partition(":") if not line.startswith("{") else ("", "", line)
    value = parsed_position(text)
    uid = inputs.get(str(value.get("channel")))
    if uid is None or uid not in positions or "pos" not in value:
        return line
    moved = json.dumps({**value, "pos": positions[uid]})
    return f"{name}{separator}{moved}"


def parsed_position(text: str) -> dict[str, Any]:
    """Return a position that is a JSON object; empty: it is none."""
    try:
        value = parse_json(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


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
