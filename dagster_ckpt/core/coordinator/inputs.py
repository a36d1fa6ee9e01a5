"""Everything that can happen to the coordinator, as values: the inputs of ``decide``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagster_ckpt.core.checkpoint.record import ForgottenHistory
from dagster_ckpt.core.checkpoint.tables import LeftTables, ShownTables
from dagster_ckpt.core.checkpoint.tasks import StageStatus
from dagster_ckpt.core.ids import CheckpointId, ExecutionAttempt, OfCheckpoint, StageUid
from dagster_ckpt.core.messages import CheckpointFailureReason, StageAcknowledgement, SubtaskAcknowledgement
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.paths import SnapshotLocation
from dagster_ckpt.core.request import CheckpointRequest, RunStatus

# --- from users of the coordinator ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestCheckpoint:
    """Someone, or the timer, wants a checkpoint. Answer: TriggerOutcome."""

    request: CheckpointRequest


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Stop-with-savepoint: ``request.kind`` is one of the synchronous kinds. Answer: TriggerOutcome."""

    request: CheckpointRequest


@dataclass(frozen=True, slots=True)
class Started:
    """The stages are restored in ``working_directory``: the run is RUNNING."""

    working_directory: str
    shown: ShownTables | None = None
    """What their tables were brought to; None: they are as they were."""
    left_tables: LeftTables = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TablesChange:
    """The restore was refused by nobody, and is about to change tables: from here on ``latest`` follows it."""


@dataclass(frozen=True, slots=True)
class StageReported:
    """A stage, or one subtask, has changed its status."""

    uid: StageUid
    status: StageStatus
    subtask: int | None
    keeps_position: bool = False
    """It has FINISHED, and its host goes on storing the position it ended at."""


@dataclass(frozen=True, slots=True)
class EndOfDataReported:
    """A stage, or one subtask, has consumed all its bounded input and runs on."""

    uid: StageUid
    subtask: int | None


@dataclass(frozen=True, slots=True)
class BacklogReported:
    """These stages have a backlog now."""

    stages: frozenset[StageUid]


@dataclass(frozen=True, slots=True)
class SchedulerStarted:
    """Switch the periodic scheduler on; ``draw`` in [0, 1) places the first fire."""

    draw: float


@dataclass(frozen=True, slots=True)
class SchedulerStopped:
    """Switch it off and abort what is in flight."""


@dataclass(frozen=True, slots=True)
class FailingOver:
    """Stages are about to be restarted: nothing pending can complete."""

    message: str


class StagesRestored(OfCheckpoint):
    """Stages were restarted within the attempt, from this checkpoint."""


class TimeoutRearmed(OfCheckpoint):
    """Restarts a pending checkpoint's timeout."""


@dataclass(frozen=True, slots=True)
class TimersFired:
    """Time has passed: expire what is due. Answer: True when a periodic checkpoint is to be requested."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The attempt ends. ``clean``: all queries stopped at batch boundaries."""

    status: RunStatus
    clean: bool
    hands_over: bool = False
    """The same run begins the next attempt: it keeps its lease, and requests of others wait for it."""
    keeps_newest: bool = False
    """The newest checkpoint stays though the status deletes it: another run may follow, and must go on from it."""
    cause: str = ""
    """Why it failed, in a sentence; a cause the coordinator has given itself comes before it."""


class SavepointDisposed(OfCheckpoint):
    """A person wants a savepoint's files gone. Answer: True when there was one."""


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """The attempt is alive and looks after its mailbox until this time (seconds since the Unix epoch)."""

    until: float | None
    """None: it gives the lease back."""


@dataclass(frozen=True, slots=True)
class HistoryOutdated:
    """The rows of these checkpoints leave the history; ``forgotten`` is the sum of all that have left it then."""

    checkpoint_ids: tuple[CheckpointId, ...]
    forgotten: ForgottenHistory


@dataclass(frozen=True, slots=True)
class MailTaken:
    """These requests of other processes were taken up; a refused one says why."""

    request_ids: frozenset[str]
    refused: Mapping[str, str] = field(default_factory=dict)


# --- from stages --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageAcked:
    """A stage has acknowledged as a whole. Answer: AcknowledgeResult."""

    ack: StageAcknowledgement


@dataclass(frozen=True, slots=True)
class SubtaskAcked:
    """A subtask has acknowledged. Answer: AcknowledgeResult."""

    ack: SubtaskAcknowledgement


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDeclined:
    """A stage could not take its part. Answer: FailureDecision."""

    checkpoint_id: CheckpointId
    attempt: ExecutionAttempt
    reason: CheckpointFailureReason
    message: str
    transient: bool
    retries_left: int


@dataclass(frozen=True, slots=True)
class AbortConfirmed:
    """A stage will write nothing more for a checkpoint that was aborted."""

    checkpoint_id: CheckpointId
    uid: StageUid


@dataclass(frozen=True, slots=True)
class HookId:
    """Names a master hook, where a stage's driver-side coordinator could be meant as well."""

    name: str


@dataclass(frozen=True, slots=True)
class CoordinatorAcked:
    """A stage's driver-side coordinator has given its state (None: it has none). Answer: AcknowledgeResult."""

    checkpoint_id: CheckpointId
    uid: StageUid
    state: str | None


@dataclass(frozen=True, slots=True)
class HookAcked:
    """A master hook has given its state (None: it has none)."""

    checkpoint_id: CheckpointId
    hook_id: str
    state: str | None


@dataclass(frozen=True, slots=True)
class ParticipantFailed:
    """A driver-side coordinator or a master hook failed to give the state it owes."""

    checkpoint_id: CheckpointId
    participant: StageUid | HookId
    reason: CheckpointFailureReason
    message: str


# --- from effects -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LocationMade:
    """The folder of a checkpoint is known to be new."""

    checkpoint_id: CheckpointId
    location: SnapshotLocation


class HooksCalled(OfCheckpoint):
    """Every master hook was called; some may still owe their result."""


class TasksTriggered(OfCheckpoint):
    """The stages were told."""


@dataclass(frozen=True, slots=True)
class CheckpointBroken:
    """Something on the coordinator's own side failed: a trigger step, the metadata, the store."""

    checkpoint_id: CheckpointId
    reason: CheckpointFailureReason
    message: str
    outcome_unknown: bool = False
    """The completion may have been stored: its files must stay."""


@dataclass(frozen=True, slots=True)
class QueueDue:
    """A queued request may have its turn now."""


@dataclass(frozen=True, slots=True)
class RequestBroken:
    """A request could not become a checkpoint because its id could not be stored."""

    request: CheckpointRequest
    message: str
    number: int | None = None
    """Its place in the queue; None: it was never queued."""


@dataclass(frozen=True, slots=True)
class MetadataWritten:
    """``_metadata`` is in the folder: the checkpoint may be moved to completed."""

    metadata: CheckpointMetadata
    size: int
    checksum: str = ""
    """Of the file."""


class StagesNotified(OfCheckpoint):
    """The stages have heard of a completion: what was to be published with it is, or waits for the next."""


@dataclass(frozen=True, slots=True)
class TablesShown:
    """Every table shows this checkpoint."""

    shown: ShownTables


@dataclass(frozen=True, slots=True)
class CleaningBegan:
    """The files of these checkpoints are being deleted."""

    checkpoint_ids: frozenset[CheckpointId]


@dataclass(frozen=True, slots=True)
class CleaningEnded:
    """They are gone (``gone``), or deleting them failed and will be tried by the next attempt."""

    checkpoint_id: CheckpointId
    gone: bool


Input = (
    RequestCheckpoint
    | StopRequested
    | Started
    | TablesChange
    | StageReported
    | EndOfDataReported
    | BacklogReported
    | SchedulerStarted
    | SchedulerStopped
    | FailingOver
    | StagesRestored
    | TimeoutRearmed
    | TimersFired
    | Closing
    | SavepointDisposed
    | LeaseRenewed
    | HistoryOutdated
    | MailTaken
    | StageAcked
    | SubtaskAcked
    | StageDeclined
    | AbortConfirmed
    | CoordinatorAcked
    | HookAcked
    | ParticipantFailed
    | LocationMade
    | HooksCalled
    | TasksTriggered
    | CheckpointBroken
    | QueueDue
    | RequestBroken
    | MetadataWritten
    | StagesNotified
    | TablesShown
    | CleaningBegan
    | CleaningEnded
)
