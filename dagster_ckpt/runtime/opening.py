"""How an attempt begins: attach to the epoch its run holds, or choose what to start from and claim the next epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from dagster_ckpt.core import paths
from dagster_ckpt.core.config import ClaimMode, RestoreOptions
from dagster_ckpt.core.finishing import abort_all
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId
from dagster_ckpt.core.metadata_text import decode_metadata
from dagster_ckpt.core.reasons import CheckpointFailureReason
from dagster_ckpt.core.record import CompletedRecord, CoordinatorRecord, TriggerRecord, parse_record
from dagster_ckpt.core.recovery import (
    Adopt,
    AttemptEnd,
    DirectoryState,
    Fresh,
    Materialise,
    Origin,
    PreviousAttempt,
    RestoreDecision,
    RestoreFacts,
    RestorePurpose,
    choose_restore_point,
    line_after,
    materialise,
    purpose_for,
)
from dagster_ckpt.core.state import CoordinatorState, Decision, Now, Setup, reconciled
from dagster_ckpt.core.statistics import CheckpointStatistics
from dagster_ckpt.core.tasks import TaskTable
from dagster_ckpt.errors import Corrupt, Fenced, NotFound
from dagster_ckpt.ports import CheckpointStorage, Committed, CoordinatorStore, HistoryRow

SEEDED_ROWS = 200
"""So many rows of the history are taken up, so that their status can still be changed."""


def directory_state(path: str) -> DirectoryState:
    """Return what is found of a working directory on this machine's file system."""
    return DirectoryState.INTACT if path and Path(path).is_dir() else DirectoryState.MISSING


class Ownership(StrEnum):
    """What opening does where the owner holds the newest epoch already."""

    ATTACH = "attach"
    """Take part in it: another process of the same run."""
    NEW_ATTEMPT = "new_attempt"
    """Claim the next epoch: what is left of the last one, of whichever run, is fenced."""
    RESTART = "restart"
    """Claim the next epoch only while the owner still holds the newest one: a fenced run must not fence its heir."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What opening needs."""

    setup: Setup
    store: CoordinatorStore
    storage: CheckpointStorage
    storage_at: Callable[[str], CheckpointStorage]
    owner: str
    root: str
    """First run of a chain of retries; the owner itself where it is no retry."""
    restore: RestoreOptions
    purpose: RestorePurpose
    directory_state: Callable[[str], DirectoryState]
    epochs_below: Callable[[], int]
    """Returns the newest epoch that tables know: asked where the store has no record, because it may have been lost."""
    check: Callable[[RestoreDecision], None]
    """Raises where what is chosen cannot be restored: the claim is not made then."""
    ownership: Ownership = Ownership.ATTACH


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """An attempt that owns its epoch."""

    state: CoordinatorState
    version: int
    restored: RestoreDecision
    """Attached to an epoch whose stages are restored: its working directory is adopted."""
    claimed: Decision | None
    """What claiming led to: effects to perform."""


def open_attempt(opening: Opening, now: Callable[[], Now]) -> Opened:
    """Attach to the epoch the owner holds, else claim the next one.

    Raises InvalidRequest, NotFound, Corrupt, Unavailable, OutcomeUnknown: nothing was changed or, for the last, the
    claim may have happened, which the next claim finds out.
    """
    while True:
        stored = opening.store.load(opening.setup.pipeline)
        if stored is None:
            record, version = _first_record(opening), 0
        else:
            record, version = parse_record(stored.body), stored.version
        owns = record.owner == opening.owner and record.epoch > 0
        if owns and opening.ownership is Ownership.ATTACH:
            return Opened(
                state=_attached(opening, record, now()),
                version=version,
                restored=_restored_before(opening, record),
                claimed=None,
            )
        if opening.ownership is Ownership.RESTART and not owns:
            raise Fenced(
                f"run {opening.owner!r} of pipeline {record.pipeline!r} was fenced: run {record.owner!r} owns it with "
                f"epoch {record.epoch}. This run must stop"
            )
        decision, restored = _claim(opening, record, now())
        opening.check(restored)
        body = decision.state.record.model_dump_json()
        rows = [history_row(opening.setup.pipeline, record.epoch, s) for s in decision.history]
        outcome = opening.store.compare_and_set(opening.setup.pipeline, version, body, rows)
        if isinstance(outcome, Committed):
            return Opened(state=decision.state, version=outcome.version, restored=restored, claimed=decision)


def _is_try_of(record: CoordinatorRecord, opening: Opening) -> bool:
    """Tell whether the record's owner and the one that opens are tries of the same run."""
    return record.owner == opening.owner or (record.root == opening.root and bool(opening.root))


def _first_record(opening: Opening) -> CoordinatorRecord:
    """Return an empty record whose ids begin above every checkpoint found in the storage.

    There are some when the database was lost or moved: their files are never written over, and the tables, which
    remember the attempts of before, do not take the new one for an old one.
    """
    pipeline = opening.setup.pipeline
    layout = paths.CheckpointPaths(pipeline)
    found = (layout.number_of(o.key) for o in opening.storage.list(pipeline))
    highest = max((number for number in found if number is not None), default=0)
    return CoordinatorRecord(pipeline=pipeline, next_id=highest + 1, epoch=opening.epochs_below())


def _attached(opening: Opening, record: CoordinatorRecord, now: Now) -> CoordinatorState:
    epoch = CoordinatorEpoch(record.epoch)
    state = CoordinatorState(
        setup=opening.setup,
        record=record.model_copy(update={"last_completed_at": None}),
        tasks=TaskTable.of(opening.setup.graph, epoch),
        statistics=_seeded(opening),
        is_started=False,
    )
    return reconciled(state, record, now)


def _restored_before(opening: Opening, record: CoordinatorRecord) -> RestoreDecision:
    """Return what the attempt was restored from; until it was, another process may do it over."""
    facts = _facts(opening, record)
    if record.status_epoch != record.epoch:
        return _restore_decision(opening, facts)
    return Adopt(
        working_directory=record.working_directory,
        from_epoch=CoordinatorEpoch(record.epoch),
        reason="another process of this run has restored it",
        next_checkpoint_id=facts.next_checkpoint_id,
        force_full=record.force_full,
    )


def _seeded(opening: Opening) -> dict[CheckpointId, CheckpointStatistics]:
    found: dict[CheckpointId, CheckpointStatistics] = {}
    for row in opening.store.history(opening.setup.pipeline, limit=SEEDED_ROWS):
        parsed = parse_row(row)
        if parsed is not None:
            found[row.checkpoint_id] = parsed
    return found


def parse_row(row: HistoryRow) -> CheckpointStatistics | None:
    """Return the numbers in a history row; None for one another version wrote."""
    try:
        return CheckpointStatistics.model_validate_json(row.body)
    except ValueError:
        return None


def history_row(pipeline: PipelineId, epoch: int, statistics: CheckpointStatistics) -> HistoryRow:
    """Return the row a checkpoint's numbers are stored as."""
    return HistoryRow(
        pipeline=pipeline,
        checkpoint_id=CheckpointId(statistics.checkpoint_id),
        epoch=CoordinatorEpoch(epoch),
        kind="savepoint" if statistics.kind.is_savepoint else "checkpoint",
        status=statistics.status.value,
        triggered_at=statistics.triggered_at,
        ended_at=statistics.ended_at,
        body=statistics.trimmed().model_dump_json(),
    )


# --- claim --------------------------------------------------------------------------------------------------


def _claim(opening: Opening, record: CoordinatorRecord, now: Now) -> tuple[Decision, RestoreDecision]:
    """Choose what to start from, take the next epoch, abort what the previous attempt left pending."""
    facts = _facts(opening, record)
    restored = _restore_decision(opening, facts)
    before = reconciled(
        CoordinatorState(
            setup=opening.setup,
            record=record,
            tasks=TaskTable.of(opening.setup.graph, CoordinatorEpoch(record.epoch)),
            statistics=_seeded(opening) if record.epoch else {},
        ),
        record,
        now,
    )
    reason = CheckpointFailureReason.JOB_FAILOVER_REGION
    why = f"Run {opening.owner!r} took over the pipeline before the checkpoint was complete."
    decision = abort_all(before, reason, why, now)
    state = decision.state
    epoch = CoordinatorEpoch(record.epoch + 1)
    claimed = state.record.model_copy(
        update={
            "epoch": epoch,
            "owner": opening.owner,
            "root": opening.root,
            "owner_since": record.owner_since if _is_try_of(record, opening) else epoch,
            "next_id": restored.next_checkpoint_id,
            "last_completed_at": None,
            "job_failure": "",
            "lease_until": None,
            "mailbox": (),
            "cleanup": tuple(c.model_copy(update={"writers": ()}) for c in state.record.cleanup),
            "line": line_after(restored, opening.restore, facts, epoch),
            **_restored_changes(state.record, restored, epoch, now),
        }
    )
    state = replace(
        state, record=claimed, tasks=TaskTable.of(opening.setup.graph, epoch), last_completion=None
    )
    return replace(decision, state=state), restored


def _restored_changes(
    record: CoordinatorRecord, restored: RestoreDecision, epoch: CoordinatorEpoch, now: Now
) -> dict[str, object]:
    match restored:
        case Fresh():
            return {"force_full": False, "latest_completed": None}
        case Adopt():
            return {"force_full": restored.force_full}
        case Materialise():
            pass
    number = restored.metadata.checkpoint_id
    counts = record.counts.model_copy(update={"restored": record.counts.restored + 1})
    changes: dict[str, object] = {
        "force_full": restored.force_full,
        "latest_completed": number,
        "restored_id": number,
        "restored_at": now.wall,
        "counts": counts,
    }
    if restored.origin is Origin.STORE:
        return changes
    if restored.claim_mode is not ClaimMode.CLAIM:
        changes["highest_not_claimed"] = max(record.highest_not_claimed or 0, number)
    others = tuple(c for c in record.completed if c.checkpoint_id != number)
    entry = _restored_entry(restored, epoch)
    changes["completed"] = tuple(sorted((*others, entry), key=lambda c: c.checkpoint_id))
    if restored.claim_mode is ClaimMode.CLAIM:
        changes["savepoints"] = tuple(s for s in record.savepoints if s.checkpoint_id != number)
    return changes


def _restored_entry(restored: Materialise, epoch: CoordinatorEpoch) -> CompletedRecord:
    metadata = restored.metadata
    return CompletedRecord(
        checkpoint_id=metadata.checkpoint_id,
        properties=restored.properties,
        location=restored.location,
        epoch=epoch,
        run_id=metadata.run_id,
        triggered_at=metadata.triggered_at,
        completed_at=metadata.completed_at,
        trigger=TriggerRecord(periodic=False, name=metadata.name, labels=metadata.labels, note=metadata.note),
        bytes_full=sum(s.metrics.bytes_full for s in metadata.stages),
        bytes_new=sum(s.metrics.bytes_new for s in metadata.stages),
        taken_as=metadata.kind,
    )


def _facts(opening: Opening, record: CoordinatorRecord) -> RestoreFacts:
    previous = None
    if record.working_directory:
        previous = PreviousAttempt(
            epoch=CoordinatorEpoch(record.status_epoch),
            working_directory=record.working_directory,
            ended=AttemptEnd.CLEAN if record.clean else AttemptEnd.UNCLEAN,
            directory=opening.directory_state(record.working_directory),
            shape=record.shape,
        )
    return RestoreFacts(
        pipeline=opening.setup.pipeline,
        checkpoints=[c.known for c in record.completed],
        savepoints=[s.known for s in record.savepoints],
        previous=previous,
        line=record.line,
        next_checkpoint_id=CheckpointId(record.next_id),
        tries_since=CoordinatorEpoch(record.owner_since) if _is_try_of(record, opening) else None,
        has_driver_state=bool(opening.setup.hooks or opening.setup.coordinators),
    )


def _restore_decision(opening: Opening, facts: RestoreFacts) -> RestoreDecision:
    choice = choose_restore_point(opening.restore, facts, opening.setup.graph)
    if isinstance(choice, (Fresh, Adopt)):
        return choice
    storage = opening.storage_at(choice.location.base_uri)
    key = paths.metadata(choice.location.folder)
    try:
        content = storage.read(key)
    except NotFound as error:
        if choice.known is None:
            raise NotFound(
                f"{choice.location.uri} is no checkpoint or savepoint: it has no {paths.METADATA_FILE} file"
            ) from error
        raise Corrupt(
            f"{choice.known.key} is recorded at {choice.location.uri}, but its metadata is gone: "
            "restore from another snapshot with restore_from"
        ) from error
    metadata = decode_metadata(content, name=f"{storage.base_uri}/{key}")
    return materialise(
        choice,
        metadata,
        options=opening.restore,
        facts=facts,
        graph=opening.setup.graph,
        config=opening.setup.config,
        purpose=purpose_for(opening.purpose, choice, metadata, facts),
    )
