"""Record store: the coordinator's record, history and audit, read and changed by compare-and-set, nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, TypeVar

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord, ForgottenHistory, parse_record
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics, CheckpointStatus
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.coordinator.inputs import HistoryOutdated
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId
from dagster_ckpt.core.paths import snapshot_key
from dagster_ckpt.core.restore.choice import Fresh, Restore, RestoreDecision
from dagster_ckpt.errors import Unavailable
from dagster_ckpt.ports import AuditRow, Committed, CoordinatorStore, HistoryRow, StoredRecord

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


KEPT_ROWS = 10_000
"""Rows of a pipeline's history: some 35 MB of a store, 3 hours of a checkpoint a second, 10 weeks of ten minutes."""
KEPT_SECONDS = 90 * 24 * 3600.0
"""Older rows leave the history though they are fewer."""


def outdated(rows: Sequence[HistoryRow], record: CoordinatorRecord) -> HistoryOutdated | None:
    """Return which of ``rows``, newest first, leave the history, and the new sum of what left it; None: none does.

    The row of a snapshot stays as long as the record knows the snapshot: restorable, pending or being deleted.
    """
    gone = [row for row in reversed(rows) if row.checkpoint_id not in record.known_ids]
    if not gone:
        return None
    ids = tuple(row.checkpoint_id for row in gone)
    return HistoryOutdated(checkpoint_ids=ids, forgotten=_with(record.forgotten, gone))


def _with(forgotten: ForgottenHistory, rows: Sequence[HistoryRow]) -> ForgottenHistory:
    failed = sum(row.status == CheckpointStatus.FAILED for row in rows)
    numbers = [parsed for row in rows if (parsed := parse_row(row)) is not None]
    return ForgottenHistory(
        rows=forgotten.rows + len(rows),
        spans=_joined(*forgotten.spans, *((row.checkpoint_id, row.checkpoint_id + 1) for row in rows)),
        until=max(forgotten.until, *(row.triggered_at for row in rows)),
        completed=forgotten.completed + len(rows) - failed,
        failed=forgotten.failed + failed,
        bytes_new=forgotten.bytes_new + sum(statistics.bytes_new for statistics in numbers),
    )


def _joined(*spans: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """Return ranges in order, those that touch as one."""
    joined: list[tuple[int, int]] = []
    for first, end in sorted(spans):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return tuple(joined)


def parse_row(row: HistoryRow) -> CheckpointStatistics | None:
    """Return the numbers in a history row; None for one another version wrote (its own columns still stand)."""
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
        kind=statistics.kind.noun,
        status=statistics.status.value,
        triggered_at=statistics.triggered_at,
        ended_at=statistics.ended_at,
        body=statistics.trimmed().model_dump_json(),
    )


def with_status(row: HistoryRow, status: CheckpointStatus) -> HistoryRow:
    """Return the row with another status, in its columns and in its numbers (where they can be read)."""
    known = parse_row(row)
    body = row.body if known is None else known.model_copy(update={"status": status}).model_dump_json()
    return replace(row, status=status.value, body=body)


MOST_SHOWN = 8000
"""Characters of a preview that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Person or machine who has something done, with the preview they were shown before."""

    who: str = ""
    shown: Sequence[str] = ()
    """The preview, line by line."""
    sets_aside: str = ""
    """Folder that rows go to which cannot be shown; empty: none are set aside."""

    @property
    def text(self) -> str:
        """The preview as it is kept."""
        whole = "\n".join(self.shown)
        return whole if len(whole) <= MOST_SHOWN else f"{whole[:MOST_SHOWN]}…"


NOBODY = Operator()


def restored_by(
    operator: Operator,
    restored: RestoreDecision,
    options: RestoreOptions,
    *,
    pipeline: PipelineId,
    run_id: str,
    now: float,
) -> list[AuditRow]:
    """Return the rows of what a person chose: what to start from, and which rows to set aside.

    None where a run went on from the latest by itself.
    """
    by = AuditRow(
        pipeline=pipeline,
        at=now,
        what="set aside",
        key="",
        uri=operator.sets_aside,
        who=operator.who,
        run_id=run_id,
        shown=operator.text,
    )
    rows = [by] if operator.sets_aside else []
    match restored:
        case Fresh(begins_line=True):
            what, key, uri = "begun", "", ""
        case Restore(metadata=metadata, begins_line=True):
            what = "forked" if options.fork else "restored"
            key, uri = snapshot_key(metadata.kind, metadata.checkpoint_id), restored.location.uri
        case _:
            return rows
    return [*rows, replace(by, what=what, key=key, uri=uri)]
