"""Facts of the checkpoint page, read at one moment from the store and from the newest snapshot.

Nothing here asks a running process: a page can be made of a pipeline whose machine is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from dagster_ckpt.core.checkpoint.lease import holds_lease
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord, ForgottenHistory, PendingRecord
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics, StatisticsSnapshot
from dagster_ckpt.core.config import with_defaults
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.model import StageSnapshot
from dagster_ckpt.core.units import count, moment, size
from dagster_ckpt.errors import Corrupt, NotFound, Unavailable
from dagster_ckpt.operations.deployment import (
    AuditRow,
    Deployment,
    Readers,
    audit_of,
    load_record,
    readers_of,
    statistics_of,
)
from dagster_ckpt.operations.snapshots.catalog import (
    FoundSnapshot,
    SnapshotSummary,
    find_snapshot,
    snapshots_of,
)
from dagster_ckpt.operations.snapshots.contents import SubtaskState, subtasks_of

WINDOW = 1000
"""Checkpoints that the summary is computed over."""
SHOWN = 60
"""Checkpoints in the chart and the history."""


AUDITED = 20
"""Restores, forks and disposals shown."""


class Depth(Enum):
    """Depth to which the newest snapshot is read: who looks every second asks the store alone."""

    STORE = "store"
    """No snapshot is read."""
    POSITIONS = "positions"
    """Its metadata is."""
    SUBTASKS = "subtasks"
    """The lists of its stages' files are, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Where a reader of the page can go on to."""

    run: Callable[[str], str] | None = None
    """Page of a Dagster run, by its id."""
    restore: Callable[[str], str] | None = None
    """Launchpad that restores a snapshot, by its key."""
    preview: Callable[[str], str] | None = None
    """Launchpad that previews that restore, by its key."""
    command: Callable[[str], str] | None = None
    """Command that restores it, or that previews that, by its key."""
    asset: str = ""
    """Page of the checkpoints asset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCheckpoint:
    """A checkpoint in progress."""

    key: str
    since: float
    """Seconds since its trigger."""
    expires_in: float
    acknowledged: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePosition:
    """Position of one stage at the newest snapshot."""

    uid: str
    inputs: tuple[str, ...]
    batch_id: int | None
    offsets: tuple[tuple[str, str], ...]
    """(source, offset): objects within JSON text are written out."""
    watermark_ms: int | None
    table: str
    subtasks: tuple[SubtaskState, ...]
    """Its state partitions; empty: its state is one, or none."""
    is_finished: bool = False
    """Its bounded input was at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPage:
    """Everything on the page of one pipeline."""

    pipeline: PipelineId
    now: float
    """Seconds since the Unix epoch at which it was read."""
    status: str
    epoch: int
    run_id: str
    is_alive: bool
    """Its process has renewed its lease."""
    statistics: StatisticsSnapshot
    restored_key: str
    pending: tuple[PendingCheckpoint, ...]
    restorable: tuple[SnapshotSummary, ...]
    newest: str
    """Key of the snapshot that the positions are of; empty: none can be read."""
    positions: tuple[StagePosition, ...]
    unreadable: str = ""
    """Why the newest snapshot cannot be read."""
    job_failure: str = ""
    late_tables: str = ""
    """Which checkpoint all tables show, where that is not the newest."""
    history_begins: str = ""
    """Sum of the older checkpoints whose rows left the history; empty: it has all there were."""
    readers: Readers | None = None
    """Swap by which it serves, or is served by another; None: there was none, or it was not asked."""
    audit: tuple[AuditRow, ...] = ()
    """What people had done to it, newest first."""
    settings: tuple[tuple[str, str, bool], ...] = ()
    """Settings of the newest attempt: name, value, and whether it is another than the default."""

    @property
    def newest_statistics(self) -> CheckpointStatistics | None:
        """Numbers of the snapshot that the positions are of."""
        number = self.newest.rpartition("-")[2]
        return self.statistics.checkpoint(int(number)) if number.isdecimal() else None


def page_facts(
    deployment: Deployment,
    pipeline: PipelineId,
    *,
    now: float,
    shown: int = SHOWN,
    depth: Depth = Depth.SUBTASKS,
) -> CheckpointPage:
    """Return a pipeline's facts, from one state of its record. Raises NotFound, Corrupt, Unavailable.

    ``depth``: how much of the newest snapshot is read.
    """
    record = load_record(deployment.store, pipeline)
    statistics = statistics_of(deployment, record, window=max(WINDOW, shown), history_size=shown)
    restorable = snapshots_of(record)
    reads = depth is not Depth.STORE
    newest, positions, unreadable = _newest(deployment, pipeline, restorable if reads else (), depth)
    return CheckpointPage(
        pipeline=pipeline,
        now=now,
        status=record.status.value,
        epoch=record.epoch,
        run_id=record.owner,
        is_alive=holds_lease(record, now),
        statistics=statistics,
        restored_key=_restored(record, restorable),
        pending=tuple(_pending(pending, now) for pending in record.pending),
        restorable=restorable,
        newest=newest,
        positions=positions,
        unreadable=unreadable,
        job_failure=record.job_failure,
        late_tables=record.late_tables,
        history_begins=_history_begins(record.forgotten),
        readers=readers_of(deployment.store, record) if reads else None,
        audit=tuple(audit_of(deployment, pipeline, limit=AUDITED)) if reads else (),
        settings=_settings(record) if reads else (),
    )


def _settings(record: CoordinatorRecord) -> tuple[tuple[str, str, bool], ...]:
    """Return the settings on record, with the defaults of today beside them."""
    values = with_defaults(record.settings)
    return tuple(
        (name, "-" if value in (None, "") else _written_out(value), name in record.settings)
        for name, value in values.items()
    )


def _newest(
    deployment: Deployment, pipeline: PipelineId, restorable: tuple[SnapshotSummary, ...], depth: Depth
) -> tuple[str, tuple[StagePosition, ...], str]:
    if not restorable:
        return "", (), ""
    key = restorable[0].key
    try:
        found = find_snapshot(deployment, key, pipeline)
        return key, tuple(_position(stage, found, depth) for stage in found.stored.metadata.stages), ""
    except (NotFound, Corrupt, Unavailable) as error:
        return key, (), str(error)


def _history_begins(forgotten: ForgottenHistory) -> str:
    if not forgotten.rows:
        return ""
    return (
        f"the history begins after {moment(forgotten.until)}: of {count(forgotten.rows)} older checkpoints "
        f"{count(forgotten.completed)} completed, {count(forgotten.failed)} failed, "
        f"{size(forgotten.bytes_new)} were written"
    )


def _restored(record: CoordinatorRecord, restorable: tuple[SnapshotSummary, ...]) -> str:
    if record.restored_id is None:
        return ""
    known = {int(one.checkpoint_id): one.key for one in restorable}
    return known.get(record.restored_id, f"number {record.restored_id}")


def _pending(pending: PendingRecord, now: float) -> PendingCheckpoint:
    done = tuple(s.uid for s in pending.stages if s.snapshot is not None or s.finished)
    return PendingCheckpoint(
        key=f"{pending.properties.kind.noun} {pending.checkpoint_id}",
        since=max(0.0, now - pending.triggered_at),
        expires_in=pending.deadline_at - now,
        acknowledged=done,
        missing=(
            *(s.uid for s in pending.stages if s.uid not in done),
            *(f"hook {uid}" for uid in pending.hooks_owed),
        ),
    )


def _position(stage: StageSnapshot, found: FoundSnapshot, depth: Depth) -> StagePosition:
    return StagePosition(
        uid=stage.uid,
        inputs=tuple(
            upstream for upstream, downstream in found.stored.metadata.edges if downstream == stage.uid
        ),
        batch_id=stage.batch_id,
        offsets=tuple((source, _readable(offset)) for source, offset in sorted(stage.offsets.items())),
        watermark_ms=stage.watermark_ms,
        table="" if stage.table is None else stage.table.uri,
        subtasks=subtasks_of(found.stored, stage) if depth is Depth.SUBTASKS else (),
        is_finished=stage.finished,
    )


def _readable(offset: str) -> str:
    """Return an offset as people read it: of a JSON object its names and values, else the text."""
    try:
        value = parse_json(offset)
    except ValueError:
        return offset
    return _written_out(value)


def _written_out(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_written_out(part)}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(_written_out(part) for part in value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
