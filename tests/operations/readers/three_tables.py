"""A pipeline with three tables in three places, its stages played: checkpoints, refused publishes, processes that die.

Each checkpoint adds one number to ``orders`` (Delta, appended) and to ``ledger`` (Delta, by key), and shows their sum
in ``totals`` (SQLite by key, with before-images): of one checkpoint, all three say the same sum.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from dagster_ckpt import CheckpointedPipeline, load_tables
from dagster_ckpt.core.checkpoint.tables import Moved
from dagster_ckpt.core.config import CheckpointConfig, RestoreOptions
from dagster_ckpt.core.ids import BatchId, CheckpointId, PipelineId, StageUid
from dagster_ckpt.core.messages import StageAcknowledgement
from dagster_ckpt.core.model import StageSnapshot
from dagster_ckpt.core.request import CheckpointRequest, Completed, RunStatus, Triggered
from dagster_ckpt.core.restore.choice import Restore
from dagster_ckpt.core.restore.facts import DirectoryState
from dagster_ckpt.operations.deployment import Deployment
from dagster_ckpt.operations.readers.load_table import LoadedTables
from dagster_ckpt.ports import CheckpointStorage, CoordinatorStore
from dagster_ckpt.runtime.attempt_setup import AttemptSetup
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.runtime.record_store import RecordStore
from dagster_ckpt.sinks import DeltaTable, IcebergTable, SinkTarget, SqlTable
from dagster_ckpt.spark.attempt.showing import ShownBefore
from dagster_ckpt.spark.attempt.sinks import PipelineSinks
from dagster_ckpt.spark.attempt.sinks_at_start import SinksAtStart
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.epoch.attempt import EpochGateway
from dagster_ckpt.spark.sink.committables import write_committable
from dagster_ckpt.spark.sink.phases import cut_of_sink
from dagster_ckpt.spark.sink.port import AttemptId, LaterRows
from dagster_ckpt.spark.stage_report import TableChanged
from dagster_ckpt.testing import Staging
from dagster_ckpt.testing.faulty import SimulatedCrash
from dagster_ckpt.testing.memory import (
    ManualBackground,
    ManualClock,
    MemoryCheckpointStorage,
    MemoryCoordinatorStore,
)
from dagster_ckpt.testing.sinks.run import stage
from tests.lab.lines import Lines
from tests.lab.pipelines import sink, source, wired

SINKS = ("orders", "ledger", "totals")
LAKE_AND_DATABASE = ("delta", "delta", "sql")
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
CONFIG = CheckpointConfig(num_retained=1, tolerable_failed_checkpoints=1000)


def target_in(place: str, folder: Path, table: str, *, keeps_before_images: bool = True) -> SinkTarget:
    """Return where a table's rows go; tables of one kind share a database, or a catalog."""
    match place:
        case "sql":
            url = f"sqlite:///{folder}/shop.db"
            return SqlTable(url, table, keep_before_images=keeps_before_images)
        case "iceberg":
            return IcebergTable(f"shop.{table}", catalog=catalog_in(folder))
        case _:
            return DeltaTable(str(folder / table))


def catalog_in(folder: Path) -> dict[str, str]:
    """Return the settings of the one catalog."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}


def pipeline_in(
    folder: Path, places: Sequence[str] = LAKE_AND_DATABASE, **options: Any
) -> CheckpointedPipeline:
    """Return the pipeline; ``places``: of each table in turn."""
    targets = {
        uid: target_in(place, folder, uid, **options) for uid, place in zip(SINKS, places, strict=True)
    }

    return wired(
        "shop",
        source("numbers", lambda spark: spark),
        sink("orders", lambda numbers: numbers, to=targets["orders"]),
        sink("ledger", lambda numbers: numbers, key=("k",), to=targets["ledger"]),
        sink("totals", lambda numbers: numbers, key=("k",), to=targets["totals"]),
    )


@dataclass
class Shop:
    """What outlives processes; it is a coordinator resource as far as readers need one."""

    folder: Path
    pipeline: CheckpointedPipeline
    store: CoordinatorStore = field(default_factory=MemoryCoordinatorStore)
    storage: CheckpointStorage = field(default_factory=MemoryCheckpointStorage)
    sums: MutableMapping[int, int] = field(default_factory=lambda: {0: 0})
    """Of every checkpoint that was taken; 0: of none."""
    told: list[TableChanged] = field(default_factory=list)
    attempts: int = 0

    @classmethod
    def begun(cls, folder: Path, **options: Any) -> Shop:
        folder.mkdir(parents=True, exist_ok=True)
        return cls(folder, pipeline_in(folder, **options))

    @property
    def resolved_work_dir(self) -> Path:
        return self.folder / "work"

    def resolved_table_dir(self, pipeline: CheckpointedPipeline) -> Path:
        return self.folder / "tables"

    def deployment(self, pipeline: CheckpointedPipeline | None = None) -> Deployment:
        return Deployment(store=self.store, storage=self.storage, open_storage=lambda _: self.storage)

    def load(self, **options: Any) -> LoadedTables:
        return load_tables(self.pipeline, coordinator=self, **options)


def sums_of(loaded: LoadedTables) -> dict[str, int]:
    """Return what each table says the sum is; none says something where it has no rows."""
    tables = {uid: rows.to_arrow() for uid, rows in loaded.items()}
    return {uid: sum(rows["v"].to_pylist()) if rows.num_rows else 0 for uid, rows in tables.items()}


Hit = Callable[[str], None]
"""Called before and after each step that the outside sees, with its name: it may raise."""


def goes_on(step: str) -> None:
    """Let every step happen."""


class Process:
    """One process: it claims the pipeline, brings the tables to what it restores, and takes checkpoints."""

    def __init__(self, shop: Shop, hit: Hit = goes_on, **restore: Any) -> None:
        self.shop, self.hit, self.number = shop, hit, 0
        shop.attempts += 1
        self.tables = PipelineSinks(
            pipeline=shop.pipeline,
            table_dir=shop.resolved_table_dir(shop.pipeline),
            work_dir=shop.resolved_work_dir,
            attempt_id=lambda: AttemptId(self.coordinator.lineage, self.coordinator.epoch),
            session=lambda: None,  # type: ignore[arg-type,return-value]
            tell=shop.told.append,
        )
        self.gateway = EpochGateway(tables=self.tables, reporter=Lines())
        options = RestoreOptions.of(**restore)
        self.coordinator = CheckpointCoordinator.open(
            AttemptSetup(
                graph=shop.pipeline.graph,
                config=CONFIG,
                store=shop.store,
                storage=shop.storage,
                open_storage=lambda _: shop.storage,
                gateway=self.gateway,
                clock=ManualClock(),
                owner=f"run-{shop.attempts}",
                restore=options,
                background=ManualBackground(),
                directory_state=lambda _path, _record: DirectoryState.MISSING,
                tell_shown=self._tell,
            )
        )
        self.gateway.all_shown = self._all_shown
        self.directory = AttemptDirectory(shop.folder / f"attempt-{shop.attempts}")
        self._restore(LaterRows.SET_ASIDE if options.roll_back_tables else LaterRows.KEEP)

    # --- the start ----------------------------------------------------------------------------------------------

    def _restore(self, later: LaterRows) -> None:
        decision = self.coordinator.restored
        at = SinksAtStart(
            sinks=self.tables,
            reporter=Lines(),
            before=self._before,
            about_to_change=self.coordinator.tables_change,
        )
        number: int | None = None
        batch: int | None = None
        if isinstance(decision, Restore):
            number = decision.metadata.checkpoint_id
            batch = decision.metadata.stages[-1].batch_id
            older = self.shop.folder / f"of-{number}"
            shutil.copytree(older, self.directory.root)
            since = self.coordinator.record.published_after(number)
            at.restore(self.directory, decision, later, published_since=since)
        else:
            at.begin(self.directory, later)
        for uid in self.shop.pipeline.stages:
            log = self.directory.stage(uid).log
            shutil.rmtree(log, ignore_errors=True)
            ChannelLog.create(log)
        self.next_batch = 0 if batch is None else batch + 1
        self.sum = 0 if number is None else self.shop.sums[number]
        self.hit("started")
        shown = None if later is LaterRows.KEEP else self.tables.shown_in(self.directory, number)
        self.gateway.attempt = self.directory
        self.coordinator.started(str(self.directory.root), shown)

    @cached_property
    def _before(self) -> ShownBefore:
        return ShownBefore((PipelineId("shop"),), RecordStore(self.shop.store), lambda _: self.shop.storage)

    # --- checkpoints --------------------------------------------------------------------------------------------

    def checkpoint(self, amount: int) -> CheckpointId:
        """Take a checkpoint of one more number, and publish it."""
        number, self.next_batch = self.next_batch, self.next_batch + 1
        self.sum += amount
        rows = {"orders": (number, amount), "ledger": (number, amount), "totals": (0, self.sum)}
        for uid, row in rows.items():
            self._prepare(StageUid(uid), number, row)
        outcome = self.coordinator.trigger(CheckpointRequest())
        assert isinstance(outcome, Triggered), outcome
        self.shop.sums[outcome.id] = self.sum
        parts = [self._part(uid, outcome.id, number) for uid in self.shop.pipeline.stages]
        kept = self.shop.folder / f"of-{outcome.id}"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(self.directory.root, kept)
        for part in parts:
            self.hit("acknowledge")
            self.coordinator.acknowledge_stage(part)
        return outcome.id

    def _prepare(self, uid: StageUid, number: int, row: tuple[int, int]) -> None:
        sink = self.tables.of(uid)
        epoch = self.coordinator.epoch
        staged = getattr(sink, "staged", None)  # of a database's table they wait in its own folder
        if staged is None:
            root = self.shop.resolved_work_dir / "shop" / "staged" / uid
            staging = Staging(root, root / "staged" / str(epoch))
        else:
            staging = Staging(staged.root, staged.folder(epoch))
        rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True))], SCHEMA)
        prepared = stage(staging, AttemptId(self.coordinator.lineage, epoch), number, [rows])
        write_committable(self.directory.stage(uid).root, prepared)
        ChannelLog(self.directory.stage(uid).log).append_data(BatchId(number), ())

    def _part(self, uid: StageUid, checkpoint: CheckpointId, number: int) -> StageAcknowledgement:
        directory = self.directory.stage(uid)
        ChannelLog(directory.log).append_barrier(checkpoint, timestamp=0.0)
        table = (
            cut_of_sink(self.tables.of(uid), directory.root, BatchId(number)).snapshot
            if uid in SINKS
            else None
        )
        snapshot = StageSnapshot(uid=uid, parallelism=1, batch_id=number, table=table)
        return StageAcknowledgement(
            checkpoint_id=checkpoint, attempt=self.coordinator.attempt_of(uid), snapshot=snapshot, handles=()
        )

    def _all_shown(self, shown: Any) -> None:
        self.hit("before the pointer")
        self.coordinator.tables_shown(shown)

    def _tell(self, moved: Moved) -> None:
        self.hit("told")
        self.tables.tell_shown(moved)

    def collect_garbage(self) -> None:
        """Remove what nothing needs, as a stream does between two checkpoints."""
        record = self.coordinator.record
        outcomes = [self.coordinator.status_of(CheckpointId(one.checkpoint_id)) for one in record.completed]
        known = [outcome.metadata for outcome in outcomes if isinstance(outcome, Completed)]
        self.tables.collect_garbage(self.directory, known, self.coordinator.stored_record.shown)

    def close(self) -> None:
        self.coordinator.close(RunStatus.SUSPENDED, clean=False)


class Faults:
    """Ends the process at a step of a random number, or lets a sink refuse its rows; ``steps`` counts."""

    def __init__(self, random: Random, *, kill_one_in: int = 0, refuse_one_in: int = 0) -> None:
        self.random, self.kill_one_in, self.refuse_one_in = random, kill_one_in, refuse_one_in
        self.kills = self.refusals = 0
        self.is_dead = False

    def __call__(self, step: str) -> None:
        if self.is_dead:
            raise SimulatedCrash(f"dead at {step}")
        if self.kill_one_in and self.random.randrange(self.kill_one_in) == 0:
            self.is_dead = True
            self.kills += 1
            raise SimulatedCrash(f"killed at {step}")
        if (
            step.startswith("publish")
            and self.refuse_one_in
            and self.random.randrange(self.refuse_one_in) == 0
        ):
            self.refusals += 1
            raise OSError(f"refused at {step}")

    def around(self, publish: Callable[..., Any]) -> Callable[..., Any]:
        """Return a sink's ``publish`` with a step before and after it."""

        def published(*args: Any, **options: Any) -> Any:
            self("publish")
            done = publish(*args, **options)
            self("published")
            return done

        return published


def describe(loaded: LoadedTables) -> str:
    """Say what was read, for a failure."""
    return json.dumps({"checkpoint": loaded.checkpoint_id, **sums_of(loaded)})
