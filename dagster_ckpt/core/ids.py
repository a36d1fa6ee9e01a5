"""Names that mean something, and names that somebody else may have written.

Newtypes of every identifier with the checks that make one; and paths and names read from a file. A savepoint may come
from anywhere, and whatever it names is joined to a folder of ours: so this is checked where a record is read, and
nowhere later. Standard library only: Python workers read channel entries.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NewType

from dagster_ckpt.errors import InvalidRequest

PipelineId = NewType("PipelineId", str)
"""Name of a checkpointed pipeline (Flink's job)."""

StageUid = NewType("StageUid", str)
"""Stable identity of a stage (Flink's operator uid): state is matched to stages by it."""

CheckpointId = NewType("CheckpointId", int)
"""Number of a checkpoint or savepoint: starts at 1, never reused, gaps are normal."""

CoordinatorEpoch = NewType("CoordinatorEpoch", int)
"""Which attempt (Dagster run) is entitled to write: starts at 1; a smaller one is fenced."""

BatchId = NewType("BatchId", int)
"""Spark's micro-batch number within one streaming query: starts at 0."""

LogPosition = NewType("LogPosition", int)
"""Index of an entry in a channel log: starts at 0, or at the base of a restored log."""

LARGEST_NUMBER = 2**53 - 1
"""Highest number of a checkpoint or an attempt: databases, JSON and Dagster keep it as it is."""

LONGEST_NAME = 100
"""Letters that a pipeline's or a stage's name may have."""

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{LONGEST_NAME - 1}}}")


@dataclass(frozen=True, slots=True)
class OfCheckpoint:
    """Event or order that says no more than which checkpoint it is about."""

    checkpoint_id: CheckpointId


def _checked(kind: str, text: str) -> str:
    if not _NAME.fullmatch(text) or text.endswith("."):
        raise InvalidRequest(
            f"{_shown(text)} is not a valid {kind}: use 1 to {LONGEST_NAME} letters, digits, '_', '-' or '.', "
            "beginning with a letter or a digit and not ending with '.'"
        )
    return text


def pipeline_id(text: str) -> PipelineId:
    """Return ``text`` as a PipelineId. Raises InvalidRequest where it could not name a folder."""
    return PipelineId(_checked("pipeline name", text))


def stage_uid(text: str) -> StageUid:
    """Return ``text`` as a StageUid. Raises InvalidRequest where it could not name a folder."""
    if text == "shared":
        raise InvalidRequest("'shared' is reserved in the storage layout: give the stage another uid")
    return StageUid(_checked("stage uid", text))


def hook_id(text: str) -> str:
    """Return ``text`` as the id of a hook. Raises InvalidRequest for one that is not a plain name."""
    return _checked("hook id", text)


def checkpoint_id(number: int) -> CheckpointId:
    """Return ``number`` as a CheckpointId. Raises InvalidRequest below 1."""
    if number < 1:
        raise InvalidRequest(f"checkpoint ids start at 1, got {number}")
    return CheckpointId(number)


def leaves_room(number: int) -> bool:
    """Tell whether a pipeline that goes on behind a number from elsewhere can count on for as long as it lives.

    Its author may have chosen it: behind the largest there is no next checkpoint, and no way back.
    """
    return number <= LARGEST_NUMBER // 2


@dataclass(frozen=True, slots=True, order=True)
class ExecutionAttempt:
    """Identity of one try of one subtask: what an acknowledgement is matched against.

    An acknowledgement by an older try of the same subtask is UNKNOWN (Flink: PendingCheckpoint).
    """

    stage: StageUid
    subtask: int = 0
    epoch: CoordinatorEpoch = CoordinatorEpoch(1)
    number: int = 0


_DRIVE = re.compile(r"[A-Za-z]:")


def relative_path(text: str) -> str:
    """Return a '/'-separated path that stays below the folder it is joined to. Raises ValueError for any other."""
    wrong = not isinstance(text, str) or "\\" in text or "\0" in text or _DRIVE.match(text) is not None
    if wrong or any(part in ("", ".", "..") for part in text.split("/")):
        raise ValueError(f"{_shown(text)} is no path below its folder")
    return text


def file_name(text: str) -> str:
    """Return the name of a file or folder: one part of a path. Raises ValueError for anything else."""
    if "/" in relative_path(text):
        raise ValueError(f"{_shown(text)} is no plain name")
    return text


def _shown(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= 200 else f"{shown[:200]}…"
