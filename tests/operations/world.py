"""A deployment in memory with snapshots of hand-made queries in Spark's formats; no Spark, no Dagster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dagster_ckpt import CheckpointedPipeline
from dagster_ckpt.core import paths
from dagster_ckpt.core.checkpoint.record import (
    CompletedRecord,
    CoordinatorRecord,
    CountsRecord,
    PendingRecord,
    PendingStageRecord,
    TriggerRecord,
)
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics, CheckpointStatus
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId, StageUid
from dagster_ckpt.core.model import (
    CheckpointKind,
    FileEntry,
    StageSnapshot,
    TableSnapshot,
)
from dagster_ckpt.core.paths import SnapshotLocation
from dagster_ckpt.core.request import RunStatus, properties_for
from dagster_ckpt.operations.deployment import Deployment
from dagster_ckpt.ports import CheckpointStorage, Committed, CoordinatorStore, HistoryRow
from dagster_ckpt.spark.snapshot.state_files import PlannedFile
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot
from dagster_ckpt.spark.snapshot.upload import UploadMode
from dagster_ckpt.testing.memory import MemoryCheckpointStorage, MemoryCoordinatorStore, NestedStorage
from tests.records import find_record
from tests.snapshots import complete, take_part
from tests.spark.snapshot.fake_checkpoint import FakeQuery

SALES = PipelineId("sales")
BASE = "memory://checkpoints"
SAVEPOINTS = "memory://savepoints"


@dataclass
class World:
    """One deployment; every storage URI is a dict of its own."""

    folder: Path
    store: CoordinatorStore = field(default_factory=MemoryCoordinatorStore)
    storages: dict[str, CheckpointStorage] = field(default_factory=dict)
    previous: dict[str, Sequence[FileEntry]] = field(default_factory=dict)
    queries: dict[str, FakeQuery] = field(default_factory=dict)

    def open(self, uri: str) -> Any:
        plain = uri.rstrip("/")
        above = next((known for known in self.storages if plain.startswith(f"{known}/")), None)
        if above is not None:
            return NestedStorage(self.storages[above], plain.removeprefix(f"{above}/"))
        return self.storages.setdefault(plain, MemoryCheckpointStorage(plain))

    @property
    def storage(self) -> Any:
        return self.open(BASE)

    @property
    def savepoints(self) -> Any:
        return self.open(SAVEPOINTS)

    @property
    def deployment(self) -> Deployment:
        return Deployment(
            store=self.store, storage=self.storage, open_storage=self.open, savepoint_dir=SAVEPOINTS
        )

    def query(self, uid: str = "totals") -> FakeQuery:
        if uid not in self.queries:
            self.queries[uid] = FakeQuery(self.folder / uid)
        return self.queries[uid]

    # --- the record -----------------------------------------------------------------------------------------

    def record(self, pipeline: PipelineId = SALES) -> CoordinatorRecord:
        return find_record(self.store, pipeline) or CoordinatorRecord(pipeline=pipeline, epoch=1)

    def write(self, record: CoordinatorRecord, *history: HistoryRow) -> None:
        pipeline = PipelineId(record.pipeline)
        stored = self.store.load(pipeline)
        outcome = self.store.compare_and_set(
            pipeline, stored.version if stored else 0, record.model_dump_json(), history
        )
        assert isinstance(outcome, Committed)

    def change(self, pipeline: PipelineId = SALES, **fields: Any) -> None:
        self.write(self.record(pipeline).model_copy(update=fields))

    def row(
        self,
        number: int,
        status: CheckpointStatus,
        *,
        kind: CheckpointKind = CheckpointKind.CHECKPOINT,
        path: str = "",
        pipeline: PipelineId = SALES,
    ) -> HistoryRow:
        trigger = TriggerRecord(periodic=True)
        body = CheckpointStatistics(
            checkpoint_id=number,
            kind=kind,
            status=status,
            trigger=trigger,
            triggered_at=float(number),
            path=path,
            failure_message="disk full" if status is CheckpointStatus.FAILED else "",
        )
        return HistoryRow(
            pipeline=pipeline,
            checkpoint_id=CheckpointId(number),
            epoch=CoordinatorEpoch(1),
            kind="savepoint" if kind.is_savepoint else "checkpoint",
            status=status.value,
            triggered_at=float(number),
            ended_at=number + 0.5,
            body=body.model_dump_json(),
        )

    def over(self, number: int, status: CheckpointStatus, **fields: Any) -> None:
        """Drop a checkpoint from the record, as the coordinator does when it is over."""
        record = self.record()
        kept = tuple(c for c in record.completed if c.checkpoint_id != number)
        changed = record.model_copy(update={"completed": kept, "next_id": max(record.next_id, number + 1)})
        self.write(changed, self.row(number, status, **fields))

    def pend(
        self, number: int, *uids: str, at: float = 100.0, deadline: float = 700.0, **fields: Any
    ) -> None:
        """Begin a checkpoint that waits for these stages; ``fields`` are more of the record's."""
        pending = PendingRecord(
            checkpoint_id=number,
            properties=properties_for(CheckpointKind.CHECKPOINT, CheckpointConfig()),
            trigger=TriggerRecord(periodic=True),
            triggered_at=at,
            deadline_at=deadline,
            stages=tuple(PendingStageRecord(uid=uid) for uid in uids),
        )
        self.change(pending=(pending,), **fields)

    def live(self, *late: str) -> None:
        """Take two checkpoints and a savepoint, fail at one, and begin one that waits for these stages."""
        self.checkpoint(1)
        self.checkpoint(2)
        self.savepoint(3)
        self.over(4, CheckpointStatus.FAILED)
        self.pend(5, *late, counts=CountsRecord(total=5, completed=3, failed=1), lease_until=110.0)

    # --- snapshots ------------------------------------------------------------------------------------------

    def checkpoint(self, number: int, *, batches: int = 2, **fields: Any) -> StoredSnapshot:
        """Run the query for some batches and take an incremental checkpoint."""
        self.query().commit(batches)
        folder = paths.CheckpointPaths(SALES).checkpoint(CheckpointId(number))
        stored = self.take(
            number, folder, self.storage, UploadMode.INCREMENTAL, CheckpointKind.CHECKPOINT, **fields
        )
        self.remember(stored)
        return stored

    def savepoint(self, number: int, *, batches: int = 1, suffix: str = "", **fields: Any) -> StoredSnapshot:
        """Run the query for some batches and take a savepoint."""
        self.query().commit(batches)
        folder = paths.CheckpointPaths(SALES).savepoint(suffix or f"{number:06d}")
        stored = self.take(
            number, folder, self.savepoints, UploadMode.SELF_CONTAINED, CheckpointKind.SAVEPOINT, **fields
        )
        self.remember(stored)
        return stored

    def take(
        self,
        number: int,
        folder: str,
        storage: CheckpointStorage,
        mode: UploadMode,
        kind: CheckpointKind,
        *,
        uid: str = "totals",
        pipeline: PipelineId = SALES,
        extra: Sequence[PlannedFile] = (),
        table: TableSnapshot | None = None,
        edges: tuple[tuple[str, str], ...] = (),
        others: tuple[StageSnapshot, ...] = (),
        **fields: Any,
    ) -> StoredSnapshot:
        part = take_part(
            storage,
            self.query(uid).root,
            number,
            pipeline=pipeline,
            uid=StageUid(uid),
            folder=folder,
            mode=mode,
            previous=self.previous.get(uid, ()),
            inline_threshold=200,
            extra=extra,
            table=table,
        )
        if mode is not UploadMode.SELF_CONTAINED:
            self.previous[uid] = part.upload.entries
        return complete(
            storage,
            folder,
            number,
            part.snapshot,
            *others,
            pipeline=pipeline,
            kind=kind,
            edges=edges,
            **fields,
        )

    def remember(self, stored: StoredSnapshot) -> None:
        """Add a snapshot to the record and the history, as its completion does."""
        metadata = stored.metadata
        pipeline = PipelineId(metadata.pipeline)
        entry = CompletedRecord(
            checkpoint_id=metadata.checkpoint_id,
            properties=properties_for(metadata.kind, CheckpointConfig()),
            location=SnapshotLocation(base_uri=stored.storage.base_uri, folder=stored.folder),
            epoch=1,
            triggered_at=metadata.triggered_at,
            completed_at=metadata.completed_at,
            trigger=TriggerRecord(periodic=False, name=metadata.name, note=metadata.note),
            bytes_full=sum(s.metrics.bytes_full for s in metadata.stages),
            metadata_checksum=stored.metadata_checksum,
        )
        record = self.record(pipeline)
        where = "savepoints" if metadata.kind.is_savepoint else "completed"
        changed = record.model_copy(
            update={
                where: (*getattr(record, where), entry),
                "next_id": max(record.next_id, metadata.checkpoint_id + 1),
                "status": RunStatus.SUSPENDED,
            }
        )
        row = self.row(
            metadata.checkpoint_id,
            CheckpointStatus.COMPLETED,
            kind=metadata.kind,
            path=f"{stored.storage.base_uri}/{stored.folder}",
            pipeline=pipeline,
        )
        self.write(changed, row)

    # --- damage ---------------------------------------------------------------------------------------------

    def damage(self, storage: Any, key: str) -> None:
        """Flip the first byte."""
        content = storage.contents[key]
        storage.contents[key] = bytes([content[0] ^ 0xFF]) + content[1:]


@dataclass(frozen=True)
class Known:
    """A coordinator resource, as far as tables need one."""

    world: World

    @property
    def resolved_work_dir(self) -> Path:
        return self.world.folder / "work"

    def resolved_table_dir(self, pipeline: CheckpointedPipeline) -> Path:
        return Path(pipeline.table_dir) if pipeline.table_dir else self.world.folder / "tables"

    def deployment(self, pipeline: CheckpointedPipeline | None = None) -> Deployment:
        return self.world.deployment


def data_keys(stored: StoredSnapshot) -> list[str]:
    """Keys of a snapshot's stored files of state, sorted."""
    from dagster_ckpt.operations.snapshots.contents import files_of

    return sorted(o.key for o in files_of(stored).objects if not o.key.endswith(paths.MANIFEST_FILE))
