"""Changes of tables that nobody is told of before every table shows their checkpoint: readers go by that one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dagster_ckpt.core.checkpoint.record import CompletedRecord
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics, CheckpointStatus
from dagster_ckpt.core.checkpoint.tables import Moved
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId, StageUid
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata, TableSnapshot
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.runtime.record_store import RecordStore
from dagster_ckpt.runtime.stored import read_metadata
from dagster_ckpt.spark.stage_report import TableChanged


@dataclass
class HeldChanges:
    """Changes of the tables of one attempt, at most one of each table."""

    _held: dict[StageUid, TableChanged] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hold(self, change: TableChanged) -> None:
        """Keep a change, with what is kept of its table already."""
        with self._lock:
            earlier = self._held.get(change.uid)
            adds = earlier is not None and not (change.taken_back or earlier.taken_back)
            self._held[change.uid] = change.after(earlier) if adds and earlier is not None else change

    def released(self, moved: Moved) -> list[TableChanged]:
        """Return, once, the changes that readers find now; later ones stay."""
        shown = moved.after.checkpoint_id
        with self._lock:
            told = [one for one in self._held.values() if shown is None or one.checkpoint_id <= shown]
            for change in told:
                del self._held[change.uid]
        return told


def changed_before(moved: Moved, told: Iterable[TableChanged]) -> list[StageUid]:
    """Return the tables of which an earlier attempt has changed what readers find now, and could tell nobody."""
    before = {} if moved.before is None else moved.before.tables
    known = {change.uid for change in told}
    heads = {uid: table.head for uid, table in moved.after.tables.items() if table.head and uid not in known}
    return [StageUid(uid) for uid, head in heads.items() if uid not in before or before[uid].head != head]


OpenStorage = Callable[[str], CheckpointStorage]

HISTORY = 1000
"""So many checkpoints of the history are looked through where no snapshot is left."""
_COMPLETED = (CheckpointStatus.COMPLETED, CheckpointStatus.SUBSUMED, CheckpointStatus.DISCARDED)


class ShownBefore:
    """Snapshots that tell of rows a sink has shown, and the attempts that took them; read when first asked for."""

    def __init__(self, names: Sequence[PipelineId], records: RecordStore, open_storage: OpenStorage) -> None:
        """``names``: the pipeline's, of now first."""
        self._names = names
        self._records = records
        self._open_storage = open_storage

    def by(self, uids: Sequence[StageUid], kind: str) -> Mapping[CheckpointId, CoordinatorEpoch]:
        """Return the snapshots at which a sink of this kind had shown rows, or was about to; a damaged one counts.

        ``uids``: the sink's names, of now first.

        Where none is left that knows the stage, the history tells, which knows neither rows nor attempts.
        """
        found: dict[CheckpointId, CoordinatorEpoch] = {}
        is_known = False
        for known, metadata in self._snapshots:
            parts = () if metadata is None else (metadata.stage(uid) for uid in uids)
            part = next((one for one in parts if one is not None), None)
            is_known = is_known or part is not None
            if metadata is None or (part is not None and _shows(part.table, kind, known.kind)):
                found[CheckpointId(known.checkpoint_id)] = CoordinatorEpoch(known.epoch)
        if found or is_known:
            return found
        return {number: CoordinatorEpoch(1) for number, row in self._history.items() if _has(row, uids)}

    def after(self, number: int) -> dict[CheckpointId, CoordinatorEpoch]:
        """Return newer snapshots that were published under the pipeline's former names, and their attempts."""
        found: dict[CheckpointId, CoordinatorEpoch] = {}
        for name in self._names[1:]:
            record = self._records.record(name)
            found |= {} if record is None else record.published_after(number)
        return found

    @cached_property
    def _snapshots(self) -> list[tuple[CompletedRecord, CheckpointMetadata | None]]:
        records = (self._records.record(name) for name in self._names)
        entries = [
            e for record in records if record is not None for e in (*record.completed, *record.savepoints)
        ]
        return [(known, self._metadata(known)) for known in entries]

    def _metadata(self, known: CompletedRecord) -> CheckpointMetadata | None:
        try:
            storage = self._open_storage(known.location.base_uri)
            return read_metadata(storage, known.location.folder, recorded=known.metadata_checksum)
        except CheckpointError:
            return None

    @cached_property
    def _history(self) -> Mapping[CheckpointId, CheckpointStatistics]:
        found: dict[CheckpointId, CheckpointStatistics] = {}
        for name in self._names:
            found |= self._records.statistics(name, limit=HISTORY)
        return found


def _shows(table: TableSnapshot | None, kind: str, taken_as: CheckpointKind) -> bool:
    if table is None or table.sink != kind:
        return False
    return table.head is not None or (bool(table.prepared) and taken_as.publishes)


def _has(row: CheckpointStatistics, uids: Sequence[StageUid]) -> bool:
    return row.status in _COMPLETED and row.kind.publishes and any(stage.uid in uids for stage in row.stages)
