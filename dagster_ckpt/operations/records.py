"""The coordinator's record as operations read and change it: through the record store, like everybody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.checkpoint.shown import ServingRecord
from dagster_ckpt.core.checkpoint.statistics import (
    HISTORY_SIZE,
    SUMMARY_WINDOW,
    StatisticsSnapshot,
    snapshot_of,
)
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.errors import InvalidRequest, NotFound
from dagster_ckpt.operations.deployment import Deployment
from dagster_ckpt.ports import AuditRow, CoordinatorStore
from dagster_ckpt.runtime.audit import Operator
from dagster_ckpt.runtime.record_store import LoadedRecord, RecordChange, RecordStore

__all__ = [
    "AuditRow",
    "Operator",
    "StatisticsSnapshot",
    "audit_of",
    "change_record",
    "checkpoint_statistics",
    "find_record",
    "load_record",
    "only_pipeline",
    "serving_of",
    "statistics_of",
]

T = TypeVar("T")


def find_record(store: CoordinatorStore, pipeline: PipelineId) -> CoordinatorRecord | None:
    """Return the record of a pipeline; None: the store knows none. Raises Corrupt, Unavailable."""
    return RecordStore(store).record(pipeline)


def load_record(store: CoordinatorStore, pipeline: PipelineId) -> CoordinatorRecord:
    """Return the record of a pipeline. Raises NotFound, naming those that exist; Corrupt, Unavailable."""
    record = find_record(store, pipeline)
    if record is None:
        known = store.pipelines()
        there = f"There are: {', '.join(known)}" if known else "It knows no pipeline at all"
        raise NotFound(f"the coordinator store knows no pipeline {pipeline!r}. {there}")
    return record


def serving_of(deployment: Deployment, pipeline: PipelineId) -> ServingRecord | None:
    """Return who serves readers of a pipeline's name; None: itself. Raises Corrupt, Unavailable."""
    record = find_record(deployment.store, pipeline)
    return None if record is None else record.serving


def only_pipeline(store: CoordinatorStore) -> PipelineId:
    """Return the store's pipeline where it has just one. Raises NotFound for none, InvalidRequest naming several."""
    known = store.pipelines()
    if len(known) == 1:
        return known[0]
    if not known:
        raise NotFound("the coordinator store knows no pipeline yet: run one first, or check the store's URL")
    raise InvalidRequest(f"name a pipeline (-p NAME): there are {', '.join(known)}")


def change_record(
    store: CoordinatorStore, pipeline: PipelineId, change: Callable[[CoordinatorRecord], RecordChange[T]]
) -> T:
    """Change the record and return the change's answer; begins a record where there is none.

    ``change`` is called again when someone else wrote first; what it raises passes through and changes nothing.
    Raises Unavailable when others never stop writing, and OutcomeUnknown.
    """

    def decide(loaded: LoadedRecord | None) -> RecordChange[T]:
        return change(CoordinatorRecord(pipeline=pipeline) if loaded is None else loaded.record)

    return RecordStore(store).transact(pipeline, decide)[0]


def audit_of(deployment: Deployment, pipeline: PipelineId, *, limit: int = 50) -> list[AuditRow]:
    """Return the deeds of people on a pipeline, newest first. Raises Unavailable."""
    return deployment.store.audited(pipeline, limit=limit)


def checkpoint_statistics(
    deployment: Deployment,
    pipeline: PipelineId,
    *,
    window: int = SUMMARY_WINDOW,
    history_size: int = HISTORY_SIZE,
) -> StatisticsSnapshot:
    """Return the figures of Flink's checkpoint page: counts, a summary of the last ``window``, the newest rows.

    Rows that a newer version wrote and this one cannot read are left out. Raises NotFound, Corrupt, Unavailable.
    """
    record = load_record(deployment.store, pipeline)
    return statistics_of(deployment, record, window=window, history_size=history_size)


def statistics_of(
    deployment: Deployment, record: CoordinatorRecord, *, window: int, history_size: int
) -> StatisticsSnapshot:
    """Return the same for a record that was read already. Raises Unavailable."""
    rows = RecordStore(deployment.store).statistics(PipelineId(record.pipeline), limit=window)
    return snapshot_of(
        rows.values(),
        counts=record.counts,
        history_size=history_size,
        restored_id=record.restored_id,
        restored_at=record.restored_at,
    )
