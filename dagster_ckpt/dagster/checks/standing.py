"""Snapshots a check has found broken: each stays red until it is found well, or is gone, whatever others are.

One check speaks for all snapshots, and Dagster shows its newest result only. So each result carries those before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.dagster.reports.asset import checkpoints_asset_key
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.runtime.record_store import RecordStore

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
