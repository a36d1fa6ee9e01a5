"""One attempt of a streaming run: all stages' queries at once, barriers flowing, until something ends it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_ckpt.core.checkpoint.requests import Stopped, StoppedBadly, effective_interval
from dagster_ckpt.core.checkpoint.tasks import StageStatus
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.errors import CheckpointError, Fenced
from dagster_ckpt.ports import Clock
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.spark.attempt.earlier_attempts import TableCleanUp
from dagster_ckpt.spark.attempt.own_objects import StageArguments
from dagster_ckpt.spark.attempt.sinks import PipelineSinks
from dagster_ckpt.spark.cluster.lost import ExecutorWatch
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.plan.errors import was_stopped
from dagster_ckpt.spark.stage_report import Reporter
from dagster_ckpt.spark.streaming.background import Poller, ReusedThreads, TableGarbage, cut_logs
from dagster_ckpt.spark.streaming.gate import CommitBackpressure, Hold, longest_commit
from dagster_ckpt.spark.streaming.instant_cut import InstantCuts
from dagster_ckpt.spark.streaming.loop import BarrierLoop, JobEnded, StreamingGateway
from dagster_ckpt.spark.streaming.running_stage import (
    RunningStage,
    StageSetup,
    StreamingSettings,
    stop_stages,
)
from dagster_ckpt.spark.streaming.sources import BacklogReporter, EndOfInput, IdleOrders, still_starting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline

LOOK_AT_QUERIES_EVERY = 0.25
CUT_LOGS_EVERY = 10.0
FINAL_CHECKPOINT_EVERY = 2.0


@dataclass(frozen=True, slots=True)
class StageDied:
    """A query failed, or a stage could not align: the restart strategy decides."""

    uid: StageUid | None
    message: str
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A newer attempt owns the pipeline."""

    message: str


@dataclass(frozen=True, slots=True)
class StoppedWithSavepoint:
    """Stop-with-savepoint ended well."""

    uri: str

    @property
    def line(self) -> str:
        """The end of the stream in a line, for people."""
        return f"stopped with savepoint {self.uri}"


@dataclass(frozen=True, slots=True)
class EndOfData:
    """All sources were bounded and everything is processed; the final checkpoint, if wanted, is complete."""

    checkpoint_id: CheckpointId | None


RunEnd = StageDied | TakenOver | StoppedWithSavepoint | EndOfData


@dataclass(kw_only=True)
class StreamingRun:
    """Started once; ``wait`` until it ends, then ``stop``."""

    pipeline: CheckpointedPipeline
    coordinator: CheckpointCoordinator
    gateway: StreamingGateway
    attempt: AttemptDirectory
    spark: SparkSession
    tables: PipelineSinks
    reporter: Reporter
    clock: Clock
    arguments: Mapping[StageUid, StageArguments] = field(default_factory=dict)
    settings: StreamingSettings = StreamingSettings()
    requests: Callable[[CheckpointCoordinator], None] = lambda _: None
    """Called with every poll: takes what other processes ask of the run."""
    stages: dict[StageUid, RunningStage] = field(default_factory=dict)
    is_started: threading.Event = field(default_factory=threading.Event)
    """Set when every stage runs and checkpoints can be taken."""
    _ends: queue.SimpleQueue[RunEnd] = field(default_factory=queue.SimpleQueue)
    _finished: set[StageUid] = field(default_factory=set)
    _next_cut: float = 0.0
    _final_from: CheckpointId | None = None
    _final_at: float = 0.0
    _cutting: threading.Lock = field(default_factory=threading.Lock)
    _still: threading.RLock = field(default_factory=threading.RLock)
    _threads: ReusedThreads = field(default_factory=lambda: ReusedThreads("snapshot"))
    _backlog: BacklogReporter = field(init=False)
    _end_of_input: EndOfInput = field(init=False)
    _backpressure: CommitBackpressure = field(init=False)
    _executors: ExecutorWatch = field(init=False)
    _orders: IdleOrders = field(default_factory=IdleOrders)

    def __post_init__(self) -> None:
        self._executors = ExecutorWatch(self.spark)
        self._backlog = BacklogReporter(self.coordinator)
        self._end_of_input = EndOfInput(self.stages)
        longest = longest_commit(self.coordinator.config)
        self._backpressure = CommitBackpressure(longest=longest, reporter=self.reporter, clock=self.clock)

    # --- start ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every stage, inputs before their readers, then let barriers flow. Raises what a stage raises."""
        order = [spec.uid for spec in self.pipeline.graph.topological]
        setup = StageSetup(
            pipeline=self.pipeline,
            coordinator=self.coordinator,
            attempt=self.attempt,
            tables=self.tables,
            settings=self.settings,
            job_ended=lambda uid, number: self.loop.post(JobEnded(uid, number)),
            on_finished=self._finished.add,
            still=self._still,
            run_apart=self._threads.submit,
            warn=self.reporter.warn,
        )
        for uid in order:
            self.stages[uid] = RunningStage.prepare(setup, uid, self.arguments)
        self.loop = BarrierLoop(
            {uid: stage.worker for uid, stage in self.stages.items()},
            order,
            clock=self.clock,
            on_error=lambda uid, error: self._ends.put(
                StageDied(uid, f"{self.pipeline.title(uid)}: {error}", error)
            ),
            still=self._still,
            cuts=InstantCuts(self.coordinator.config, has_hooks=bool(self.pipeline.hooks)),
        )
        self.poller = Poller(self._poll, on_error=self._poll_failed)
        self.garbage = TableGarbage(
            clean_up=TableCleanUp(
                coordinator=self.coordinator,
                tables=self.tables,
                attempt=self.attempt,
                publishing=self.gateway.publishing,
            ),
            reporter=self.reporter,
            every=self.settings.tidy_tables_every,
        )
        finished = self._finished_before()
        self._start_queries(order, finished)
        self.gateway.loop = self.loop
        self.gateway.after_completion = self._tidy
        self.gateway.interval = effective_interval(self.coordinator.config)
        self.loop.start()
        for uid in order:
            if uid in finished:
                self._tell_finished(self.stages[uid])
            else:
                self.coordinator.report_stage(uid, StageStatus.RUNNING)
        self.poller.start()
        self.is_started.set()

    def _start_queries(self, order: Sequence[StageUid], finished: Collection[StageUid]) -> None:
        """Start a query each. Where they wait for one another no batch is let in before the last one is ready.

        Readers of many channels take seconds to start, and minutes beside sources that run at full speed.
        """
        readers = [stage for stage in self.stages.values() if stage.worker.inputs]
        gates = [stage.gate for stage in reversed(self.stages.values())]
        if len(readers) > self.settings.starting_at_once:
            for gate in gates:
                gate.hold(Hold.START)
        starting: list[RunningStage] = []
        for uid in order:
            self.stages[uid].start(self.spark, self.settings, is_finished=uid in finished)
            if why := self.stages[uid].fan_out(self.spark, self.stages):
                self.reporter.info(f"stage {uid} writes a channel for its sinks: {why}")
            starting.append(self.stages[uid])
            starting = still_starting(starting, self.spark, self.settings, self.settings.starting_at_once)
        still_starting(starting, self.spark, self.settings, at_most=0)
        for gate in gates:
            gate.open(Hold.START)

    def _finished_before(self) -> frozenset[StageUid]:
        """Return the stages that have finished in what the attempt goes on from: no source feeds them any more.

        Source: operators that are finished on restore (SAO#testStateWithFullyFinishedOperators).
        """
        known, found = self.coordinator.finished_before, set[StageUid]()
        for uid, stage in self.stages.items():
            inputs = stage.worker.inputs
            if uid not in known or not (found.issuperset(inputs) if inputs else stage.is_bounded):
                continue
            found.add(uid)
            if not inputs:
                self.reporter.info(
                    f"source {uid} has FINISHED in an earlier run, so this stream does not read it again: an epoch "
                    "reads what has come to it since"
                )
        return frozenset(found)

    # --- while it runs ----------------------------------------------------------------------------------------

    def wait(self, timeout: float) -> RunEnd | None:
        """Supervise for so long; return how the attempt ended, or None when it runs on."""
        until = time.monotonic() + timeout
        while True:
            with suppress(queue.Empty):
                return self._ends.get_nowait()
            end = self._look_at_queries() or self._look_at_coordinator() or self._look_at_tables()
            end = end or self._look_at_executors() or self._look_at_backlog() or self._look_for_the_end()
            self._look_at_commits()
            if end is not None:
                return end
            left = until - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(LOOK_AT_QUERIES_EVERY, left))

    def _poll(self) -> float | None:
        self.requests(self.coordinator)
        due = self.coordinator.poll()
        now = time.monotonic()
        if now >= self._next_cut:
            self._next_cut = now + CUT_LOGS_EVERY
            self.cut_logs()
        return due

    def _poll_failed(self, error: Exception) -> None:
        if isinstance(error, Fenced):
            self._ends.put(TakenOver(str(error)))
        elif not isinstance(error, CheckpointError):
            self._ends.put(StageDied(None, f"the coordinator failed: {error}", error))

    def _tidy(self) -> None:
        self.cut_logs()
        self.garbage.collect_if_due()

    def cut_logs(self) -> None:
        """Remove log entries that nobody needs any more."""
        if self._cutting.acquire(blocking=False):
            try:
                pending = [CheckpointId(p.checkpoint_id) for p in self.coordinator.record.pending]
                cut_logs(self.loop.workers, pending)
            finally:
                self._cutting.release()

    def _look_at_queries(self) -> RunEnd | None:
        for uid, stage in self.stages.items():
            if uid in self._finished and not stage.is_over:
                stage.stop(self.settings.stop_timeout)
                self.coordinator.report_stage(uid, StageStatus.FINISHED)
                stage.is_over = True
            if stage.is_over or stage.is_active:
                continue
            if stage.start_again(self.spark, self.settings):
                continue
            error = stage.failure
            if error is None and stage.is_bounded and not stage.was_stopped:
                self._source_ended(stage)
                continue
            query = stage.told_by
            told = None if error is None else query.understood(error)
            if told is not None:
                told.__cause__ = error
                return StageDied(query.uid, str(told), told)
            title = self.pipeline.title(query.uid)
            return StageDied(query.uid, f"{title} failed: {error}" if error else was_stopped(title), error)
        return None

    def _source_ended(self, stage: RunningStage) -> None:
        """Barriers pass an ended source, its part is finished; told at once where checkpoints are refused from now."""
        if stage.is_ended:
            return
        stage.worker.is_ended = True
        if not self._checkpoints_after_end:
            self._tell_finished(stage)

    def _look_at_ends(self) -> None:
        """End the stages that have processed the last row; those are FINISHED whose end a checkpoint has.

        Source: a task waits for the first checkpoint after its end of data (STF#testWaitingForFinalCheckpoint).
        """
        self._end_of_input.look()
        newest = self.loop.newest_complete
        for stage in self.stages.values():
            if newest is not None and not stage.has_finished and stage.worker.has_finished_in(newest):
                with suppress(CheckpointError):  # a store that cannot be asked is told with the next look
                    self._tell_finished(stage)

    def _tell_finished(self, stage: RunningStage) -> None:
        keeps = self._checkpoints_after_end
        self.coordinator.report_stage(stage.uid, StageStatus.FINISHED, keeps_position=keeps)
        stage.has_finished = True
        if keeps:
            self.reporter.info(f"{self.pipeline.title(stage.uid)} is FINISHED")
            return
        if not all(one.is_ended for one in self.stages.values() if not one.worker.inputs):
            self.reporter.warn(
                f"source {stage.uid} has ended, and checkpoints_after_tasks_finish is off: this stream takes no "
                "checkpoint from now on, and what still comes is published by the next run. Terminate it, or turn the "
                "setting on"
            )

    @property
    def _checkpoints_after_end(self) -> bool:
        return self.coordinator.config.checkpoints_after_tasks_finish

    def _look_at_executors(self) -> RunEnd | None:
        return StageDied(None, lost) if (lost := self._executors.look()) else None

    def _look_at_backlog(self) -> RunEnd | None:
        try:
            self._backlog.look(self.stages.values())
        except CheckpointError:
            return None  # the store cannot be asked: it is told with the next change
        except Exception as error:
            return StageDied(None, f"is_backlog of a source failed: {error}", error)
        return None

    def _look_at_commits(self) -> None:
        sources = [stage.gate for stage in self.stages.values() if not stage.worker.inputs]
        self._backpressure.look(sources, dict(self.coordinator.notifying))
        self._orders.look(self.stages.values(), self.spark, self.settings, self.loop.newest_complete)

    def _look_at_coordinator(self) -> RunEnd | None:
        match self.coordinator.stop_outcome:
            case Stopped(uri):
                return StoppedWithSavepoint(uri)
            case StoppedBadly(_, message):
                return StageDied(None, message)
        failure = self.coordinator.failure
        return StageDied(None, failure) if failure else None

    def _look_at_tables(self) -> RunEnd | None:
        """A table that shows nothing new is a failure nobody would see: it counts as failed checkpoints do."""
        missed = self.tables.missed_more_than(self.coordinator.config.tolerable_failed_checkpoints)
        return StageDied(None, missed) if missed else None

    def _look_for_the_end(self) -> RunEnd | None:
        """Take the final checkpoint once all input is exhausted: it publishes the last rows.

        A stop-with-savepoint that was asked for meanwhile is waited for: who asked gets the savepoint.
        """
        self._look_at_ends()
        if self.coordinator.is_stopping or not self._end_of_input.is_reached:
            return None
        if not self._checkpoints_after_end:
            return EndOfData(None)
        record = self.coordinator.record
        if self._final_from is None:
            self._final_from = CheckpointId(record.next_id)
        newest = self.loop.newest_complete
        if newest is not None and newest >= self._final_from:
            if not self.tables.unpublished:
                return EndOfData(newest)
            self._final_from = CheckpointId(record.next_id)  # the last rows are not out yet
        now = time.monotonic()
        if not record.pending and now >= self._final_at:
            self._final_at = now + FINAL_CHECKPOINT_EVERY
            self.coordinator.trigger(CheckpointRequest(note="final checkpoint"))
        return None

    # --- the end ----------------------------------------------------------------------------------------------

    def stop(self) -> bool:
        """Stop everything; True when every query ended between two batches and its directory can be continued."""
        self.gateway.loop = None
        self.gateway.after_completion = None
        if hasattr(self, "poller"):
            self.poller.stop()
        clean = stop_stages(list(self.stages.values()), self.settings.stop_timeout)
        if hasattr(self, "loop"):
            self.loop.stop()
        self._threads.close()
        return clean
