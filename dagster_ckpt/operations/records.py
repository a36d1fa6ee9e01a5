"""The coordinator's record as operations read and change it: by compare-and-set, like everybody else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from dagster_ckpt.core.ids import CheckpointId, PipelineId
from dagster_ckpt.core.record import CoordinatorRecord, parse_record
from dagster_ckpt.core.restore_facts import RestoreFacts
from dagster_ckpt.core.statistics import CheckpointStatistics, CheckpointStatus
from dagster_ckpt.errors import NotFound, Unavailable
from dagster_ckpt.ports import Committed, CoordinatorStore, HistoryRow

__all__ = [
    "RecordChange",
    "change_record",
    "facts_of",
    "load_record",
    "only_pipeline",
    "statistics_of",
    "whole_history",
    "with_status",
]

TRIES = 20
"""How often a change is decided again after somebody else wrote first."""
PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordChange:
    """What a change makes of a record; ``history`` rows are written with it."""

    record: CoordinatorRecord
    history: Sequence[HistoryRow] = ()


def load_record(store: CoordinatorStore, pipeline: PipelineId) -> CoordinatorRecord:
    """Return the record of a pipeline. Raises NotFound, naming those that exist; Corrupt, Unavailable."""
    stored = store.load(pipeline)
    if stored is None:
        known = store.pipelines()
        there = f"There are: {', '.join(known)}" if known else "It knows no pipeline at all"
        raise NotFound(f"the coordinator store knows no pipeline {pipeline!r}. {there}")
    return parse_record(stored.body)


def only_pipeline(store: CoordinatorStore) -> PipelineId:
    """Return the store's pipeline where it has just one. Raises NotFound otherwise, naming them."""
    known = store.pipelines()
    if len(known) == 1:
        return known[0]
    if not known:
        raise NotFound("the coordinator store knows no pipeline yet: run one first, or check the store's URL")
    raise NotFound(f"name a pipeline: there are {', '.join(known)}")


def change_record(
    store: CoordinatorStore, pipeline: PipelineId, change: Callable[[CoordinatorRecord], RecordChange]
) -> CoordinatorRecord:
    """Apply ``change`` to the record by compare-and-set and return what was stored; begins one where there is none.

    ``change`` is called again when somebody else wrote first; what it raises passes through and changes nothing.
    Raises Unavailable when others never stop writing, and OutcomeUnknown.
    """
    for _ in range(TRIES):
        stored = store.load(pipeline)
        version = stored.version if stored else 0
        record = parse_record(stored.body) if stored else CoordinatorRecord(pipeline=pipeline)
        wanted = change(record)
        outcome = store.compare_and_set(
            pipeline, version, wanted.record.model_dump_json(), tuple(wanted.history)
        )
        if isinstance(outcome, Committed):
            return wanted.record
    raise Unavailable(
        f"the record of pipeline {pipeline!r} was changed by somebody else {TRIES} times in a row: "
        "nothing was changed here, try again"
    )


def facts_of(record: CoordinatorRecord) -> RestoreFacts:
    """Return the record's snapshots as the facts a restore is decided on (working directories left out)."""
    return RestoreFacts(
        pipeline=PipelineId(record.pipeline),
        checkpoints=tuple(entry.known for entry in record.completed),
        savepoints=tuple(entry.known for entry in record.savepoints),
        line=record.line,
        next_checkpoint_id=CheckpointId(record.next_id),
    )


# --- history --------------------------------------------------------------------------------------------------


def whole_history(store: CoordinatorStore, pipeline: PipelineId) -> Iterator[HistoryRow]:
    """Yield every row of a pipeline's history, newest first."""
    before: CheckpointId | None = None
    while rows := store.history(pipeline, limit=PAGE, before=before):
        yield from rows
        before = rows[-1].checkpoint_id


def statistics_of(row: HistoryRow) -> CheckpointStatistics | None:
    """Return the numbers in a history row; None where they cannot be read (the row's own columns still stand)."""
    try:
        return CheckpointStatistics.model_validate_json(row.body)
    except ValidationError:
        return None


def with_status(row: HistoryRow, status: CheckpointStatus) -> HistoryRow:
    """Return the row with another status, in its columns and in its numbers."""
    known = statistics_of(row)
    body = row.body if known is None else known.model_copy(update={"status": status}).model_dump_json()
    return replace(row, status=status.value, body=body)
