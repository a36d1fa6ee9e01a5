"""Positions of a stage in its inputs: the offsets of its newest committed micro-batch, by channel."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.ids import BatchId, LogPosition, StageUid
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import InvalidRequest
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
