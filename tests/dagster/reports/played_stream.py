"""A stream of which only what it tells is there; it runs by a clock of the test and tells a real Dagster instance."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt import (
    CheckpointedPipeline,
)
from dagster_ckpt.core.checkpoint.record import TriggerRecord
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics, CheckpointStatus, StageStatistics
from dagster_ckpt.core.coordinator.effects import (
    CheckpointCompleted,
    CheckpointDiscarded,
    CheckpointFailed,
)
from dagster_ckpt.core.ids import CheckpointId, PipelineId, StageUid
from dagster_ckpt.core.messages import CheckpointFailureReason
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata, SnapshotMetrics, StageSnapshot
from dagster_ckpt.dagster.names import LOCATION_TAG
from dagster_ckpt.dagster.reporting import ReportPolicy
from dagster_ckpt.dagster.reports.asset import checkpoints_asset_key, checkpoints_partitions
from dagster_ckpt.dagster.reports.events import DagsterEvents
from dagster_ckpt.dagster.reports.stream_events import StreamMoment, StreamReports, Told
from dagster_ckpt.spark.stage_report import TableChanged
from dagster_ckpt.spark.streaming.progress import RunningStageProgress, StreamProgress
from tests.lab.pipelines import sink, source, stage, wired

INTERVAL = 10.0
DAY = 86400.0
STAGES = ("orders", "enriched", "joined", "totals", "report")
TABLES = ("totals", "report")
SHOP = PipelineId("shop")
CHECKPOINTS = checkpoints_asset_key(SHOP)


@dataclass
class Ledger:
    """What a run has left in the storage of its instance."""

    instance: dg.DagsterInstance
    folder: Path
    run_id: str

    def events(self) -> Counter[str]:
        """Count what the stream has written, beside what Dagster writes of any run."""
        kinds = [line.dagster_event_type for line in self.lines]
        return Counter("log" if kind is None else kind.value for kind in kinds)

    @property
    def lines(self) -> list[dg.EventLogEntry]:
        wanted = {
            None,
            dg.DagsterEventType.ASSET_MATERIALIZATION,
            dg.DagsterEventType.ASSET_OBSERVATION,
            dg.DagsterEventType.ASSET_CHECK_EVALUATION,
        }
        return [line for line in self.instance.all_logs(self.run_id) if line.dagster_event_type in wanted]

    def size(self) -> int:
        """Return the bytes of all databases of the instance, once what they hold in advance is written back."""
        total = 0
        for path in self.folder.rglob("*.db"):
            with closing(sqlite3.connect(path)) as database:
                database.execute("pragma wal_checkpoint(truncate)")
                pages, size, free = (
                    database.execute(f"pragma {name}").fetchone()[0]
                    for name in ("page_count", "page_size", "freelist_count")
                )
                total += (pages - free) * size
        return total

    def materialized(self, key: dg.AssetKey) -> list[dg.AssetMaterialization]:
        found = self.instance.fetch_materializations(key, limit=5000, ascending=True).records
        return [r.asset_materialization for r in found if r.asset_materialization is not None]

    def partitions(self) -> list[str]:
        return list(self.instance.get_dynamic_partitions(checkpoints_partitions(SHOP).name or ""))


@dataclass
class Stream:
    """A stream of which only what it tells is there; ``seconds`` is its clock."""

    reports: StreamReports
    seconds: list[float]
    ledger: Ledger
    epoch: float = 1_800_000_000.0
    number: int = 0
    rows: int = 0
    failed: int = 0
    history: list[CheckpointStatistics] = field(default_factory=list)

    def wait(self, seconds: float) -> None:
        self.seconds[0] += seconds
        self.reports.tick()

    def complete(
        self, *, rows: int = 0, kind: CheckpointKind = CheckpointKind.CHECKPOINT, by_hand: bool = False
    ) -> None:
        """Complete a checkpoint with so many new rows, and forget the one before."""
        self.number += 1
        self.rows += rows
        told = completed(
            self.number, self.epoch + self.seconds[0], rows=rows, batch=self.rows, kind=kind, by_hand=by_hand
        )
        self.history = [told.statistics, *self.history][:10]
        for table in TABLES if rows else ():
            self.reports.hear(changed(table, self.number, rows=rows))
        self.reports.hear(Told(told, {}))
        if self.number > 1:
            self.reports.hear(Told(CheckpointDiscarded(checkpoint_id=CheckpointId(self.number - 1)), {}))

    def fail(self, reason: CheckpointFailureReason = CheckpointFailureReason.CHECKPOINT_EXPIRED) -> None:
        self.number += 1
        self.failed += 1
        numbers = statistics(self.number, self.epoch + self.seconds[0], status=CheckpointStatus.FAILED)
        event = CheckpointFailed(
            checkpoint_id=CheckpointId(self.number),
            kind=CheckpointKind.CHECKPOINT,
            reason=reason,
            message="",
            statistics=numbers,
            consecutive_failures=1,
            tolerable=100,
        )
        self.reports.hear(Told(event, {}))

    def observe(self) -> None:
        stages = tuple(
            RunningStageProgress(uid=StageUid(uid), status="running", rows=self.rows, rows_per_second=1.0)
            for uid in STAGES
        )
        seen = StreamProgress(at=self.seconds[0], stages=stages, completed=self.number, failed=self.failed)
        self.reports.hear(StreamMoment(seen, tuple(self.history)))


def statistics(
    number: int, at: float, *, status: CheckpointStatus, periodic: bool = True, new: int = 0
) -> CheckpointStatistics:
    return CheckpointStatistics(
        checkpoint_id=number,
        kind=CheckpointKind.CHECKPOINT,
        status=status,
        trigger=TriggerRecord(periodic=periodic),
        triggered_at=at,
        ended_at=at + 0.8,
        stages=tuple(
            StageStatistics(uid=uid, subtasks=8, acknowledged=8, metrics=metrics(new)) for uid in STAGES
        ),
        path=f"s3://bucket/checkpoints/shop/chk-{number}",
        run_id="8c1e0b1e-7b0a-4b63-8a55-5a6c1f7ad9a1",
    )


def metrics(new: int) -> SnapshotMetrics:
    return SnapshotMetrics(
        bytes_full=123_456_789,
        bytes_new=new,
        files_full=97,
        files_new=7 if new else 0,
        alignment_ms=4.2,
        sync_ms=1.5,
        async_ms=84.1,
    )


def completed(
    number: int,
    at: float,
    *,
    rows: int,
    batch: int,
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
    by_hand: bool = False,
) -> CheckpointCompleted:
    new = 10_000 if rows else 0
    stages = tuple(
        StageSnapshot(uid=uid, parallelism=8, batch_id=batch, metrics=metrics(new)) for uid in STAGES
    )
    metadata = CheckpointMetadata(
        pipeline="shop",
        checkpoint_id=number,
        kind=kind,
        epoch=3,
        triggered_at=at,
        completed_at=at + 0.8,
        stages=stages,
        run_id="8c1e0b1e-7b0a-4b63-8a55-5a6c1f7ad9a1",
    )
    numbers = statistics(number, at, status=CheckpointStatus.COMPLETED, periodic=not by_hand, new=new)
    return CheckpointCompleted(
        checkpoint_id=CheckpointId(number), kind=kind, metadata=metadata, uri=numbers.path, statistics=numbers
    )


def changed(table: str, number: int, *, rows: int = 0, taken_back: str = "") -> TableChanged:
    return TableChanged(
        uid=StageUid(table),
        place=f"s3://bucket/tables/{table}",
        checkpoint_id=number,
        data_version=f"0a1b2c.3.{number}",
        rows=rows,
        bytes=100 * rows,
        taken_back=taken_back,
    )


Play = Callable[..., Ledger]


def two_tables() -> CheckpointedPipeline:
    return wired(
        "shop",
        source("orders", lambda spark: spark),
        stage("enriched", lambda orders: orders),
        stage("joined", lambda enriched: enriched),
        sink("totals", lambda joined: joined),
        sink("report", lambda joined: joined),
    )


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    """Play a stream inside a run of a real instance."""
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:

        def run(story: Callable[[Stream], None], *, report: str = "changed", pause: float = 300.0) -> Ledger:
            @dg.op(name="stream")
            def op(context: dg.OpExecutionContext) -> None:
                events = DagsterEvents(
                    two_tables(),
                    job_name="shop_streaming",
                    restore_op="stream",
                    report=ReportPolicy.of(report),
                )
                events.attach(context)
                seconds = [0.0]
                reports = StreamReports(events, pause=pause, clock=lambda: seconds[0])
                story(Stream(reports, seconds, Ledger(instance, tmp_path, context.run_id)))
                reports.close()

            graph = dg.GraphDefinition(name="shop_streaming", node_defs=[op])
            done = graph.to_job().execute_in_process(instance=instance, tags={LOCATION_TAG: "shop.py"})
            assert done.success
            return Ledger(instance, tmp_path, done.run_id)

        yield run


def hours(stream: Stream, hours: float, *, rows: int, observe_every: float = 300.0) -> None:
    """A stream with a checkpoint every ten seconds, looked at as the running stream is."""
    observed = 0.0
    for _ in range(int(hours * 3600 / INTERVAL)):
        stream.wait(INTERVAL)
        stream.complete(rows=rows)
        if stream.seconds[0] - observed >= observe_every:
            observed = stream.seconds[0]
            stream.observe()


@dataclass(frozen=True)
class Cost:
    """Cost of a day in Dagster's storage."""

    events: int
    bytes: int


def cost_of_a_day(play: Play, *, rows: int, **settings: Any) -> Cost:
    """Play an hour, after a quarter of one in which the run's tables were made."""
    measured: list[tuple[int, int]] = []

    def measure(stream: Stream) -> None:
        ledger = stream.ledger
        measured.append((sum(ledger.events().values()), ledger.size()))

    def story(stream: Stream) -> None:
        hours(stream, 0.25, rows=rows)
        measure(stream)
        hours(stream, 1, rows=rows)
        measure(stream)

    play(story, **settings)
    (events, size), (more_events, more_size) = measured
    return Cost(events=24 * (more_events - events), bytes=24 * (more_size - size))
