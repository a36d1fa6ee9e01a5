"""Requests for checkpoints and savepoints: who asks, for what, and what the coordinator answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.location import SnapshotLocation
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata, Labeled, check_label
from dagster_ckpt.core.reasons import CheckpointFailureReason
from dagster_ckpt.errors import InvalidRequest


class RequestOrigin(StrEnum):
    """Origin of a request."""

    MANUAL = "manual"
    """A person, a schedule or the run itself: never evicted from the queue, not bound to the minimum pause."""
    PERIODIC = "periodic"
    """The periodic scheduler."""


class SnapshotScope(StrEnum):
    """Scope of a checkpoint's upload (Flink: CheckpointType of a manual trigger)."""

    CONFIGURED = "configured"
    """As ``incremental`` says."""
    FULL = "full"
    """Everything: it builds on no other checkpoint."""
    INCREMENTAL = "incremental"
    """Only what is new, even where ``incremental`` is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest(Labeled):
    """Request for a checkpoint or savepoint. Raises InvalidRequest for combinations that mean nothing."""

    kind: CheckpointKind = CheckpointKind.CHECKPOINT
    """CHECKPOINT, or one of the savepoint kinds; ask for a full checkpoint with ``scope``."""
    origin: RequestOrigin = RequestOrigin.MANUAL
    scope: SnapshotScope = SnapshotScope.CONFIGURED
    target: str = ""
    """URI of the folder a savepoint is written below; empty: ``savepoint_dir``."""
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    request_id: str = ""
    """Chosen by the client: the same id again is the same operation, and it can be asked for by that id."""

    def __post_init__(self) -> None:
        for name, kind in (("kind", CheckpointKind), ("origin", RequestOrigin), ("scope", SnapshotScope)):
            if not isinstance(getattr(self, name), kind):
                raise InvalidRequest(f"{name} must be one of {', '.join(kind)}, got {getattr(self, name)!r}")
        if self.kind.is_savepoint and self.origin is RequestOrigin.PERIODIC:
            raise InvalidRequest(
                "a savepoint is never periodic: request it as manual, or use a savepoint schedule"
            )
        check_label(self.name, self.labels, self.note)
        if self.target and not self.kind.is_savepoint:
            raise InvalidRequest(
                "only savepoints take a target: checkpoints are written to checkpoint storage"
            )

    @property
    def is_periodic(self) -> bool:
        """True for a request of the periodic scheduler."""
        return self.origin is RequestOrigin.PERIODIC


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
