"""A stage of a streaming run with its query: prepared, started, looked at, stopped between two batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dagster_ckpt.authoring.stage_settings import Boundedness
from dagster_ckpt.core.ids import BatchId, CheckpointId, StageUid
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.attempt.fan_out import FanOut, SinkBranch, may_fan_out
from dagster_ckpt.spark.attempt.own_objects import StageArguments
from dagster_ckpt.spark.attempt.participant import Requeue
from dagster_ckpt.spark.attempt.stage_query import StageQuery
from dagster_ckpt.spark.channel.entries import DataEntry
from dagster_ckpt.spark.channel.positions import CommittedBatches, names_of_inputs
from dagster_ckpt.spark.java.process import MAX_START_ATTEMPTS, is_retryable_start
from dagster_ckpt.spark.java.sessions import has_read_everything, progress_since
from dagster_ckpt.spark.snapshot.take import Cut, SnapshotOutcome, StageSnapshotter
from dagster_ckpt.spark.stage_report import BatchMeter
from dagster_ckpt.spark.streaming.gate import BatchGate, Hold, InducedBarriers, StoppedAtBatchBoundary
from dagster_ckpt.spark.streaming.input_alignment import InputChannel, newest_barrier, release_earlier
from dagster_ckpt.spark.streaming.snapshot_job import SnapshotJob, confirm_later, decline_later
from dagster_ckpt.spark.streaming.stage_worker import StageWorker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
    from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
    from dagster_ckpt.spark.attempt.sinks import PipelineSinks
    from dagster_ckpt.spark.directories import AttemptDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingSettings:
    """Settings of a streaming run; durations in seconds."""

    trigger_interval: float = 0.0
    """Least time between the beginnings of two batches of a stage; 0: as fast as there is data."""
    snapshot_retries: int = 2
    """How often storing a stage's part is tried again on transient storage errors."""
    starting_at_once: int = 2
    """Stages whose readers start at the same time."""
    start_timeout: float = 60.0
    stop_timeout: float = 30.0
    """How long a stop waits for the batches being written."""
    tidy_tables_every: float = 60.0


@dataclass(frozen=True, kw_only=True)
class StageSetup:
    """Setup that all stages of a run share."""

    pipeline: CheckpointedPipeline
    coordinator: CheckpointCoordinator
    attempt: AttemptDirectory
    tables: PipelineSinks
    settings: StreamingSettings
    job_ended: Callable[[StageUid, CheckpointId], None]
    on_finished: Callable[[StageUid], None]
    still: AbstractContextManager[Any]
    """Held while checkpoints are cut."""
    run_apart: Callable[[Callable[[], None]], None]
    """Runs what it is given in a thread of its own."""
    warn: Callable[[str], None]


@dataclass(kw_only=True)
class RunningStage:
    """One stage while it runs; everything but its worker is used by the supervisor's thread."""

    uid: StageUid
    stage_query: StageQuery
    worker: StageWorker
    gate: BatchGate
    is_bounded: bool
    has_finished: bool = False
    """The coordinator knows it as FINISHED: a completed checkpoint has its last position."""
    is_over: bool = False
    """Stopped for good, because the run stops with a savepoint."""
    meter: BatchMeter = field(default_factory=BatchMeter)
    query: StreamingQuery | None = None
    starts: int = 0
    refused: BaseException | None = None
    """Why its query could not be restarted."""
    host: RunningStage | None = None
    """The stage whose query hands its batches to this one, which has none of its own."""
    branch: SinkBranch | None = None
    """Of a sink with a host."""

    @classmethod
    def prepare(
        cls, setup: StageSetup, uid: StageUid, arguments: Mapping[StageUid, StageArguments]
    ) -> RunningStage:
        """Return the stage ready to be started, with its inputs released up to where the attempt begins."""
        gate = BatchGate()
        if not setup.pipeline.upstream[uid] and setup.coordinator.config.pause_sources_until_first_checkpoint:
            gate.hold(Hold.FIRST_CHECKPOINT)
        stage_query = StageQuery(
            pipeline=setup.pipeline,
            uid=uid,
            attempt=setup.attempt,
            fan_out=_fan_out(setup, uid, gate),
            table_writer=setup.tables.writer,
            arguments=arguments.get(uid, StageArguments()),
            members=arguments,
            guard=gate.guard,
            warn=setup.warn,
            requeue=lambda uid: Requeue.of(uid, setup.coordinator.record, setup.tables),
            sink_of=setup.tables.of,
        )
        logs = stage_query.input_logs()
        over = {upstream: newest_barrier(log) for upstream, log in logs.items()}
        release_earlier(stage_query.release, setup.coordinator.config.mode, over.values())
        batches = CommittedBatches(
            stage_query.directory.query,
            inputs=names_of_inputs(setup.pipeline, uid),
            starts={upstream: log.start for upstream, log in logs.items()},
        )
        channels = {
            upstream: InputChannel(
                upstream=upstream,
                log=log,
                position=batches.current.positions[upstream],
                ignored_through=over[upstream],
            )
            for upstream, log in logs.items()
        }
        worker = StageWorker(
            uid=uid,
            config=setup.coordinator.config,
            log=stage_query.log,
            release=stage_query.release,
            batches=batches,
            inputs=channels,
            gate=gate,
            snapshotter=_snapshotter(setup, stage_query),
            make_job=lambda cut, worker: _job(setup, stage_query, cut, worker),
            decline_later=decline_later,
            confirm_aborted=lambda number, stage: confirm_later(setup.coordinator, number, stage),
            on_finished=setup.on_finished,
            induced=InducedBarriers.of(
                gate, stage_query.stage.barrier_after, stage_query.directory, stage_query.log
            ),
            keeps_rows=stage_query.stage.table is not None,
            begins_at=stage_query.log.end,
        )
        bounded = stage_query.stage.boundedness is Boundedness.BOUNDED
        return cls(uid=uid, stage_query=stage_query, worker=worker, gate=gate, is_bounded=bounded)

    def start(self, spark: SparkSession, settings: StreamingSettings, *, is_finished: bool = False) -> None:
        """Start the query. Raises InvalidRequest for a function that returns no streaming DataFrame.

        ``is_finished``: what was restored has the stage as finished. A source reads nothing then, and who reads it
        needs its columns only; any other stage passes barriers on.
        """
        if is_finished:
            self.worker.is_ended = True
            self.worker.finished_from = CheckpointId(0)
            if not self.worker.inputs:
                self.stage_query.planned(spark)
                return
        self.worker.batches_kept = batches_kept(spark)
        if self.host is not None:
            return
        self.starts += 1
        if self.is_bounded:
            self.query = self.stage_query.start(spark, available_now=True)
            return
        self.query = self.stage_query.start(spark, interval=f"{settings.trigger_interval:.3f} seconds")

    def fan_out(self, spark: SparkSession, stages: Mapping[StageUid, RunningStage]) -> str:
        """Let the readers take the batches where they may, then let batches come; return why not, empty: they do.

        Raises what planning a reader raises.
        """
        fan_out = self.stage_query.fan_out
        if fan_out is None:
            return ""
        readers = self.stage_query.pipeline.consumers(self.uid)
        why = "has FINISHED"
        if self.query is not None:
            kept = batches_kept(spark)
            why = fan_out.begin(readers, lambda uid: stages[uid].stage_query.branch(spark), kept)
        for branch in fan_out.branches:
            stages[branch.uid].host, stages[branch.uid].branch = self, branch
        self.gate.open(Hold.READERS)
        return why

    @property
    def told_by(self) -> StageQuery:
        """The query that tells a failure in one sentence: of the sink that was staging, where it takes batches."""
        fan_out = self.stage_query.fan_out
        failing = None if fan_out is None else fan_out.failing
        return self.stage_query if failing is None else replace(self.stage_query, uid=failing, fan_out=None)

    def start_again(self, spark: SparkSession, settings: StreamingSettings) -> bool:
        """Start a query once more that only failed because a reader's process was slow to start; else False.

        Spark has not begun a batch then, so this is what starting it later would have been.
        """
        if not is_retryable_start(self.failure) or self.starts >= MAX_START_ATTEMPTS:
            return False
        self.stage_query.warn(f"the reader of stage {self.uid} was slow to start: started again")
        self.start(spark, settings)
        return True

    def restart(self, spark: SparkSession, settings: StreamingSettings) -> None:
        """Stop the query between two batches and start it again; what is to go through it again is its first batch."""
        if not self.stop(settings.stop_timeout):
            return
        self.gate.reopen()
        self.starts = 0
        try:
            self.start(spark, settings)
        except Exception as error:  # told as that of a query which died
            self.refused = error

    # --- looking ----------------------------------------------------------------------------------------------

    @property
    def is_ended(self) -> bool:
        """True where it has processed all rows that it will ever get; barriers pass it all the same."""
        return self.worker.is_ended

    @property
    def is_active(self) -> bool:
        """True while Spark runs the query."""
        if self.host is not None:
            return self.host.is_active
        return self.query is not None and bool(self.query.isActive)

    @property
    def is_initializing(self) -> bool:
        """True while Spark starts the query's readers."""
        if self.query is None or not self.query.isActive:
            return False
        return str(self.query.status["message"]).startswith("Initializing")

    @property
    def failure(self) -> BaseException | None:
        """Error that ended the query, unless it was stopped or came to its end."""
        error = self.refused or (None if self.query is None else self.query.exception())
        return None if error is None or StoppedAtBatchBoundary.__name__ in str(error) else error

    @property
    def was_stopped(self) -> bool:
        """True where somebody else stopped the query of a bounded source before it had read everything."""
        if self.query is None or self.query.exception() is not None:
            return False
        return not has_read_everything(self.query)

    def is_quiet(self) -> bool:
        """True when nothing is to be read, no batch runs and the last one is committed."""
        batch = self.worker.log.last_batch()
        committed = batch is None or self.worker.batches.is_committed(batch)
        return (
            committed
            and not self._has_rows_ahead()
            and self.gate.inside is None
            and not self._has_next_batch()
        )

    def _has_rows_ahead(self) -> bool:
        """Asked of the logs themselves: the worker looks at them now and then only."""
        positions = self.worker.batches.current.positions
        try:
            return any(
                isinstance(entry, DataEntry) and entry.files
                for uid, channel in self.worker.inputs.items()
                for _, entry in channel.log.entries(positions[uid])
            )
        except CheckpointError:
            return True  # the log was cut meanwhile: the reader is further than was known

    def _has_next_batch(self) -> bool:
        batch = self.worker.batches.current.batch
        following = 0 if batch is None else batch + 1
        return (self.stage_query.directory.query / "offsets" / str(following)).exists()

    def new_progress(self) -> list[dict[str, Any]]:
        """Return Spark's reports of batches that were not counted yet; none when the query cannot be asked."""
        if self.branch is not None:
            done = [*self.branch.done]
            del self.branch.done[: len(done)]
            return done
        with suppress(Exception):
            return progress_since(self.query, self.meter.last_batch) if self.query else []
        return []

    def last_progress(self) -> dict[str, Any]:
        """Return Spark's report of the newest batch; empty before the first, or when it cannot be asked."""
        with suppress(Exception):
            return dict((self.query and self.query.lastProgress) or {})
        return {}

    # --- stopping ---------------------------------------------------------------------------------------------

    def stop(self, timeout: float) -> bool:
        """Stop this query between two batches; True when that worked out."""
        return stop_stages([self], timeout)

    def is_between_batches(self) -> bool:
        """True when no batch is being written and the last one is committed."""
        if self.gate.inside is not None:
            return False
        try:
            batch = self.worker.log.last_batch()
        except CheckpointError:
            return True  # a newer attempt has removed the directory: there is nothing to wait for
        return batch is None or self.worker.batches.is_committed(batch)


def stop_stages(stages: Sequence[RunningStage], timeout: float) -> bool:
    """Stop queries between two batches: hold every gate, wait for commits, then stop; True when all were clean."""
    running = [stage for stage in stages if stage.query is not None]
    for stage in running:
        stage.gate.hold()
    until = time.monotonic() + timeout
    waiting = [stage for stage in running if stage.is_active]
    while waiting and time.monotonic() < until:
        waiting = [s for s in waiting if s.is_active and not s.is_between_batches()]
        if waiting:
            time.sleep(0.005)
    clean = not waiting and all(stage.failure is None for stage in running)
    threads = [threading.Thread(target=_stop_query, args=(s.query,), daemon=True) for s in running]
    for thread in threads:
        thread.start()
    # A batch that waits at the gate is let go once Spark knows that its query is being stopped.
    while any(stage.is_active for stage in running) and time.monotonic() < until + 1:
        time.sleep(0.002)
    for stage in running:
        stage.gate.stop()
    for thread in threads:
        thread.join(max(0.1, until + 10 - time.monotonic()))
    return clean and not any(thread.is_alive() for thread in threads)


def _snapshotter(setup: StageSetup, query: StageQuery) -> StageSnapshotter:
    return StageSnapshotter(
        uid=query.uid,
        directory=query.directory,
        coordinator=setup.coordinator,
        local_copies=setup.attempt.local_copies(query.uid),
        participant=query.stage.participant,
    )


def _stop_query(query: StreamingQuery) -> None:
    with suppress(Exception):  # a query that failed on its way out is over all the same
        query.stop()


def batches_kept(spark: SparkSession) -> int:
    """Return of how many batches Spark keeps positions and commits."""
    return int(str(spark.conf.get("spark.sql.streaming.minBatchesToRetain")))


# --- helpers of prepare -------------------------------------------------------------------------------------------


def _fan_out(setup: StageSetup, uid: StageUid, gate: BatchGate) -> FanOut | None:
    directory = setup.attempt.stage(uid)
    if not setup.coordinator.config.operator_chaining or not may_fan_out(setup.pipeline, uid, directory):
        return None
    gate.hold(Hold.READERS)
    return FanOut(directory=directory, still=setup.still)


def _job(setup: StageSetup, query: StageQuery, cut: Cut, worker: StageWorker) -> SnapshotJob:
    def sink_cut(batch: BatchId | None) -> Any:
        return setup.tables.cut(query.stage, query.directory, batch)

    def done(job: SnapshotJob, outcome: SnapshotOutcome | None) -> None:
        if outcome is None:
            with suppress(CheckpointError):
                setup.coordinator.confirm_aborted(job.cut.checkpoint_id, worker.uid)
        setup.job_ended(worker.uid, job.cut.checkpoint_id)

    return SnapshotJob(
        cut=cut,
        holds=worker.alignment.holds,
        snapshotter=worker.snapshotter,
        batches=worker.batches,
        inputs={uid: channel.log for uid, channel in worker.inputs.items()},
        sink_cut=sink_cut,
        retries=setup.settings.snapshot_retries,
        done=done,
        run_apart=setup.run_apart,
    )
