"""Claim of an epoch: attach to the one the run holds, or choose what to start from and take the next.

A dead attempt is ended from another process without claiming the pipeline: one compare-and-set on the very record the
verdict was made on. Losing it means that someone alive acts, and nothing is done. The next attempt deletes its files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dagster_ckpt.core.checkpoint.line import marked, revocable, without_refused_restore
from dagster_ckpt.core.checkpoint.record import CompletedRecord, CoordinatorRecord
from dagster_ckpt.core.checkpoint.tasks import TaskTable
from dagster_ckpt.core.config import ClaimMode
from dagster_ckpt.core.coordinator.completion import abort_all
from dagster_ckpt.core.coordinator.effects import CoordinatorEvent, Tell
from dagster_ckpt.core.coordinator.inputs import Closing, TimersFired
from dagster_ckpt.core.coordinator.state import CoordinatorState, Decision, Now, Setup, reconciled
from dagster_ckpt.core.coordinator.transitions import decide
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch
from dagster_ckpt.core.messages import CheckpointFailureReason
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.core.restore.choice import Adopt, Fresh, Restore, RestoreDecision
from dagster_ckpt.core.restore.facts import Origin
from dagster_ckpt.core.restore.from_snapshot import line_after
from dagster_ckpt.errors import Fenced
from dagster_ckpt.ports import AuditRow
from dagster_ckpt.runtime.attempt_setup import AttemptSetup, Ownership
from dagster_ckpt.runtime.record_store import (
    NO_RECORD,
    LoadedRecord,
    Overtaken,
    RecordChange,
    RecordStore,
    history_row,
    restored_by,
)
from dagster_ckpt.runtime.relocation import at_home
from dagster_ckpt.runtime.restore_facts import (
    World,
    check_history,
    decide_restore,
    gather_facts,
    known_history,
    look_around,
)

LINEAGES_REMEMBERED = 100
SEEDED_ROWS = 200
"""So many rows of the history are taken up, so that their status can still be changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """An attempt that owns its epoch."""

    state: CoordinatorState
    version: int = NO_RECORD
    """Of the record as stored now."""
    restored: RestoreDecision
    """Attached to an epoch whose stages are restored: its working directory is adopted."""
    claimed: Decision | None
    """What claiming led to: effects to perform."""


def open_attempt(setup: AttemptSetup, check: Callable[[RestoreDecision], None]) -> Opened:
    """Attach to the epoch the owner holds, else claim the next one, unless ``check`` raises.

    Raises InvalidRequest, NotFound, Corrupt, Unavailable, OutcomeUnknown: nothing was changed or, for the last, the
    claim may have happened, which the next claim finds out. And Occupied, where ``setup.admit`` does.
    """

    found = setup.records.load(setup.graph.pipeline)
    attaches = setup.ownership is Ownership.ATTACH and found is not None and found.record.owner == setup.owner
    world = World() if attaches else look_around(setup)

    def open_on(loaded: LoadedRecord | None) -> RecordChange[Opened]:
        record = _first_record(setup) if loaded is None else loaded.record
        owns = record.owner == setup.owner and record.epoch > 0
        if owns and setup.ownership is Ownership.ATTACH:
            state, restored = _attached(setup, record, setup.now()), _restored_before(setup, record)
            return RecordChange(answer=Opened(state=state, restored=restored, claimed=None), record=None)
        if setup.ownership is Ownership.RESTART and not owns:
            raise Fenced(
                f"run {setup.owner!r} of pipeline {record.pipeline!r} was fenced: run {record.owner!r} owns it with "
                f"epoch {record.epoch}. This run must stop"
            )
        setup.admit(record)
        check_history(setup, world, None if loaded is None else record)
        now = setup.now()
        decision, restored = _claim(setup, record, world, now)
        check(restored)
        return RecordChange(
            answer=Opened(state=decision.state, restored=restored, claimed=decision),
            record=decision.state.record,
            history=[history_row(setup.graph.pipeline, record.epoch, s) for s in decision.history],
            audit=[] if setup.is_try_of(record) else _audit(setup, restored, now),
        )

    opened, version = setup.records.transact(setup.graph.pipeline, open_on)
    return replace(opened, version=version)


def _first_record(setup: AttemptSetup) -> CoordinatorRecord:
    """Return a record with what its pipeline's former names have left to be done: orders for quarantined rows."""
    former = (setup.records.record(name) for name in setup.graph.previous_names)
    left = next((one.requeue for one in former if one is not None), ())
    return CoordinatorRecord(pipeline=setup.graph.pipeline, requeue=left)


def _attached(setup: AttemptSetup, record: CoordinatorRecord, now: Now) -> CoordinatorState:
    epoch = CoordinatorEpoch(record.epoch)
    state = CoordinatorState(
        setup=setup.decisions,
        record=record.model_copy(update={"last_completed_at": None}),
        tasks=TaskTable.of(setup.graph, epoch),
        statistics=setup.records.statistics(setup.graph.pipeline, limit=SEEDED_ROWS),
        is_started=False,
    )
    return reconciled(state, record, now)


def _restored_before(setup: AttemptSetup, record: CoordinatorRecord) -> RestoreDecision:
    """Return the decision that the attempt was restored by; until it was, another process may do it over."""
    facts = gather_facts(setup, record)
    if record.started_epoch != record.epoch:
        return decide_restore(setup, facts)
    return Adopt(
        working_directory=record.working_directory,
        reason="another process of this run has restored it",
        next_checkpoint_id=facts.next_checkpoint_id,
        force_full=record.force_full,
    )


def _audit(setup: AttemptSetup, restored: RestoreDecision, now: Now) -> list[AuditRow]:
    return restored_by(
        setup.operator,
        restored,
        setup.restore,
        pipeline=setup.graph.pipeline,
        run_id=setup.owner,
        now=now.wall,
    )


# --- claim --------------------------------------------------------------------------------------------------


def _claim(
    setup: AttemptSetup, record: CoordinatorRecord, world: World, now: Now
) -> tuple[Decision, RestoreDecision]:
    """Choose what to start from, take the next epoch, abort what the previous attempt left pending.

    Epoch and checkpoint ids go on above everything seen: files in the storage are never written over, and sinks, which
    remember the attempts of before, do not take a new one for an old one.
    """
    record = at_home(setup, without_refused_restore(record))
    facts = gather_facts(setup, record)
    is_behind = world.epoch > record.epoch or world.checkpoint_id >= record.next_id
    known = known_history(setup.graph.pipeline, record)
    is_foreign = any(not known.owns(lineage) for lineage in world.lineages)
    if is_behind or is_foreign:
        # Chosen by a person: the directory of the record's last attempt is not the newest one's, or belongs to other
        # sinks. A snapshot is compared with every sink, publish by publish.
        facts = replace(
            facts,
            previous=None,
            next_checkpoint_id=CheckpointId(max(record.next_id, world.checkpoint_id + 1)),
        )
    restored = decide_restore(setup, facts)
    before = _before(setup, record, now)
    reason = CheckpointFailureReason.JOB_FAILOVER_REGION
    why = f"Run {setup.owner!r} took over the pipeline before the checkpoint was complete."
    decision = abort_all(before, reason, why, now)
    state = decision.state
    epoch = CoordinatorEpoch(max(record.epoch, world.epoch) + 1)
    claimed = state.record.model_copy(
        update={
            "epoch": epoch,
            "is_rebuilt": False,
            "store_place": setup.store_place or record.store_place,
            **_history_changes(setup, record, restored, world, is_behind=is_behind),
            "owner": setup.owner,
            "root": setup.root or setup.owner,
            "owner_since": record.owner_since if setup.is_try_of(record) else epoch,
            "next_id": restored.next_checkpoint_id,
            "last_completed_at": None,
            "job_failure": "",
            "settings": setup.decisions.config.model_dump(mode="json", exclude_defaults=True),
            "mailbox": record.mailbox if record.owner == setup.owner else (),
            **setup.lease_from(now),
            "cleanup": tuple(c.model_copy(update={"writers": ()}) for c in state.record.cleanup),
            "line": line_after(restored, facts, epoch),
            **_restored_changes(state.record, restored, epoch, now),
        }
    )
    state = replace(
        state,
        record=revocable(record, _left_behind(record, claimed)),
        tasks=TaskTable.of(setup.graph, epoch),
        last_completion=None,
    )
    return replace(decision, state=state), restored


def _history_changes(
    setup: AttemptSetup,
    record: CoordinatorRecord,
    restored: RestoreDecision,
    world: World,
    *,
    is_behind: bool,
) -> dict[str, object]:
    """Return the lineage from now on: a new one where the store did not know all that the world has seen."""
    taken = (restored.metadata.lineage, *restored.metadata.lineages) if isinstance(restored, Restore) else ()
    known = (record.lineage, *record.lineages)
    others = tuple(one for one in dict.fromkeys((*world.lineages, *taken)) if one and one not in known)
    if record.lineage and not is_behind and not others:
        return {}
    before = tuple(one for one in (*known, *others) if one)
    return {"lineage": setup.new_lineage(), "lineages": before[:LINEAGES_REMEMBERED]}


def _before(setup: AttemptSetup, record: CoordinatorRecord, now: Now) -> CoordinatorState:
    """Return the state that the previous attempt left."""
    known = setup.records.statistics(setup.graph.pipeline, limit=SEEDED_ROWS) if record.epoch else {}
    tasks = TaskTable.of(setup.graph, CoordinatorEpoch(record.epoch))
    state = CoordinatorState(setup=setup.decisions, record=record, tasks=tasks, statistics=known)
    return reconciled(state, record, now)


def _left_behind(before: CoordinatorRecord, claimed: CoordinatorRecord) -> CoordinatorRecord:
    """Return the claimed record with those marked that a new line, where it begins one, does not come from."""
    line = claimed.line
    if line is None or line == before.line or line.base is None:
        return claimed
    after = marked(
        (*claimed.completed, *claimed.savepoints),
        base=line.base.checkpoint_id,
        epoch=line.since,
        known=(*before.completed, *before.savepoints),
        before=before.line,
    )
    retained = len(claimed.completed)
    return claimed.model_copy(update={"completed": after[:retained], "savepoints": after[retained:]})


def _restored_changes(
    record: CoordinatorRecord, restored: RestoreDecision, epoch: CoordinatorEpoch, now: Now
) -> dict[str, object]:
    match restored:
        case Fresh():
            return {"force_full": False, "latest_completed": None, "restored_id": None, "restored_at": None}
        case Adopt():
            return {"force_full": restored.force_full}
        case Restore():
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
    entry = CompletedRecord.of(
        restored.metadata,
        restored.location,
        restored.properties,
        epoch=epoch,
        taken_as=restored.metadata.kind,
        metadata_checksum=restored.metadata_checksum,
    )
    changes["completed"] = tuple(sorted((*others, entry), key=lambda c: c.checkpoint_id))
    if restored.claim_mode is ClaimMode.CLAIM:
        changes["savepoints"] = tuple(s for s in record.savepoints if s.checkpoint_id != number)
    return changes


_SETTLED_ROWS = 20
"""Newest rows of the history: pending and retained checkpoints are among them, or their numbers stay as they are."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The attempt was settled; ``events`` are those that listeners would have been told."""

    events: tuple[CoordinatorEvent, ...]


def end_attempt(
    setup: Setup, store: RecordStore, seen: LoadedRecord, status: RunStatus, *, now: Now
) -> Settled | Overtaken:
    """End the attempt whose record is ``seen``: abort what it left pending, keep or drop what it retained.

    Raises Unavailable (nothing happened), OutcomeUnknown, Corrupt.
    """
    return _settle(setup, store, seen, Closing(status, clean=False), now)


def expire_overdue(setup: Setup, store: RecordStore, seen: LoadedRecord, *, now: Now) -> Settled | Overtaken:
    """Expire the pending checkpoints of ``seen`` that are over their deadline. Raises as ``end_attempt`` does."""
    return _settle(setup, store, seen, TimersFired(), now)


def _settle(
    setup: Setup, store: RecordStore, seen: LoadedRecord, event: Closing | TimersFired, now: Now
) -> Settled | Overtaken:
    record = seen.record
    epoch = CoordinatorEpoch(record.epoch)
    state = CoordinatorState(
        setup=setup,
        record=record,
        tasks=TaskTable.of(setup.graph, epoch),
        statistics=store.statistics(setup.pipeline, limit=_SETTLED_ROWS),
    )
    decision = decide(reconciled(state, record, now), event, now)
    history = [history_row(setup.pipeline, epoch, row) for row in decision.history]
    # The lease stays as the process left it: only who ends in order gives it back.
    settled = decision.state.record.model_copy(update={"lease_until": record.lease_until})
    outcome = store.write(setup.pipeline, seen.version, settled, history)
    if isinstance(outcome, Overtaken):
        return outcome
    return Settled(tuple(effect.event for effect in decision.effects if isinstance(effect, Tell)))
