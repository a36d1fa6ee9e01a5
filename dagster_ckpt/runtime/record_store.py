"""Record store: the coordinator's record, read and changed by compare-and-set. Nothing else writes it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord, parse_record
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics
from dagster_ckpt.core.coordinator.inputs import HistoryOutdated
from dagster_ckpt.core.ids import CheckpointId, PipelineId
from dagster_ckpt.errors import Unavailable
from dagster_ckpt.ports import AuditRow, Committed, CoordinatorStore, HistoryRow, StoredRecord
from dagster_ckpt.runtime.history import outdated, parse_row

TRIES = 20
"""How often a change is decided again after someone else wrote first."""
PAGE = 500
NO_RECORD = 0
"""Version of a record that does not exist yet."""

T = TypeVar("T")


@dataclass(frozen=True)
class LoadedRecord:
    """A record as it was read; parsed when it is first looked at."""

    version: int
    body: str

    @cached_property
    def record(self) -> CoordinatorRecord:
        """The record. Raises Corrupt when it is damaged or of an unknown format."""
        return parse_record(self.body)


@dataclass(frozen=True, slots=True)
class Overtaken:
    """Someone else changed the record first: nothing was written."""

    current: LoadedRecord | None
    """None: there is no record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordChange(Generic[T]):
    """Result of deciding on a record: its successor, and the answer to whoever asked."""

    answer: T
    record: CoordinatorRecord | None
    """None: it stays as it is, and nothing is written."""
    history: Sequence[HistoryRow] = ()
    audit: Sequence[AuditRow] = ()
    """What a person had done by it."""


@dataclass(frozen=True, slots=True)
class RecordStore:
    """Loads and changes records; every method raises Unavailable, OutcomeUnknown and Corrupt."""

    store: CoordinatorStore

    def load(self, pipeline: PipelineId) -> LoadedRecord | None:
        """Return the latest record; None for a pipeline that has never run."""
        return _loaded(self.store.load(pipeline))

    def record(self, pipeline: PipelineId) -> CoordinatorRecord | None:
        """Return the latest record without its version."""
        loaded = self.load(pipeline)
        return None if loaded is None else loaded.record

    def write(
        self,
        pipeline: PipelineId,
        expected: int,
        record: CoordinatorRecord,
        history: Sequence[HistoryRow],
        audit: Sequence[AuditRow] = (),
        *,
        forgotten: Collection[CheckpointId] = (),
    ) -> Committed | Overtaken:
        """Store a record in place of version ``expected``, with rows of its history and audit."""
        body = record.model_dump_json()
        outcome = self.store.compare_and_set(pipeline, expected, body, history, audit, forgotten=forgotten)
        return outcome if isinstance(outcome, Committed) else Overtaken(_loaded(outcome.current))

    def is_written(self, pipeline: PipelineId, expected: int, record: CoordinatorRecord) -> bool:
        """Tell whether a ``write`` whose outcome is unknown took effect and is still the latest."""
        found = self.load(pipeline)
        return found == LoadedRecord(expected + 1, record.model_dump_json())

    def transact(
        self, pipeline: PipelineId, decide: Callable[[LoadedRecord | None], RecordChange[T]]
    ) -> tuple[T, int]:
        """Load, decide, write; decide again when someone else wrote first. Return the answer and the version.

        What ``decide`` raises passes through and changes nothing. Unavailable also when others never stop writing.
        """
        for _ in range(TRIES):
            loaded = self.load(pipeline)
            version = NO_RECORD if loaded is None else loaded.version
            change = decide(loaded)
            if change.record is None:
                return change.answer, version
            outcome = self.write(pipeline, version, change.record, change.history, change.audit)
            if isinstance(outcome, Committed):
                return change.answer, outcome.version
        raise Unavailable(
            f"the record of pipeline {pipeline!r} was changed by someone else {TRIES} times in a row: "
            "nothing was changed here, try again"
        )

    # --- history ----------------------------------------------------------------------------------------------

    def statistics(self, pipeline: PipelineId, *, limit: int) -> dict[CheckpointId, CheckpointStatistics]:
        """Return the newest checkpoints' numbers; those another version wrote are left out."""
        rows = self.rows(pipeline, limit=limit)
        return {row.checkpoint_id: parsed for row in rows if (parsed := parse_row(row)) is not None}

    def rows(self, pipeline: PipelineId, *, limit: int) -> Sequence[HistoryRow]:
        """Return the newest rows of a pipeline's history, newest first."""
        return self.store.history(pipeline, limit=limit)

    def row(self, pipeline: PipelineId, checkpoint_id: CheckpointId) -> HistoryRow | None:
        """Return one checkpoint's row; None: the history does not have it."""
        found = self.store.history(pipeline, limit=1, before=CheckpointId(checkpoint_id + 1))
        return next((row for row in found if row.checkpoint_id == checkpoint_id), None)

    def outdated(
        self, pipeline: PipelineId, record: CoordinatorRecord, *, below: CheckpointId
    ) -> HistoryOutdated | None:
        """Return some history rows that leave it, of checkpoints ``below`` this number; None: all have left."""
        limit = PAGE + len(record.known_ids)
        return outdated(self.store.history(pipeline, limit=limit, before=below), record)

    def first_since(self, pipeline: PipelineId, moment: float, *, newest: CheckpointId) -> CheckpointId:
        """Return the first number whose row and all newer ones were triggered since ``moment``; rows are in order."""
        first, end = 1, newest + 1
        while first < end:
            middle = (first + end) // 2
            found = self.store.history(pipeline, limit=1, before=CheckpointId(middle + 1))
            if found and found[0].triggered_at >= moment:
                end = min(middle, found[0].checkpoint_id)
            else:
                first = middle + 1
        return CheckpointId(first)

    def history(self, pipeline: PipelineId) -> Iterator[HistoryRow]:
        """Yield every row of a pipeline's history, newest first."""
        before: CheckpointId | None = None
        while rows := self.store.history(pipeline, limit=PAGE, before=before):
            yield from rows
            before = rows[-1].checkpoint_id


def _loaded(stored: StoredRecord | None) -> LoadedRecord | None:
    return None if stored is None else LoadedRecord(stored.version, stored.body)
