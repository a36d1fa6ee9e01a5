"""Requests for checkpoints and savepoints, their answers, and the properties of the snapshot that each makes.

Source: flink-runtime CheckpointProperties (CheckpointPropertiesTest, CompletedCheckpointTest#testCleanUpOnShutdown).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import assert_never

from dagster_ckpt.core.config import CheckpointConfig, ClaimMode, ExternalizedCheckpointRetention
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.messages import CheckpointFailureReason
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata, Labeled, Record, check_label
from dagster_ckpt.core.paths import SnapshotLocation
from dagster_ckpt.errors import InvalidRequest


class RunStatus(StrEnum):
    """Status of a run, as far as retention is concerned (Flink: JobStatus)."""

    RUNNING = "running"
    """Not ended: nothing is discarded on its account."""
    SUSPENDED = "suspended"
    """Ended for now; a later run goes on from here. The record is kept."""
    FINISHED = "finished"
    """The bounded pipeline is really at its end."""
    CANCELED = "canceled"
    """A person or a schedule terminated it."""
    FAILED = "failed"
    """It failed and is not retried."""

    @property
    def is_globally_terminal(self) -> bool:
        """True where no later run continues this one."""
        return self in (RunStatus.FINISHED, RunStatus.CANCELED, RunStatus.FAILED)


class SharingStrategy(StrEnum):
    """Sharing of files between checkpoints (Flink: SnapshotType.SharingFilesStrategy)."""

    FORWARD_BACKWARD = "forward_backward"
    """Builds on earlier checkpoints, and later ones may build on it."""
    FORWARD = "forward"
    """Builds on none; later ones may build on it."""
    NO_SHARING = "no_sharing"
    """Builds on none and none may build on it."""


class CheckpointProperties(Record):
    """Properties of one snapshot; stored with it, so that they survive the coordinator."""

    kind: CheckpointKind
    forced: bool
    """Skips the limits on concurrency and pause."""
    discard_subsumed: bool
    discard_finished: bool
    discard_canceled: bool
    discard_failed: bool
    discard_suspended: bool
    unclaimed: bool = False
    """Restored with NO_CLAIM: not ours, so the next checkpoint must be full."""

    @property
    def can_be_subsumed(self) -> bool:
        """True where a newer completion aborts it while pending (PendingCheckpointTest#testCanBeSubsumed)."""
        return not self.kind.is_savepoint

    @property
    def sharing(self) -> SharingStrategy:
        """Whose files it may use, and who may use its files."""
        return sharing_of(self.kind)

    def discard_on(self, status: RunStatus) -> bool:
        """Return True where the end of the run with ``status`` deletes this snapshot's files."""
        match status:
            case RunStatus.RUNNING:
                return False
            case RunStatus.SUSPENDED:
                return self.discard_suspended
            case RunStatus.FINISHED:
                return self.discard_finished
            case RunStatus.CANCELED:
                return self.discard_canceled
            case RunStatus.FAILED:
                return self.discard_failed
        assert_never(status)


def sharing_of(kind: CheckpointKind) -> SharingStrategy:
    """Return whose files a snapshot of this kind may use, and who may use its files."""
    match kind:
        case CheckpointKind.CHECKPOINT:
            return SharingStrategy.FORWARD_BACKWARD
        case CheckpointKind.FULL_CHECKPOINT:
            return SharingStrategy.FORWARD
        case (
            CheckpointKind.SAVEPOINT
            | CheckpointKind.SYNC_SAVEPOINT_SUSPEND
            | CheckpointKind.SYNC_SAVEPOINT_TERMINATE
        ):
            return SharingStrategy.NO_SHARING
    assert_never(kind)


def properties_for(kind: CheckpointKind, config: CheckpointConfig) -> CheckpointProperties:
    """Return the properties of a snapshot of ``kind`` about to be triggered under ``config``.

    A savepoint is forced unless unaligned checkpoints are on (CheckpointCoordinatorTest
    #testSavepointScheduledInUnalignedMode); the user owns it, so no end of the run deletes it.
    """
    if kind.is_savepoint:
        return _never_discarded(kind, forced=not config.unaligned)
    retention = config.externalized_checkpoint_retention
    kept_on_failure = retention is not ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
    kept_on_cancellation = retention is ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    return CheckpointProperties(
        kind=kind,
        forced=False,
        discard_subsumed=True,
        discard_finished=True,
        discard_canceled=not kept_on_cancellation,
        discard_failed=not kept_on_failure,
        discard_suspended=not kept_on_cancellation,
    )


def restored_properties(claim_mode: ClaimMode, config: CheckpointConfig) -> CheckpointProperties:
    """Return the properties a snapshot from outside has from now on in the pipeline that restores it."""
    match claim_mode:
        case ClaimMode.CLAIM:
            return properties_for(CheckpointKind.CHECKPOINT, config)
        case ClaimMode.LEGACY:
            return _never_discarded(CheckpointKind.SAVEPOINT, forced=False)
        case ClaimMode.NO_CLAIM:
            plain = _never_discarded(CheckpointKind.SAVEPOINT, forced=False)
            return plain.model_copy(update={"unclaimed": True})
    assert_never(claim_mode)


def _never_discarded(kind: CheckpointKind, *, forced: bool) -> CheckpointProperties:
    return CheckpointProperties(
        kind=kind,
        forced=forced,
        discard_subsumed=False,
        discard_finished=False,
        discard_canceled=False,
        discard_failed=False,
        discard_suspended=False,
    )


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
