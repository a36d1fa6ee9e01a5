"""The coordinator store held against the storage: what is missing, what is left over, what nobody knows.

Names and sizes are compared; contents are not read (``verify`` does that).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from dagster_ckpt.core import paths
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord, PendingRecord
from dagster_ckpt.core.files.cleaning import Disposition
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.paths import same_place
from dagster_ckpt.core.restore.facts import Seen
from dagster_ckpt.core.restore.horizon import NEAR_DAYS, Horizon
from dagster_ckpt.core.units import ago, counted
from dagster_ckpt.errors import CheckpointError, Corrupt, NotFound, Unavailable
from dagster_ckpt.operations.care.clean import plan_cleaning
from dagster_ckpt.operations.care.repair import FoundOutside, find_outside
from dagster_ckpt.operations.deployment import Deployment, load_record
from dagster_ckpt.operations.snapshots.catalog import list_storage
from dagster_ckpt.operations.snapshots.contents import missing_files
from dagster_ckpt.operations.snapshots.facts import entries_of
from dagster_ckpt.runtime.restore_facts import known_history
from dagster_ckpt.spark.snapshot.stored import open_snapshot


class FindingKind(StrEnum):
    """Kind of a finding, from bad to harmless."""

    RECORD_UNREADABLE = "record_unreadable"
    """The pipeline's record in the store is damaged: nothing else can be said about it."""
    LOST_RECORD = "lost_record"
    """The storage holds snapshots of a pipeline that the store does not know: it was lost, or is another one."""
    BEHIND = "behind"
    """Storage or tables have seen more of a pipeline than the store knows: it was put back to an older copy."""
    MISSING = "missing"
    """A snapshot the store promises lacks files: it cannot be restored."""
    DAMAGED = "damaged"
    """Its metadata or a file list cannot be read."""
    OVERDUE = "overdue"
    """A pending checkpoint is past its deadline: the attempt that took it has died."""
    ORPHANED = "orphaned"
    """Files of checkpoints that are over, used by none: ``clean`` removes them."""
    UNRECORDED = "unrecorded"
    """A complete snapshot the store does not know: it can be restored by its URI, or imported."""
    UNKNOWN = "unknown"
    """Files that cannot be assigned: they stay."""
    LATE_TABLES = "late_tables"
    """Not all tables show the newest checkpoint: one refuses its rows, or they are being published."""
    PENDING_CLEANUP = "pending_cleanup"
    """The next attempt of the pipeline still has files to remove."""

    @property
    def is_trouble(self) -> bool:
        """True where somebody should act: it does not pass by itself, and costs more than room."""
        return self in (
            FindingKind.RECORD_UNREADABLE,
            FindingKind.LOST_RECORD,
            FindingKind.BEHIND,
            FindingKind.MISSING,
            FindingKind.DAMAGED,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found."""

    kind: FindingKind
    pipeline: PipelineId | None
    what: str
    """Snapshot, folder or files it is about."""
    message: str
    advice: str = ""
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything that was looked at."""

    pipelines: tuple[PipelineId, ...]
    snapshots: int
    """Restorable snapshots that were checked."""
    findings: tuple[Finding, ...]
    horizons: tuple[Horizon, ...] = ()
    """For how long each snapshot can be restored, where the pipeline's code was given."""

    @property
    def is_healthy(self) -> bool:
        """True where nobody needs to act."""
        is_near = any(horizon.is_near(NEAR_DAYS) for horizon in self.horizons)
        return not is_near and not any(finding.kind.is_trouble for finding in self.findings)


def diagnose(deployment: Deployment, pipeline: PipelineId | None = None, *, now: float) -> Diagnosis:
    """Compare the store with the storage, for one pipeline or all of them. Raises NotFound, Unavailable."""
    everything = tuple(deployment.store.pipelines())
    chosen = everything if pipeline is None else (pipeline,)
    findings: list[Finding] = []
    outside = find_outside(deployment)
    readable: dict[PipelineId, CoordinatorRecord] = {}
    for name in everything:
        try:
            readable[name] = load_record(deployment.store, name)
        except Corrupt as error:
            findings.append(_unreadable(name, str(error)))
    lost = [name for name in outside if name not in everything and pipeline in (None, name)]
    findings += [_lost(name, outside[name]) for name in lost]
    if pipeline is not None and pipeline not in (*everything, *lost):
        load_record(deployment.store, pipeline)  # says what there is
    for name in chosen:
        if name in readable:
            findings += _behind(readable[name], outside.get(name))
            findings += _of_record(deployment, readable[name], now)
            findings += _of_files(deployment, name, is_store_whole=len(readable) == len(everything))
    if pipeline is None:
        findings += _unrecorded_savepoints(deployment, list(readable.values()))
    snapshots = sum(len(entries_of(readable[name])) for name in chosen if name in readable)
    return Diagnosis(pipelines=chosen, snapshots=snapshots, findings=tuple(sorted(findings, key=_rank)))


def _rank(finding: Finding) -> tuple[int, str]:
    return list(FindingKind).index(finding.kind), finding.what


def _unreadable(pipeline: PipelineId, message: str) -> Finding:
    return Finding(
        kind=FindingKind.RECORD_UNREADABLE,
        pipeline=pipeline,
        what=f"record of {pipeline}",
        message=message,
        advice="restore the store's database; snapshots can be restored by URI meanwhile ('list --from-storage')",
    )


# --- what the world has seen -----------------------------------------------------------------------------------


def _lost(pipeline: PipelineId, outside: FoundOutside) -> Finding:
    return Finding(
        kind=FindingKind.LOST_RECORD,
        pipeline=pipeline,
        what=f"record of {pipeline}",
        message=f"the store has no record, the storage holds {len(outside.snapshots)} of its snapshots",
        advice=f"bring the database back, or build the record again: dagster-ckpt doctor {pipeline} --repair",
    )


def _behind(record: CoordinatorRecord, outside: FoundOutside | None) -> Iterator[Finding]:
    if outside is None or outside.newest is None:
        return
    pipeline = PipelineId(record.pipeline)
    history = known_history(pipeline, record)
    newest = outside.newest
    stored = Seen(
        where="the storage", lineage=newest.lineage, epoch=newest.epoch, checkpoint_id=outside.highest_id
    )
    is_foreign = bool(record.lineage) and not history.owns(stored.lineage)
    if is_foreign or history.is_behind(stored):
        other = (
            f" of another history ({stored.lineage}, the record's is {record.lineage})" if is_foreign else ""
        )
        yield Finding(
            kind=FindingKind.BEHIND,
            pipeline=pipeline,
            what=stored.where,
            message=f"it has seen attempt {stored.epoch}, checkpoint {stored.checkpoint_id}{other}; the record knows "
            f"attempt {record.epoch} and checkpoint {record.next_id - 1}",
            advice="bring the database back; or restore_from a snapshot you choose; or, where the storage is "
            f"ahead: dagster-ckpt doctor {pipeline} --repair",
        )


# --- what the record promises ---------------------------------------------------------------------------------


def _of_record(deployment: Deployment, record: CoordinatorRecord, now: float) -> Iterator[Finding]:
    pipeline = PipelineId(record.pipeline)
    for entry in entries_of(record):
        what = f"{entry.known.key} ({entry.location.uri})"
        try:
            storage = deployment.open_storage(entry.location.base_uri)
            stored = open_snapshot(storage, entry.location.folder, recorded=entry.metadata_checksum)
            missing = missing_files(stored)
        except NotFound as error:
            yield _cannot_restore(FindingKind.MISSING, pipeline, what, str(error))
            continue
        except (Corrupt, Unavailable) as error:
            yield _cannot_restore(FindingKind.DAMAGED, pipeline, what, str(error))
            continue
        if missing:
            rest = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            yield _cannot_restore(FindingKind.MISSING, pipeline, what, f"{'; '.join(missing[:3])}{rest}")
    yield from (_overdue(pipeline, p, now) for p in record.pending if p.deadline_at < now)
    if record.late_tables:
        yield Finding(
            kind=FindingKind.LATE_TABLES,
            pipeline=pipeline,
            what=f"checkpoint {record.latest_completed}",
            message=record.late_tables,
            advice="a running pipeline tries again with each checkpoint; the log of its last run says which table, "
            "and why",
        )
    if record.cleanup:
        ids = ", ".join(str(c.checkpoint_id) for c in record.cleanup)
        yield Finding(
            kind=FindingKind.PENDING_CLEANUP,
            pipeline=pipeline,
            what=f"checkpoints {ids}",
            message="their files are waiting to be removed",
            advice="the next run of the pipeline does it; 'clean' removes what is surely over",
        )


def _cannot_restore(kind: FindingKind, pipeline: PipelineId | None, what: str, message: str) -> Finding:
    return Finding(
        kind=kind,
        pipeline=pipeline,
        what=what,
        message=message,
        advice="restore from another one; bring the files back from a backup if you have them",
    )


def _overdue(pipeline: PipelineId, pending: PendingRecord, now: float) -> Finding:
    return Finding(
        kind=FindingKind.OVERDUE,
        pipeline=pipeline,
        what=f"checkpoint {pending.checkpoint_id}",
        message=f"its deadline passed {ago(now - pending.deadline_at)} and nobody has ended it",
        advice="start the pipeline again: the new attempt takes over and aborts it",
    )


# --- what the storage holds -----------------------------------------------------------------------------------


def _of_files(deployment: Deployment, pipeline: PipelineId, *, is_store_whole: bool) -> Iterator[Finding]:
    if not is_store_whole:
        return  # another pipeline's record may name these files: nothing can be called left over
    try:
        plan = plan_cleaning(deployment, pipeline)
    except CheckpointError as error:
        yield _cannot_restore(FindingKind.DAMAGED, pipeline, deployment.storage.base_uri, str(error))
        return
    if plan.files:
        yield Finding(
            kind=FindingKind.ORPHANED,
            pipeline=pipeline,
            what=f"{counted(plan.files, 'file')} of checkpoints that are over",
            message=_some([*(c.key for c in plan.removable), *(f.folder for f in plan.folders)]),
            advice=f"dagster-ckpt clean {pipeline}",
            files=plan.files,
            bytes=plan.bytes,
        )
    unknown = [c for c in plan.classified if c.disposition is Disposition.KEEP_UNKNOWN]
    foreign = [c for c in unknown if paths.CheckpointPaths(pipeline).number_of(c.key) is None]
    if foreign:
        yield Finding(
            kind=FindingKind.UNKNOWN,
            pipeline=pipeline,
            what=f"{counted(len(foreign), 'file')}",
            message=f"{foreign[0].reason}: {_some([c.key for c in foreign])}",
            files=len(foreign),
            bytes=sum(c.size for c in foreign),
        )
    for location in plan.unrecorded:
        yield Finding(
            kind=FindingKind.UNRECORDED,
            pipeline=pipeline,
            what=location.uri,
            message="a complete checkpoint that the store does not know",
            advice=f"restore by its URI, or keep it: dagster-ckpt import {location.uri}",
        )


def _some(names: list[str]) -> str:
    rest = f", and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{rest}"


def _unrecorded_savepoints(deployment: Deployment, records: list[CoordinatorRecord]) -> Iterator[Finding]:
    """Look into the savepoint folder: a savepoint of a store that was lost, or of another deployment."""
    if not deployment.savepoint_dir:
        return
    known = [entry.location.uri for record in records for entry in entries_of(record)]
    for folder in list_storage(deployment.open_storage(deployment.savepoint_dir)):
        if any(same_place(folder.uri, uri) for uri in known):
            continue
        if folder.metadata is None:
            yield _cannot_restore(FindingKind.DAMAGED, None, folder.uri, folder.problem)
        elif folder.metadata.kind.is_savepoint:
            yield Finding(
                kind=FindingKind.UNRECORDED,
                pipeline=PipelineId(folder.metadata.pipeline),
                what=folder.uri,
                message="a savepoint that the store does not know",
                advice=f"dagster-ckpt import --no-copy {folder.uri}, or dispose of it by its URI",
            )
