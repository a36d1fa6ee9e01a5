"""Micro-batch that each publish of a staged sink ended with: a restore that keeps later rows goes on behind it.

A small file in the sink's folder, a help and not the truth: without it rows that were kept are published again from
the restored stage's first batch on, which are the same ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from dagster_ckpt.core.model import Record
from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.spark.sink.committables import encoded, read_record

THROUGH = "through.json"
"""In the sink's folder."""


class ThroughBatches(Record):
    """``through.json``."""

    format_version: Literal[1] = 1
    publishes: dict[int, int] = Field(default_factory=dict)
    """Checkpoint -> last micro-batch that it made visible."""


def note_through(folder: Path, checkpoint_id: int, batch_id: int) -> None:
    """Write down a publish before it is made."""
    _write(folder, _read(folder).publishes | {checkpoint_id: batch_id})


def through_at(folder: Path, checkpoint_id: int | None) -> int | None:
    """Return the last batch of a publish; None: not known."""
    return None if checkpoint_id is None else _read(folder).publishes.get(checkpoint_id)


def forget_before(folder: Path, checkpoint_id: int) -> None:
    """Remove the publishes before this one."""
    publishes = _read(folder).publishes
    kept = {number: batch for number, batch in publishes.items() if number >= checkpoint_id}
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


def _write(folder: Path, publishes: dict[int, int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    replace_whole(folder / THROUGH, encoded(ThroughBatches(publishes=publishes)), durably=False)
