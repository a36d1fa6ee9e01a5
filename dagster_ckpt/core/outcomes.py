"""What the coordinator answers its users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata, StageSnapshot
from dagster_ckpt.core.reasons import CheckpointFailureReason
from dagster_ckpt.core.requests import CheckpointRequest
from dagster_ckpt.ports import CheckpointStorage

# --- trigger -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Triggered:
    """The checkpoint is underway: ask for it with ``status_of``."""

    id: CheckpointId


@dataclass(frozen=True, slots=True)
class Queued:
    """It waits for its turn; listeners hear when it is triggered or rejected."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLocation:
    """Where a checkpoint's files go, and what it may reuse."""

    checkpoint_id: CheckpointId
    kind: CheckpointKind
    storage: CheckpointStorage
    folder: str
    """Key of its folder in ``storage``."""
    previous: Mapping[StageUid, StageSnapshot] = field(default_factory=dict)
    """Per stage, the snapshot whose files need not be uploaded again; empty: everything is uploaded."""

    @property
    def uri(self) -> str:
        """The folder as a URI a user can restore from."""
        return f"{self.storage.base_uri}/{self.folder}"


@dataclass(frozen=True, slots=True)
class Pending:
    """Underway; ``outstanding`` stages have not acknowledged."""

    outstanding: tuple[StageUid, ...]


@dataclass(frozen=True, slots=True)
class Completed:
    """Complete and restorable."""

    metadata: CheckpointMetadata
    location: CheckpointLocation


@dataclass(frozen=True, slots=True)
class Failed:
    """Over without completing; its files are removed."""

    reason: CheckpointFailureReason
    message: str


CheckpointOutcome = Pending | Completed | Failed
