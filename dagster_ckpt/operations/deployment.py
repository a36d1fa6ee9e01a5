"""Deployment as operations need it: store, storage, progress, refusals; whose tables its readers find.

The coordinator's record is read and changed through the record store, by operations like by everybody else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.checkpoint.statistics import (
    HISTORY_SIZE,
    SUMMARY_WINDOW,
    StatisticsSnapshot,
    snapshot_of,
)
from dagster_ckpt.core.checkpoint.tables import ServingRecord
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.paths import NO_SAVEPOINTS_IN_STORE, is_in_store
from dagster_ckpt.core.units import moment
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound
from dagster_ckpt.ports import AuditRow, CheckpointStorage, CoordinatorStore
from dagster_ckpt.runtime.record_store import LoadedRecord, Operator, RecordChange, RecordStore


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Every operation takes one; nothing is opened by making it."""

    store: CoordinatorStore
    storage: CheckpointStorage
    """Checkpoint storage of the pipelines."""
    open_storage: Callable[[str], CheckpointStorage]
    """Storage at any other URI, with the same options."""
    savepoint_dir: str = ""
    """URI below which savepoints go when no target is given; empty: a target must be given."""

    def savepoint_storage(self, target: str = "") -> CheckpointStorage:
        """Return the storage savepoints are written to. Raises InvalidRequest when nobody says where."""
        chosen = target or self.savepoint_dir
        if not chosen:
            raise InvalidRequest(
                "there is no folder for savepoints: name a target, or set the deployment's savepoint folder"
            )
        if is_in_store(chosen):
            raise InvalidRequest(f"{chosen}: {NO_SAVEPOINTS_IN_STORE}")
        return self.open_storage(chosen)


class InUse(InvalidRequest):
    """Somebody still needs it: nothing was changed; the message says who, and when it will be free."""

    kind = "in_use"


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteProgress:
    """Progress of long work, in bytes."""

    done: int
    total: int
    what: str
    """What was finished last, for people."""


ProgressCallback = Callable[[ByteProgress], None]


def silent(progress: ByteProgress) -> None:
    """Tell nobody."""


class Meter:
    """Adds up what several threads have done and tells it."""

    def __init__(self, total: int, tell: ProgressCallback) -> None:
        self._lock = threading.Lock()
        self._total = total
        self._done = 0
        self._tell = tell

    def add(self, amount: int, what: str) -> None:
        """Count ``amount`` bytes of ``what`` as done."""
        with self._lock:
            self._done += amount
            self._tell(ByteProgress(done=self._done, total=self._total, what=what))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """Latest swap that a pipeline had a part in."""

    name: PipelineId
    """Pipeline that readers name."""
    serving: PipelineId
    """Pipeline whose tables they find."""
    before: PipelineId
    """Pipeline whose tables they found until then."""
    since: float
    """Seconds since the Unix epoch."""

    def sentence(self, of: str) -> str:
        """The readers' tables in a sentence, for people who look at pipeline ``of``."""
        at = f"since {moment(self.since)}; before: {self.before}"
        return f"{readers_sentence(of, name=self.name, serving=self.serving)} {at}"


def readers_sentence(of: str, *, name: str, serving: str) -> str:
    """Say whose tables readers of a name find, to people who look at pipeline ``of``."""
    whose = "readers" if of == name else f"readers of {name}"
    if serving != of:
        return f"{whose} find the tables of {serving}"
    return f"{whose} find its {'own ' if of == name else ''}tables"


def readers_of(store: CoordinatorStore, record: CoordinatorRecord) -> Readers | None:
    """Return the swap by which a pipeline serves, or is served by another; None: no swap of this store concerns it.

    Records of others that are damaged are passed over. Raises Unavailable.
    """
    own = PipelineId(record.pipeline)
    if record.serving is not None:
        return _readers(own, record.serving)
    ended = None
    for name in store.pipelines():
        serving = None if name == own else _serving_of(store, name)
        if serving is not None and serving.pipeline == own:
            return _readers(name, serving)
        if serving is not None and serving.before == own:
            ended = _readers(name, serving)
    return ended


def _serving_of(store: CoordinatorStore, name: PipelineId) -> ServingRecord | None:
    try:
        found = find_record(store, name)
    except Corrupt:
        return None
    return None if found is None else found.serving


def _readers(name: PipelineId, serving: ServingRecord) -> Readers:
    return Readers(
        name=name,
        serving=PipelineId(serving.pipeline),
        before=PipelineId(serving.before),
        since=serving.since,
    )
