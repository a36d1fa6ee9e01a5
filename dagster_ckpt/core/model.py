"""Records that are persisted: ``_metadata`` (JSON) and the rows of a stage's manifest (Parquet).

Frozen pydantic, versioned, ``extra="forbid"``: what this version does not understand is refused, never
guessed. Rows of a manifest are plain slotted dataclasses, because there may be a hundred thousand of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal, Protocol

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from dagster_ckpt.core.ids import LARGEST_NUMBER, file_name, pipeline_id, relative_path, stage_uid
from dagster_ckpt.core.units import counted
from dagster_ckpt.errors import InvalidRequest, printable

LONGEST_NAME, LONGEST_NOTE, LONGEST_LABEL, MOST_LABELS = 200, 10_000, 4_000, 100
"""Characters of a name, a note, a label's value; and labels: the record keeps them, and is written again each time."""


def check_label(name: str, labels: Mapping[str, str], note: str) -> None:
    """Raise InvalidRequest for what cannot be called so: it is kept in every record and shown in terminals."""
    given = (("name", name, LONGEST_NAME), ("note", note, LONGEST_NOTE))
    of_labels = [("label", f"{key}={value}", LONGEST_LABEL) for key, value in labels.items()]
    for what, text, longest in (*given, *of_labels):
        if len(text) > longest:
            raise InvalidRequest(
                f"the {what} of a snapshot has {len(text):,} characters: {longest:,} are the most"
            )
        if printable(text) != text or (what != "note" and "\n" in text):
            raise InvalidRequest(
                f"the {what} {text!r} of a snapshot has control characters in it: leave them out"
            )
    if len(labels) > MOST_LABELS:
        raise InvalidRequest(f"a snapshot has {len(labels):,} labels: {MOST_LABELS} are the most")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotLabel:
    """Label of a snapshot: a name, labels to find it by, a free-text note."""

    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def fields(self) -> dict[str, Any]:
        """Return the label's fields as records, requests and run configs spell them: flat."""
        return {"name": self.name, "note": self.note, "labels": dict(self.labels)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelChanges:
    """Changes that a copy makes to its label; None: as the original."""

    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """Added to the original's."""
    note: str | None = None

    def __post_init__(self) -> None:
        check_label(self.name or "", self.labels, self.note or "")

    def applied_to(self, label: SnapshotLabel) -> SnapshotLabel:
        """Return the copy's label."""
        return SnapshotLabel(
            name=label.name if self.name is None else self.name,
            labels={**label.labels, **self.labels},
            note=label.note if self.note is None else self.note,
        )


class _Flat(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, str]: ...

    @property
    def note(self) -> str: ...


class Labeled:
    """Gives a class with the flat fields ``name``, ``labels`` and ``note`` its label."""

    __slots__ = ()

    @property
    def label(self: _Flat) -> SnapshotLabel:
        """The three as one."""
        return SnapshotLabel(name=self.name, labels=self.labels, note=self.note)


METADATA_FORMAT_VERSION = 1

RelativePath = Annotated[str, AfterValidator(relative_path)]
"""A path or key in a persisted record: it stays below its folder, or the record is refused."""
FileName = Annotated[str, AfterValidator(file_name)]
"""A name in a persisted record that becomes one part of a path."""
PipelineName = Annotated[str, AfterValidator(pipeline_id)]
"""A name that a pipeline can have."""
StageName = Annotated[FileName, AfterValidator(stage_uid)]
"""A uid that a stage can have."""

Number = Annotated[int, Field(ge=1, le=LARGEST_NUMBER)]
"""Number of a checkpoint or an attempt, in a persisted record."""
Subtasks = Annotated[int, Field(ge=1, le=1_000_000)]
"""Number of parallel subtasks, in a persisted record: lists are made of that length."""

LATEST_TIME = 253_402_300_799.0
"""The last second of the year 9999: what people are shown of a time reaches no further."""
Time = Annotated[float, Field(ge=0, le=LATEST_TIME)]
"""Seconds since the Unix epoch, in a persisted record."""


class Record(BaseModel):
    """Base of every persisted record."""

    # A validator is built when it is first needed: most programs need few of them, and all together take 0.2 s.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants", defer_build=True)


class FileKind(StrEnum):
    """Kind of a captured file; only *content-named* ones may be reused without comparing checksums."""

    QUERY = "query"
    """Spark's ``metadata``, offsets, commits: small, one checkpoint each."""
    SOURCE_LOG = "source_log"
    """Spark's ``sources/<i>/…``."""
    STATE_SNAPSHOT = "state_snapshot"
    """``.snapshot`` or ``.zip`` of a state store partition."""
    STATE_DELTA = "state_delta"
    """``.delta`` or ``.changelog`` of a state store partition."""
    STATE_SST = "state_sst"
    """RocksDB's immutable files: content-named."""
    STATE_SCHEMA = "state_schema"
    """``state/<op>/_metadata`` and schema files."""
    COMMITTABLE = "committable"
    """What a two-phase sink has prepared and not yet published."""
    STAGED_ROWS = "staged_rows"
    """Rows of such a batch, where nothing but the working directory holds them."""
    CHANNEL = "channel"
    """In-flight entries of a channel log (unaligned checkpoints)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One row of a manifest: a file that restoring the stage needs."""

    path: str
    """Relative to the stage's working directory, '/'-separated: ``query/state/0/3/12.zip``."""
    size: int
    """Bytes."""
    checksum: str
    """``xxh3_128:<hex>``."""
    kind: FileKind
    operator: str | None = None
    """Stateful operator id as in ``state/<operator>``; None for other files."""
    partition: int | None = None
    """State partition (subtask); None for files of no partition."""
    first_checkpoint: int
    """Id of the checkpoint that uploaded it."""
    key: str | None
    """Storage key relative to the storage's base, in a savepoint to its folder; None: inlined."""
    inline: bytes | None = None
    """The content itself, of a small file."""


class CheckpointKind(StrEnum):
    """Kind of a snapshot."""

    CHECKPOINT = "checkpoint"
    """Incremental where possible; owned and deleted by the coordinator."""
    FULL_CHECKPOINT = "full_checkpoint"
    """A checkpoint that builds on none (Flink: CheckpointType FULL)."""
    SAVEPOINT = "savepoint"
    """Owned by the user: self-contained, relocatable, never subsumed."""
    SYNC_SAVEPOINT_SUSPEND = "sync_savepoint_suspend"
    """The savepoint of stop-with-savepoint."""
    SYNC_SAVEPOINT_TERMINATE = "sync_savepoint_terminate"
    """The savepoint of stop-with-savepoint --drain: end of input is processed first."""

    @property
    def is_savepoint(self) -> bool:
        """True for the three kinds the user owns."""
        return self not in (CheckpointKind.CHECKPOINT, CheckpointKind.FULL_CHECKPOINT)

    @property
    def noun(self) -> str:
        """``savepoint`` or ``checkpoint``."""
        return "savepoint" if self.is_savepoint else "checkpoint"

    @property
    def is_synchronous(self) -> bool:
        """True for the two kinds that end the run."""
        return self in (CheckpointKind.SYNC_SAVEPOINT_SUSPEND, CheckpointKind.SYNC_SAVEPOINT_TERMINATE)

    @property
    def publishes(self) -> bool:
        """True where tables show what it contains: plain savepoints are side branches, stages are not told of them."""
        return not self.is_savepoint or self.is_synchronous


class ObjectRef(Record):
    """A stored object and how to check it."""

    key: RelativePath
    size: int
    checksum: str


class SnapshotMetrics(Record):
    """Metrics of a stage's part of a checkpoint; times in milliseconds, sizes in bytes."""

    sync_ms: float = 0.0
    """Pinning the batch and listing its files."""
    async_ms: float = 0.0
    """Copying and verifying."""
    alignment_ms: float = 0.0
    """First to last barrier of the inputs."""
    start_delay_ms: float = 0.0
    """Trigger of the checkpoint to first barrier."""
    bytes_full: int = 0
    """All files a restore reads."""
    bytes_new: int = 0
    """Those this checkpoint wrote."""
    files_full: int = 0
    files_new: int = 0
    processed_in_flight: int = 0
    persisted_in_flight: int = 0
    unaligned: bool = False
    rows_judged: int = 0
    """Rows that the stage's conditions were asked of, since the checkpoint before."""
    rows_refused: int = 0
    """Those that broke a condition."""
    broken: dict[str, int] = Field(default_factory=dict)
    """By condition: rows that broke it."""
    rows_late: int = 0
    """Rows that a watermark dropped, as far as Spark had told."""
    rows_late_kept: int = 0
    """Late rows that are in the quarantine: single ones, where the watermark dropped groups."""
    rows_read: int = 0
    """Rows that came to a stage that keeps late ones."""
    rows_requeued: int = 0
    """Rows of its quarantine that went through it again; judged once more, they are among the above."""
    requeue_orders: tuple[str, ...] = ()
    """Orders whose rows the cut has taken, and that the record may not know of yet."""

    @property
    def refused_rows(self) -> str:
        """Rows that broke which condition, and that came too late, for people; empty: there is nothing to tell."""
        late = {"dropped by the watermark": self.rows_late, "late ones kept": self.rows_late_kept}
        others = [f"{number:,} {what}" for what, number in late.items() if number]
        if not self.rows_judged:
            return "; ".join(others)
        others += [f"{self.rows_requeued:,} requeued"] if self.rows_requeued else []
        told = ", ".join(f"{one!r} {number:,}" for one, number in self.broken.items() if number)
        refused = f"{self.rows_refused:,} of {self.rows_judged:,} broke a condition"
        return "; ".join([f"{refused}: {told}" if told else refused, *others])


class SetAside(Record):
    """Rows of one micro-batch that wait no more."""

    batch_id: int
    rows: int
    file: str
    """Parquet file that has them; empty: they were gone."""


class TableSnapshot(Record):
    """Position of a two-phase table at the cut."""

    uri: str
    """The table's folder."""
    head: int | None = None
    """Checkpoint id of the last publish this cut contains; None: nothing was published yet."""
    prepared: tuple[int, ...] = ()
    """Batch ids prepared and not published at the cut; their committables are in the manifest."""
    sink: str = ""
    """Kind of the sink."""
    cannot_roll_back: str = ""
    """Why rows cannot be taken back from it, in one sentence; empty: they can."""
    set_aside: tuple[SetAside, ...] = ()
    """Rows behind ``head`` that it does not show: it could not, and somebody chose to go on without them."""


class StageSnapshot(Record):
    """One stage's part of a checkpoint. A stateless stage has one too (its offsets)."""

    uid: StageName
    parallelism: Subtasks
    max_parallelism: Subtasks | None = None
    manifest: ObjectRef | None = None
    """The stage's file list; key relative to the storage base, in a savepoint to its folder. None: no
    files."""
    batch_id: int | None = None
    """Last committed micro-batch in the cut; None: the query had run none."""
    query_id: str | None = None
    """Spark's query id (an in-place restore keeps it, a fork gets a new one)."""
    offsets: dict[str, str] = Field(default_factory=dict)
    """Spark's end offset per source (name or index) at the cut, as JSON text."""
    topic_ids: dict[str, str] = Field(default_factory=dict)
    """Topic → its id, of the topics that ``offsets`` are in; one that was deleted and made again has another. Empty:
    none, or their sources do not say where they read."""
    watermark_ms: int | None = None
    input_positions: dict[FileName, int] = Field(default_factory=dict)
    """Per upstream stage: index of this checkpoint's barrier in its channel log."""
    output_position: int | None = None
    """Index of this checkpoint's barrier in the stage's own channel log; None for a sink."""
    state_formats: dict[str, str] = Field(default_factory=dict)
    """For people and checks: provider, checkpoint format version, changelog, shuffle partitions."""
    table: TableSnapshot | None = None
    own_sink: str = ""
    """What a restore does to the rows of the sink that the query itself has, in one sentence; empty: it has none."""
    finished: bool = False
    """The stage had reached the end of bounded input."""
    stateless: bool = False
    """The query keeps no operator state: without its position in its inputs nothing of it is lost."""
    finished_subtasks: tuple[int, ...] = ()
    """Subtasks that had finished while others of the stage still ran."""
    subtask_handles: ObjectRef | None = None
    """File list of a stage that acknowledged per subtask (JSON), key as ``manifest``; None: see
    ``manifest``."""
    coordinator_state: str | None = None
    """Driver-side state acknowledged apart from the subtasks (text the stage understands)."""
    metrics: SnapshotMetrics = SnapshotMetrics()


class Chain(Record):
    """Stages that run as one Spark query (Flink's operator chain)."""

    uid: FileName
    """The last stage: it names the query, its state and its channel."""
    stages: tuple[FileName, ...] = Field(min_length=2)
    """All of them, inputs before their readers, ``uid`` last."""

    @property
    def name(self) -> str:
        """The chain as people see it, ``orders -> clean -> totals``."""
        return " -> ".join(self.stages)


class CheckpointMetadata(Labeled, Record):
    """The content of ``_metadata``: everything a restore needs besides the files it names."""

    format_version: Literal[1] = 1
    pipeline: PipelineName
    lineage: str = ""
    """Identity of the history it was taken in; empty: taken before histories had one."""
    lineages: tuple[str, ...] = ()
    """Histories that one goes on from."""
    checkpoint_id: Number
    kind: CheckpointKind
    epoch: Number
    """Attempt that took it."""
    triggered_at: Time
    """Seconds since the Unix epoch."""
    completed_at: Time
    stages: tuple[StageSnapshot, ...]
    left_tables: dict[str, TableSnapshot] = Field(default_factory=dict)
    """Tables of stages that have none now, by uid, with the rows that belong here."""
    edges: tuple[tuple[str, str], ...] = ()
    """(upstream uid, downstream uid)."""
    chains: tuple[Chain, ...] = ()
    """Stages that ran as one query, in ``stages`` under the last one's uid; the others ran as queries of their own."""
    master_states: dict[str, str] = Field(default_factory=dict)
    """State of master hooks by hook id (text the hook understands)."""
    run_id: str = ""
    """Dagster run that took it."""
    name: str = Field(default="", max_length=LONGEST_NAME)
    labels: dict[str, Annotated[str, Field(max_length=LONGEST_LABEL)]] = Field(
        default_factory=dict, max_length=MOST_LABELS + 1
    )
    note: str = Field(default="", max_length=LONGEST_NOTE)
    library_version: str = ""
    first_number: Number | None = None
    """Number under which it was taken, of a copy that has got another one; None: ``checkpoint_id`` is that."""

    @property
    def number_at_sinks(self) -> int:
        """Number by which sinks know its rows: what they show is compared with it."""
        return self.checkpoint_id if self.first_number is None else self.first_number

    @property
    def rows_set_aside(self) -> tuple[str, ...]:
        """Sentences about the rows it goes on without, as their sinks could not show them."""
        found = ((s.uid, one) for s in self.stages if s.table is not None for one in s.table.set_aside)
        return tuple(
            counted(one.rows, f"row of sink {uid} is", f"rows of sink {uid} are")
            + f" set aside, {f'in {one.file}' if one.file else 'and gone'}"
            for uid, one in found
        )

    def stage(self, uid: str) -> StageSnapshot | None:
        """Return the part of one stage, or None."""
        return next((s for s in self.stages if s.uid == uid), None)
