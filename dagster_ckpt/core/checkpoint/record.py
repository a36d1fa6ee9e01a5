"""The coordinator's record of one pipeline: everything that must survive the process, as one JSON document.

Changed by compare-and-set only. What can be computed from it (is a checkpoint complete? who is outstanding?)
is not stored beside it. Per-subtask acknowledgements are not in it: they are lost with the process, as in Flink.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue, ValidationError

from dagster_ckpt.core.checkpoint.failures import FailureCounter
from dagster_ckpt.core.checkpoint.tables import RequeueRecord, ServingRecord, ShownTables
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch
from dagster_ckpt.core.json_text import first_problem
from dagster_ckpt.core.model import (
    Chain,
    CheckpointKind,
    CheckpointMetadata,
    FileName,
    Labeled,
    Record,
    StageSnapshot,
    TableSnapshot,
)
from dagster_ckpt.core.paths import SnapshotLocation
from dagster_ckpt.core.request import CheckpointProperties, RunStatus, SnapshotScope
from dagster_ckpt.core.restore.facts import KnownSnapshot, RestoreLine
from dagster_ckpt.errors import Corrupt

EXPIRED_REMEMBERED = 16
"""So many expired checkpoints are remembered: a late message about one of them is a known message."""
OPERATIONS_REMEMBERED = 1000


class TriggerRecord(Labeled, Record):
    """Request that led to a checkpoint, as recorded."""

    periodic: bool
    name: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    note: str = ""
    request_id: str = ""

    @classmethod
    def of(cls, metadata: CheckpointMetadata) -> TriggerRecord:
        """Return the request by which a snapshot from elsewhere was taken, as far as its metadata tells."""
        return cls(periodic=False, **metadata.label.fields())


class PendingStageRecord(Record):
    """One stage's part of a pending checkpoint."""

    uid: FileName
    number: int = 0
    """The try of the stage whose acknowledgement counts …"""
    retries: int = 0
    """… or one of so many later ones: tries of its snapshot that were granted since."""
    finished: bool = False
    """It had finished when the checkpoint was triggered: nothing is expected of it, but where it ended."""
    keeps_position: bool = False
    finished_subtasks: tuple[int, ...] = ()
    """Those that had, where not all had: nothing is expected of these."""
    snapshot: StageSnapshot | None = None
    """Its acknowledgement; None: outstanding."""
    acknowledged_at: float | None = None


class PendingRecord(Record):
    """Pending checkpoint."""

    checkpoint_id: int
    properties: CheckpointProperties
    trigger: TriggerRecord
    triggered_at: float
    deadline_at: float
    """Seconds since the Unix epoch; then it expires."""
    location: SnapshotLocation | None = None
    """None until the storage location was made."""
    stages: tuple[PendingStageRecord, ...]
    coordinators: dict[str, str | None] = Field(default_factory=dict)
    """Driver-side states acknowledged so far, by stage."""
    master_states: dict[str, str] = Field(default_factory=dict)
    """States of hooks acknowledged so far, by hook id."""
    hooks_owed: tuple[str, ...] = ()
    """Hooks that have not answered yet, with a state or without."""
    builds_on: int | None = None
    """Completed checkpoint whose shared files it may reuse: that one's files stay until this is over."""


class CompletedRecord(Record):
    """A completed checkpoint or savepoint."""

    checkpoint_id: int
    properties: CheckpointProperties
    location: SnapshotLocation
    epoch: int
    run_id: str = ""
    triggered_at: float
    completed_at: float
    trigger: TriggerRecord
    bytes_full: int = 0
    bytes_new: int = 0
    taken_as: CheckpointKind | None = None
    """What it was when it was taken, for one that came in by a restore (it counts towards the retained ones)."""
    metadata_checksum: str = ""
    """Of its ``_metadata`` file; empty: recorded before this was kept."""
    stands_for: str = ""
    """``hour``, ``day`` or both, where it is kept beside the newest; empty: it is one of these."""
    left_by: int | None = None
    """Epoch of the restore that went back to before it; None: the pipeline's present state comes from it."""
    lost: str = ""
    """What it needs and is gone, as who looked last has seen; empty: nobody has missed anything."""
    lost_since: float | None = None
    """When that was seen first."""

    @classmethod
    def of(
        cls,
        metadata: CheckpointMetadata,
        location: SnapshotLocation,
        properties: CheckpointProperties,
        *,
        epoch: int,
        taken_as: CheckpointKind | None = None,
        metadata_checksum: str = "",
    ) -> CompletedRecord:
        """Return the entry of a snapshot this attempt did not take: restored, imported or exported."""
        return cls(
            checkpoint_id=metadata.checkpoint_id,
            properties=properties,
            location=location,
            epoch=epoch,
            run_id=metadata.run_id,
            triggered_at=metadata.triggered_at,
            completed_at=metadata.completed_at,
            trigger=TriggerRecord.of(metadata),
            bytes_full=sum(s.metrics.bytes_full for s in metadata.stages),
            bytes_new=sum(s.metrics.bytes_new for s in metadata.stages),
            taken_as=taken_as,
            metadata_checksum=metadata_checksum,
        )

    @property
    def kind(self) -> CheckpointKind:
        """Kind of the snapshot."""
        return self.properties.kind

    @property
    def is_kept_for_its_owner(self) -> bool:
        """True for a savepoint that no newer checkpoint takes the place of: a person disposes of it."""
        return self.known.kind.is_savepoint and not self.properties.discard_subsumed

    @property
    def is_left_behind(self) -> bool:
        """True where a restore went back to before it."""
        return self.left_by is not None

    @property
    def kept_for(self) -> str:
        """Reason for which a retained checkpoint is kept, in a word: one of the newest, or of its hour or day."""
        return f"its {self.stands_for.replace(', ', ' and its ')}" if self.stands_for else "newest"

    @property
    def known(self) -> KnownSnapshot:
        """The completed checkpoint as a restore point."""
        return KnownSnapshot(
            checkpoint_id=CheckpointId(self.checkpoint_id),
            kind=self.taken_as or self.kind,
            location=self.location,
            properties=self.properties,
            epoch=CoordinatorEpoch(self.epoch),
            metadata_checksum=self.metadata_checksum,
        )


class CleanupRecord(Record):
    """Files to be removed. It leaves the record when they are gone; doing it twice does no harm."""

    checkpoint_id: int
    location: SnapshotLocation | None
    complete: bool
    """It was complete (subsumed or ended with the run), else aborted."""
    savepoint: bool = False
    """Self-contained: nothing else can need its files."""
    writers: tuple[str, ...] = ()
    """Stages that may still write into the folder: nothing is deleted before they said they ended."""
    folder_gone: bool = False
    """Only what an aborted checkpoint uploaded for sharing is left: it goes when nothing can build on it."""
    keep_files: bool = False
    """The outcome of storing it is unknown: its files stay for a person to judge."""


class CountsRecord(Record):
    """Numbers of checkpoints since the pipeline exists; those in progress are counted from ``pending``."""

    restored: int = 0
    total: int = 0
    completed: int = 0
    failed: int = 0


class ForgottenHistory(Record):
    """Sum of the history's removed rows: of checkpoints that can no longer be restored, and that many newer follow."""

    rows: int = 0
    spans: tuple[tuple[int, int], ...] = ()
    """Their numbers, as ranges from the first to behind the last: these checkpoints are over."""
    until: float = 0.0
    """Newest trigger among them, in seconds since the Unix epoch; 0: none was removed."""
    completed: int = 0
    failed: int = 0
    bytes_new: int = 0
    """Bytes they wrote."""

    def holds(self, checkpoint_id: int) -> bool:
        """Tell whether the row of this checkpoint left the history."""
        return any(first <= checkpoint_id < end for first, end in self.spans)


class OperationRecord(Record):
    """Outcome of a client's request id."""

    request_id: str
    checkpoint_id: int | None = None
    rejected: str = ""
    """Name of the reason, when it never became a checkpoint."""
    message: str = ""


class FailedRecord(Record):
    """A checkpoint that failed lately: what ``status_of`` answers."""

    checkpoint_id: int
    reason: str
    message: str


class MailRecord(Labeled, Record):
    """Request of another process to the running stream."""

    request_id: str
    """Its answer is found by it, among ``operations``."""
    kind: CheckpointKind
    scope: SnapshotScope = SnapshotScope.CONFIGURED
    target: str = ""
    name: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    note: str = ""
    sent_at: float  # seconds since the Unix epoch


class BeforeRestore(Record):
    """Record's words of before a restore that has changed nothing outside yet: refused, it is as if never asked for."""

    next_id: int
    status: RunStatus
    status_epoch: int
    clean: bool
    completed: tuple[CompletedRecord, ...]
    savepoints: tuple[CompletedRecord, ...]
    line: RestoreLine | None
    latest_completed: int | None
    force_full: bool
    highest_not_claimed: int | None
    restored_id: int | None
    restored_at: float | None


class CoordinatorRecord(Record):
    """The whole document."""

    format_version: Literal[1] = 1
    pipeline: FileName
    lineage: str = ""
    """Identity of the pipeline's history, made with its first record; empty: written before there was one."""
    lineages: tuple[str, ...] = ()
    """Histories it goes on from: what carries one of their ids is the pipeline's own."""
    store_place: str = ""
    """Which store the last attempt found it in: found in another one, it is a copy. Empty: not known."""
    is_rebuilt: bool = False
    """It was built again from the storage, which does not tell how many attempts there were: the next claim asks."""
    epoch: int = 0
    """Which attempt owns the pipeline; an older one is fenced."""
    owner: str = ""
    """Dagster run of that attempt."""
    status: RunStatus = RunStatus.SUSPENDED
    status_epoch: int = 0
    """Attempt that ``status``, ``working_directory`` and ``clean`` are about."""
    working_directory: str = ""
    started_epoch: int = 0  # whose stages were restored there: an attempt that failed before has none
    clean: bool = False
    """That attempt ended with all queries stopped at batch boundaries, its directory intact."""
    shape: tuple[str, ...] = ()  # stages and edges it ran (``restore_facts.shape_of``)
    chains: tuple[Chain, ...] = ()  # stages that it ran as one query
    root: str = ""
    """First run of the chain of retries the owner belongs to."""
    owner_since: int = 0
    """First epoch of the owner: a run that is tried again keeps what its first try completed."""
    next_id: int = 1
    pending: tuple[PendingRecord, ...] = ()
    completed: tuple[CompletedRecord, ...] = ()
    """Retained checkpoints, oldest first."""
    savepoints: tuple[CompletedRecord, ...] = ()
    line: RestoreLine | None = None
    """Beginning of the history that ``latest`` follows, after a restore that a person asked for."""
    before_restore: BeforeRestore | None = None
    """State to return to where the restore of this attempt is refused; None once it changes tables, or has started."""
    latest_completed: int | None = None
    """Newest completion that stages were told of, retained or not."""
    last_completed_at: float | None = None
    """Of this attempt; the minimum pause counts from it."""
    force_full: bool = False
    """The next checkpoint must be full, because it may not build on the restored one."""
    highest_not_claimed: int | None = None
    failures: FailureCounter = FailureCounter()
    job_failure: str = ""
    """Why the attempt must fail, or has."""
    settings: dict[str, JsonValue] = Field(default_factory=dict)  # of the newest attempt, where no defaults
    expired: tuple[int, ...] = ()
    failed: tuple[FailedRecord, ...] = ()
    cleanup: tuple[CleanupRecord, ...] = ()
    counts: CountsRecord = CountsRecord()
    forgotten: ForgottenHistory = ForgottenHistory()
    operations: tuple[OperationRecord, ...] = ()
    restored_id: int | None = None
    restored_at: float | None = None
    lease_until: float | None = None
    """The attempt's process renews it: until then (seconds since the Unix epoch) it is alive. None: it has ended."""
    has_mailbox: bool = True
    """While it is alive it answers what is in the mailbox; an epoch run does not."""
    mailbox: tuple[MailRecord, ...] = ()
    requeue: tuple[RequeueRecord, ...] = ()
    """Orders whose rows no checkpoint has taken yet."""
    serving: ServingRecord | None = None
    """Pipeline whose tables readers of this one's name find; None: its own."""
    shown: ShownTables | None = None
    """What all tables show at one moment; None: nothing was published yet."""
    left_tables: dict[str, TableSnapshot] = Field(default_factory=dict)  # as in its checkpoints' metadata

    @property
    def shown_id(self) -> int | None:
        """Newest checkpoint that every table shows: it is retained, however many newer ones are."""
        return None if self.shown is None else self.shown.checkpoint_id

    @property
    def known_ids(self) -> frozenset[int]:
        """Checkpoints that are restorable, pending or being deleted."""
        known: list[CompletedRecord | PendingRecord | CleanupRecord] = [*self.completed, *self.savepoints]
        return frozenset(entry.checkpoint_id for entry in (*known, *self.pending, *self.cleanup))

    @property
    def late_tables(self) -> str:
        """Say which checkpoint all tables show, where that is not the newest; empty: it is, or no table waits."""
        newest, shown = self.latest_completed, self.shown_id
        if self.shown is None or not self.shown.tables or newest is None or (shown or 0) >= newest:
            return ""
        if shown is None:
            return f"no checkpoint is shown by all tables yet, {newest} neither"
        kept = ", which stays restorable" if self.completed_of(shown) is not None else ""
        return f"all tables together show checkpoint {shown}{kept}, and not {newest} yet"

    def pending_of(self, checkpoint_id: int) -> PendingRecord | None:
        """Return a pending checkpoint, or None."""
        return next((p for p in self.pending if p.checkpoint_id == checkpoint_id), None)

    def completed_of(self, checkpoint_id: int) -> CompletedRecord | None:
        """Return a retained checkpoint or a savepoint, or None."""
        known = (*self.completed, *self.savepoints)
        return next((c for c in known if c.checkpoint_id == checkpoint_id), None)

    def published_after(self, checkpoint_id: int) -> dict[CheckpointId, CoordinatorEpoch]:
        """Return the attempts of newer snapshots that tables were shown, savepoints that ended a run among them."""
        published = (savepoint for savepoint in self.savepoints if savepoint.kind.publishes)
        newer = (each for each in (*self.completed, *published) if each.checkpoint_id > checkpoint_id)
        return {CheckpointId(each.checkpoint_id): CoordinatorEpoch(each.epoch) for each in newer}

    def with_pending(self, pending: PendingRecord) -> CoordinatorRecord:
        """Return the record with one pending checkpoint replaced."""
        changed = tuple(pending if p.checkpoint_id == pending.checkpoint_id else p for p in self.pending)
        return self.model_copy(update={"pending": changed})

    def without_pending(self, checkpoint_id: int) -> CoordinatorRecord:
        """Return the record without one pending checkpoint."""
        kept = tuple(p for p in self.pending if p.checkpoint_id != checkpoint_id)
        return self.model_copy(update={"pending": kept})


def parse_record(body: str) -> CoordinatorRecord:
    """Return the record from its JSON text. Raises Corrupt when it is damaged or of an unknown format."""
    try:
        return CoordinatorRecord.model_validate_json(body)
    except ValidationError as error:
        raise Corrupt(
            f"the coordinator's record cannot be read ({first_problem(error)}): it is damaged, or was written by a "
            "newer version of dagster_ckpt; upgrade, or restore the database of the coordinator store"
        ) from error
