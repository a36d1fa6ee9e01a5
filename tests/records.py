"""The coordinator's record of a pipeline, as stored."""

from __future__ import annotations

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord, parse_record
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.ports import CoordinatorStore


def find_record(store: CoordinatorStore, pipeline: str) -> CoordinatorRecord | None:
    """Return the record, None where no run has made one."""
    stored = store.load(PipelineId(pipeline))
    return None if stored is None else parse_record(stored.body)


def stored_record(store: CoordinatorStore, pipeline: str) -> CoordinatorRecord:
    """Return the record of a pipeline that has run."""
    record = find_record(store, pipeline)
    assert record is not None
    return record
