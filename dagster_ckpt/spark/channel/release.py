"""Release: which barriers the readers of a stage's inputs may pass, and where their next micro-batch ends.

The rules, in order: never past a barrier that the reading stage has not released; at least one entry with rows,
so that a limit can never stop the stream; and nothing at all when no row lies ahead, so that Spark runs no empty batch.
A reader with no row before a barrier has arrived at it without moving, wherever it stands (``InputChannel.arrived``).

Two readers move over what has no rows for its own sake: one whose query ends with what is there goes onto a held
barrier, because the next query begins where this one stood; and one with ``MIN_EMPTY_ENTRIES_PER_BATCH`` such entries
ahead passes them, because the log must keep what a reader has not passed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from dagster_ckpt.core.ids import CheckpointId, LogPosition
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.channel.entries import BarrierEntry, CancelEntry, DataEntry, EndEntry, Entry
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import classified, replace_whole

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
