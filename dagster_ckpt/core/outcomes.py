"""Answers of the coordinator to its users."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.location import SnapshotLocation
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.reasons import CheckpointFailureReason
from dagster_ckpt.core.request import CheckpointRequest

# --- trigger -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Triggered:
    """The checkpoint is pending: ask for it with ``status_of``."""

    id: CheckpointId


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits for its turn; listeners hear when it is triggered or rejected."""

    request: CheckpointRequest
    number: int
    """Identity of the request in this process."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """There will be no checkpoint for this request."""

    reason: CheckpointFailureReason
    message: str


TriggerOutcome = Triggered | Queued | Rejected

# --- status ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pending:
    """Pending; ``outstanding`` stages have not acknowledged."""

    outstanding: tuple[StageUid, ...]


@dataclass(frozen=True, slots=True)
class Completed:
    """Complete and restorable."""

    metadata: CheckpointMetadata
    location: SnapshotLocation


@dataclass(frozen=True, slots=True)
class Failed:
    """Over without completing; its files are removed."""

    reason: CheckpointFailureReason
    message: str


CheckpointOutcome = Pending | Completed | Failed
