"""Snapshot that a check looks at, and the way of its answer to that snapshot's partition.

One check speaks for all snapshots, and Dagster shows its newest result only. So each result carries those before it: a
snapshot that was found broken stays red until it is found well, or is gone, whatever others are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.restore.choice import latest_snapshot, snapshot_at
from dagster_ckpt.core.restore_point import Latest, Nothing, restore_point
from dagster_ckpt.dagster.reports.asset import checkpoints_asset_key
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.errors import CheckpointError, NotFound

if TYPE_CHECKING:
    from dagster_ckpt.dagster.reports.asset import Restorable
    from dagster_ckpt.operations.snapshots.catalog import FoundSnapshot

CHECKPOINT = "checkpoint"
BROKEN = "broken"
"""Metadata of a result: snapshots that are broken, this one and others, and what was said of them."""
_LOOKED_BACK = 100
"""Results that are looked at: each carries those before it, and several may be found at once."""
_SHOWN = 500


def with_standing(
    context: dg.OpExecutionContext,
    resource: CheckpointCoordinatorResource,
    pipeline: PipelineId,
    check: str,
    result: dg.AssetCheckResult,
) -> dg.AssetCheckResult:
    """Return a check's result with the snapshots that were found broken before: it passes only where there are none."""
    key = _text(result.metadata.get(CHECKPOINT))
    retained = _retained(resource, pipeline)
    standing = {
        name: said
        for name, said in _found_before(context.instance, pipeline, check).items()
        if name in retained and name != key
    }
    mine = {} if result.passed or not key else {key: (result.description or "")[:_SHOWN]}
    broken = {**mine, **standing}
    if not broken:
        return result
    others = "; ".join(f"{name} is still broken: {said}" for name, said in standing.items())
    return dg.AssetCheckResult(
        passed=False,
        severity=result.severity,
        description="; ".join(text for text in (result.description, others) if text),
        metadata={**result.metadata, BROKEN: dg.MetadataValue.json(broken)},
    )


def _retained(resource: CheckpointCoordinatorResource, pipeline: PipelineId) -> set[str]:
    from dagster_ckpt.runtime.record_store import RecordStore

    record = RecordStore(resource.store()).record(pipeline)
    return set() if record is None else {e.known.key for e in (*record.completed, *record.savepoints)}


def _found_before(instance: dg.DagsterInstance, pipeline: PipelineId, check: str) -> dict[str, str]:
    """Return the broken snapshots, by the newest verdict on each."""
    history = instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(checkpoints_asset_key(pipeline), check),
        limit=_LOOKED_BACK,
        status={AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED},
    )
    said: dict[str, str] = {}
    for record in history:
        event = None if record.event is None else record.event.dagster_event
        found = None if event is None else event.event_specific_data
        if not isinstance(found, dg.AssetCheckEvaluation):
            continue
        key, broken = _text(found.metadata.get(CHECKPOINT)), _broken(found.metadata.get(BROKEN))
        if key and not broken and not found.passed:
            broken = {key: (found.description or "")[:_SHOWN]}  # of a version that carried nothing
        for name, text in {**({key: ""} if key else {}), **broken}.items():
            said.setdefault(name, text)
    return {name: text for name, text in said.items() if text}


def _text(value: Any) -> str:
    return str(value.value) if isinstance(value, dg.TextMetadataValue) else str(value or "")


def _broken(value: Any) -> Mapping[str, str]:
    found = value.value if isinstance(value, dg.JsonMetadataValue) else {}
    return found if isinstance(found, dict) else {}


NEWEST_SAVEPOINT = "newest savepoint"


class CheckConfig(dg.Config):
    """Config of a check."""

    checkpoint: str = "latest"
    """``latest``, ``newest savepoint`` (where there is none the latest), a key such as ``chk-31`` or ``savepoint-7``,
    or the path or URI of one."""


def target_of(
    resource: CheckpointCoordinatorResource, pipeline: PipelineId, wanted: str
) -> FoundSnapshot | dg.AssetCheckResult:
    """Return the checkpoint ``wanted`` names, or the result of a check that has nothing to look at yet.

    Raises Corrupt, Unavailable, InvalidRequest; NotFound for anything but ``latest``.
    """
    from dagster_ckpt.operations.snapshots.catalog import find_snapshot

    word = _word(wanted)
    try:
        if word == NEWEST_SAVEPOINT:
            return find_snapshot(resource.deployment(), _newest_savepoint(resource, pipeline), pipeline)
        return find_snapshot(resource.deployment(), wanted, pipeline)
    except NotFound as error:
        if names_one(wanted):
            raise
        return dg.AssetCheckResult(passed=True, description=str(error))


def unreadable(
    resource: CheckpointCoordinatorResource, pipeline: PipelineId, wanted: str, error: CheckpointError
) -> dg.AssetCheckResult:
    """Return the result for a snapshot that cannot be opened, under its key where the record has it."""
    key = _key_of(resource, pipeline, wanted)
    metadata = {"checkpoint": key} if key else {}
    return dg.AssetCheckResult(passed=False, description=str(error), metadata=metadata)


def _key_of(resource: CheckpointCoordinatorResource, pipeline: PipelineId, wanted: str) -> str:
    """Return the key of the snapshot a check was to look at; empty: the record does not have it."""
    from dagster_ckpt.operations.snapshots.catalog import absolute
    from dagster_ckpt.runtime.record_store import RecordStore
    from dagster_ckpt.runtime.restore_facts import facts_of

    record = RecordStore(resource.store()).record(pipeline)
    if record is None:
        return ""
    text = _newest_savepoint(resource, pipeline) if _word(wanted) == NEWEST_SAVEPOINT else wanted
    try:
        point = absolute(restore_point(text), resource.open_storage)
        facts = facts_of(record)
        if isinstance(point, Nothing):
            return ""
        chosen = latest_snapshot(facts) if isinstance(point, Latest) else snapshot_at(point, facts)
    except CheckpointError:
        return ""
    return "" if chosen is None or chosen.known is None else chosen.known.key


def _word(wanted: str) -> str:
    return wanted.strip().lower().replace("_", " ")


def names_one(wanted: str) -> bool:
    """Return whether one snapshot is named, and not whichever is the newest."""
    return _word(wanted) not in ("latest", NEWEST_SAVEPOINT)


def _newest_savepoint(resource: CheckpointCoordinatorResource, pipeline: PipelineId) -> str:
    """Return the key of the newest savepoint; ``latest`` where there is none."""
    from dagster_ckpt.runtime.record_store import RecordStore

    record = RecordStore(resource.store()).record(pipeline)
    savepoints = () if record is None else record.savepoints
    newest = max(savepoints, key=lambda s: (s.completed_at, s.checkpoint_id), default=None)
    return "latest" if newest is None else newest.known.key


def was_subsumed(resource: CheckpointCoordinatorResource, pipeline: PipelineId, found: FoundSnapshot) -> bool:
    """Return whether the snapshot has left the record since it was found: then its files may be gone, and rightly.

    A running stream subsumes its checkpoints while they are read.
    """
    from dagster_ckpt.runtime.record_store import RecordStore

    if found.known is None:
        return False
    known, records = found.known, RecordStore(resource.store())
    # A fork retains another pipeline's snapshot.
    retained = (records.record(name) for name in {pipeline, found.pipeline})
    entries = (entry for one in retained if one is not None for entry in (*one.completed, *one.savepoints))
    return not any(entry.location == known.location for entry in entries)


def subsumed_meanwhile(key: str) -> dg.AssetCheckResult:
    """Return the result for a checkpoint that has gone while it was read: nothing is known to be wrong."""
    return dg.AssetCheckResult(
        passed=True,
        description=f"{key} was subsumed by a newer one, and deleted, while it was read: nothing is known to be wrong. "
        "A savepoint stays until it is disposed of",
        metadata={"checkpoint": key},
    )


def tell_check(
    context: dg.OpExecutionContext, pipeline: PipelineId, check: str, result: dg.AssetCheckResult
) -> None:
    """Report what a job of ours has found as the result of a check; the run says it too."""
    (context.log.info if result.passed else context.log.warning)(result.description or "")
    found = dg.AssetCheckEvaluation(
        asset_key=checkpoints_asset_key(pipeline),
        check_name=check,
        passed=result.passed,
        severity=result.severity,
        description=result.description,
        metadata=result.metadata,
    )
    context.log_event(found)  # type: ignore[arg-type]  # Dagster takes it, and its types do not say so


def report_restorable(
    context: dg.OpExecutionContext, found: FoundSnapshot, state: Restorable, said: str
) -> None:
    """Show on the checkpoint's own partition whether it can be restored."""
    context.log.info(f"{found.key}: {state.value}: {said}")
    if found.known is None:
        return
    context.log_event(
        dg.AssetObservation(
            checkpoints_asset_key(found.pipeline),
            partition=found.key,
            description=f"{found.key} is {state.value}: {said}",
            metadata={"restorable": state.value},
        )
    )
