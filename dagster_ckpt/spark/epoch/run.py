"""An epoch run: every stage drains what is there, in graph order, and the barrier follows the data down the graph.

The stages of one run may execute in several processes, each op in its own: what has been done is read from marks
in the working directory (``RunProgress``), never from memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.checkpoint.failures import FailureDecision
from dagster_ckpt.core.ids import BatchId, CheckpointId, LogPosition, StageUid
from dagster_ckpt.core.request import CheckpointRequest, Failed, Rejected, Triggered
from dagster_ckpt.errors import CheckpointError, Corrupt, Fenced, Unavailable
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.spark.attempt.own_objects import StageArguments
from dagster_ckpt.spark.attempt.participant import Requeue
from dagster_ckpt.spark.attempt.sinks import PipelineSinks
from dagster_ckpt.spark.attempt.stage_query import StageQuery
from dagster_ckpt.spark.channel.entries import BarrierEntry
from dagster_ckpt.spark.channel.in_flight import Span, plan_in_flight, spans_in_flight
from dagster_ckpt.spark.channel.log import ChannelLog, Outdated
from dagster_ckpt.spark.channel.positions import channel_positions, names_of_inputs
from dagster_ckpt.spark.directories import AttemptDirectory, RunProgress
from dagster_ckpt.spark.epoch.drains import Drained, Drains
from dagster_ckpt.spark.java.process import JAVA_GONE, is_java_gone
from dagster_ckpt.spark.plan.files import written_again
from dagster_ckpt.spark.snapshot.capture import read_offsets
from dagster_ckpt.spark.snapshot.take import Cut, SnapshotOutcome, StageSnapshotter
from dagster_ckpt.spark.stage_report import Reporter, StageReport

if TYPE_CHECKING:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline

_CHECKPOINT = "_checkpoint"
"""A mark beside those of the stages: no uid begins so."""
_NO_CHECKPOINT = "none: "
LOOK_AT_HOOKS_EVERY = 0.02


class EpochWork(StrEnum):
    """Work of a run before it takes its checkpoint."""

    DRAIN = "drain"
    """Process the data that has arrived."""
    NONE = "none"
    """Nothing: the checkpoint holds the idle pipeline (a savepoint of an idle pipeline)."""


class RetryStage(Exception):
    """The failure manager decided: run this op again after a pause (a storage error that may pass)."""


class FailRun(Exception):
    """The failure manager decided: more checkpoints failed than are tolerated."""


@dataclass(frozen=True, kw_only=True)
class EpochRun:
    """Runs the stages of one attempt, once each, and takes the run's checkpoint on the way."""

    pipeline: CheckpointedPipeline
    coordinator: CheckpointCoordinator
    attempt: AttemptDirectory
    run_id: str
    drains: Drains
    tables: PipelineSinks
    reporter: Reporter
    request: CheckpointRequest = CheckpointRequest()
    """What the run's checkpoint shall be; its ``request_id`` is set by the run."""
    work: EpochWork = EpochWork.DRAIN
    hooks: Mapping[str, Any] = field(default_factory=dict)
    """What stages find in ``context.hooks``."""
    arguments_of: Callable[[StageUid], StageArguments] = lambda uid: StageArguments()
    """Arguments of a stage that runs in another one's query, or before its own turn."""
    has_turn: Callable[[StageUid], bool] = lambda uid: True
    """Whether a stage has its turn in this process: only then it may be begun before it."""

    @property
    def progress(self) -> RunProgress:
        """Progress of this attempt of the run, in whichever process: another one under the same name has its own."""
        return self.attempt.progress(f"{self.run_id}-{self.coordinator.epoch}")

    def run_stage(
        self,
        uid: StageUid,
        arguments: StageArguments = StageArguments(),
        *,
        retries_left: int = 0,
    ) -> StageReport | None:
        """Drain one stage, pass the barrier on, take its part of the checkpoint; None when that was done before.

        A stage within a chain has nothing to do itself: the chain runs when it is the last one's turn.

        Stages it depends on that have not run in this attempt (a re-execution from a failed step) run first.

        Raises:
            RetryStage, FailRun: as the failure manager decided.
            Fenced: a newer attempt owns the pipeline.
        """
        chain = self.pipeline.chain_of(uid)
        if chain is not None and chain.uid != uid:
            self.reporter.info(f"stage {uid} runs in the chain {chain.name}: when it is {chain.uid}'s turn")
            return None
        for ancestor in self.pipeline.ancestors(uid):
            if self.progress.read(ancestor) is None:
                self.reporter.info(f"{ancestor} has not run in this run: it runs now, before {uid}")
                self._run_one(ancestor, self.arguments_of(ancestor), retries_left)
        if self.progress.read(uid) is not None:
            return None
        return self._run_one(uid, arguments, retries_left)

    def run_missing(self) -> None:
        """Run every stage that this run has not run."""
        for stage in self.pipeline.graph.topological:
            self.run_stage(stage.uid, self.arguments_of(stage.uid))

    @property
    def checkpoint(self) -> CheckpointId | None:
        """The run's checkpoint; None before it was triggered, or when it could not be."""
        recorded = self.progress.read(_CHECKPOINT)
        return CheckpointId(int(recorded)) if recorded and recorded.isdecimal() else None

    def forget_consumed_entries(self, completed: CheckpointId) -> None:
        """Drop channel log entries below the checkpoint before ``completed``: every consumer stands behind them.

        The entries of the last epoch stay, so that a query that is started again may look at its last batch.
        """
        for uid in self.pipeline.stages:
            log = ChannelLog(self.attempt.stage(uid).log)
            earlier = [
                at
                for at, entry in log.entries(log.start)
                if isinstance(entry, BarrierEntry) and entry.checkpoint_id < completed
            ]
            if earlier:
                log.truncate_before(earlier[-1])

    def _chain(self, uid: StageUid) -> str:
        chain = self.pipeline.chain_of(uid)
        return "" if chain is None else chain.name

    # --- one stage ---------------------------------------------------------------------------------------------

    def _run_one(self, uid: StageUid, arguments: StageArguments, retries_left: int) -> StageReport:
        """Run one stage; whatever breaks in an attempt that was overtaken is told as that."""
        self.coordinator.poll()
        try:
            return self._work_and_report(uid, arguments, retries_left)
        except (RetryStage, FailRun, Fenced):
            raise
        except Exception as error:
            self.coordinator.poll()  # raises Fenced where a newer attempt has taken the directory away
            if is_java_gone(error) and not isinstance(error, CheckpointError):
                raise Unavailable(f"stage {uid}: {JAVA_GONE}") from error
            raise

    def _work_and_report(self, uid: StageUid, arguments: StageArguments, retries_left: int) -> StageReport:
        query = self._query(uid, arguments)
        if not self.pipeline.upstream[uid]:
            drained = self._drain(query, self.checkpoint)
            self._warn_of_files(query)
            checkpoint, why = self._trigger()
        else:
            checkpoint, why = self._trigger()
            drained = self._drain(query, checkpoint)
        if checkpoint is None:
            report = StageReport(
                uid=uid,
                chain=self._chain(uid),
                checkpoint_id=None,
                batch_id=query.log.last_batch(),
                batches=drained.batches,
                rows=drained.rows,
                drain_ms=drained.ms,
                outcome=why,
            )
        else:
            report = self._checkpoint_stage(query, checkpoint, drained, retries_left)
        self.reporter.info(report.line())
        self.progress.mark(uid)
        return report

    def _warn_of_files(self, query: StageQuery) -> None:
        """Tell of files that got rows after they were read: nothing else does, and nobody will read them."""
        if again := written_again(query.directory.query):
            others = f" and {len(again) - 1} more" if len(again) > 1 else ""
            self.reporter.warn(
                f"{again[0]}{others} of stage {query.uid} was written again after it was read: Spark reads a file "
                "once, and what is new in it is not read. Give new rows a file of their own"
            )

    def _query(self, uid: StageUid, arguments: StageArguments) -> StageQuery:
        return StageQuery(
            pipeline=self.pipeline,
            uid=uid,
            attempt=self.attempt,
            table_writer=self.tables.writer,
            arguments=replace(arguments, hooks=self.hooks),
            warn=self.reporter.warn,
            requeue=lambda uid: Requeue.of(uid, self.coordinator.record, self.tables),
            sink_of=self.tables.of,
            members={
                one: replace(self.arguments_of(one), hooks=self.hooks)
                for one in self.pipeline.members(uid)
                if one != uid
            },
        )

    def _drain(self, query: StageQuery, checkpoint: CheckpointId | None) -> Drained:
        """Process the available data, unless an earlier try of this op did and has put the barrier behind it."""
        if self.work is EpochWork.NONE:
            return Drained()
        if checkpoint is not None and query.log.find_barrier(checkpoint) is not None:
            return Drained()
        if not self.drains.has(query.uid):
            self._release_earlier_barriers(query, checkpoint)
        return self._processed(query)

    def _processed(self, query: StageQuery) -> Drained:
        name = self._chain(query.uid) or query.uid
        return self.drains.finish(query, name, meanwhile=lambda: self._begin_others(query.uid))

    def _begin_others(self, uid: StageUid) -> None:
        """Begin stages that have all they need and whose turn comes later: they run beside this one.

        What prevents it, a log that cannot be read too, is told in that stage's turn, and not as this one's failure.
        """
        for other in self.pipeline.stages:
            if self.drains.room and other != uid and self.has_turn(other) and self._is_ready(other):
                with suppress(Exception):
                    self._begin(self._query(other, self.arguments_of(other)), self.checkpoint)

    def _begin(self, query: StageQuery, checkpoint: CheckpointId | None) -> None:
        if checkpoint is None or query.log.find_barrier(checkpoint) is None:
            self._release_earlier_barriers(query, checkpoint)
            self.drains.begin(query)

    def _is_ready(self, uid: StageUid) -> bool:
        return (
            not self.drains.has(uid)
            and not self.drains.had_turn(uid)
            and self.progress.read(uid) is None
            and all(self.progress.read(one) is not None for one in self.pipeline.ancestors(uid))
        )

    def _release_earlier_barriers(self, query: StageQuery, checkpoint: CheckpointId | None) -> None:
        """Let the readers pass the barriers of earlier epochs, completed or not; the run's own holds them."""
        if checkpoint is not None:
            if checkpoint > 1:
                query.release.through(CheckpointId(checkpoint - 1))
            return
        for log in query.input_logs().values():
            barriers = [e.checkpoint_id for _, e in log.entries(log.start) if isinstance(e, BarrierEntry)]
            if barriers:
                query.release.through(max(barriers))

    # --- its part of the checkpoint ----------------------------------------------------------------------------

    def _trigger(self) -> tuple[CheckpointId | None, str]:
        """Return the run's checkpoint, triggering it on first use; None and why when it cannot be taken."""
        recorded = self.progress.read(_CHECKPOINT)
        if recorded is None:
            # Another process of the run asks for the same one, another try of it for one of its own.
            request = f"run-{self.run_id}-{self.coordinator.epoch}"
            outcome = self.coordinator.trigger(replace(self.request, request_id=request))
            match outcome:
                case Triggered():
                    recorded = self._after_hooks(outcome.id)
                case Rejected():
                    recorded = self._no_checkpoint(f"{outcome.reason.name}: {outcome.message}")
                case _:
                    recorded = self._no_checkpoint("another checkpoint is pending")
        if recorded.startswith(_NO_CHECKPOINT):
            return None, recorded.removeprefix(_NO_CHECKPOINT)
        return CheckpointId(int(recorded)), ""

    @property
    def without_checkpoint(self) -> str:
        """Why the run has no checkpoint; empty: it has, or none was asked for."""
        recorded = self.progress.read(_CHECKPOINT) or ""
        return recorded.removeprefix(_NO_CHECKPOINT) if recorded.startswith(_NO_CHECKPOINT) else ""

    def _no_checkpoint(self, why: str) -> str:
        self.reporter.warn(f"no checkpoint in this run, the pipeline goes on: {why}")
        return self.progress.mark(_CHECKPOINT, _NO_CHECKPOINT + why)

    def _after_hooks(self, checkpoint: CheckpointId) -> str:
        """Mark the checkpoint once every hook has given its state: their process may end with this op."""
        while self.coordinator.awaits_hooks(checkpoint):
            time.sleep(LOOK_AT_HOOKS_EVERY)
            self.coordinator.poll()
        outcome = self.coordinator.status_of(checkpoint) if self.hooks else None
        if isinstance(outcome, Failed):
            return self._no_checkpoint(f"{outcome.reason.name}: {outcome.message}")
        return self.progress.mark(_CHECKPOINT, str(checkpoint))

    def _checkpoint_stage(
        self, query: StageQuery, checkpoint: CheckpointId, drained: Drained, retries_left: int
    ) -> StageReport:
        position, barrier = self._pass_barrier(query, checkpoint)
        outcome = self._snapshot(query, position, barrier, retries_left)
        report = StageReport(
            uid=query.uid,
            chain=self._chain(query.uid),
            checkpoint_id=checkpoint,
            batch_id=barrier.batch_id,
            batches=drained.batches,
            rows=drained.rows,
            drain_ms=drained.ms,
            subtasks=outcome.subtasks,
            metrics=outcome.metrics,
            outcome=outcome.text,
        )
        match outcome.decision:
            case FailureDecision.RETRY_OP:
                raise RetryStage(outcome.text)
            case FailureDecision.FAIL_RUN:
                raise FailRun(outcome.text)
            case FailureDecision.GO_ON:
                self.reporter.warn(
                    f"checkpoint {checkpoint} failed at stage {query.uid}, the pipeline goes on: {outcome.text}"
                )
            case None:
                pass
        return report

    def _pass_barrier(self, query: StageQuery, checkpoint: CheckpointId) -> tuple[LogPosition, BarrierEntry]:
        result = query.log.append_barrier(checkpoint, timestamp=time.time())
        if isinstance(result, Outdated):
            raise Corrupt(
                f"the channel log of stage {query.uid} is ahead: it holds checkpoint {result.newest}, this run takes "
                f"{checkpoint}. Start the run with restore_from: latest"
            )
        position = result.position
        entry = query.log.read(position) if position is not None else None
        if position is None or not isinstance(entry, BarrierEntry):
            raise Corrupt(
                f"the channel log of stage {query.uid} has lost the barrier of checkpoint {checkpoint}"
            )
        return position, entry

    def _snapshot(
        self, query: StageQuery, position: LogPosition, barrier: BarrierEntry, retries_left: int
    ) -> SnapshotOutcome:
        checkpoint = barrier.checkpoint_id
        if not self.coordinator.is_pending(checkpoint):
            self.coordinator.confirm_aborted(checkpoint, query.uid)
            return SnapshotOutcome(decision=None, text="no longer wanted (the checkpoint is over)")
        self.coordinator.rearm_timeout(checkpoint)
        cut = self._cut(query, position, barrier)
        snapshotter = StageSnapshotter(
            uid=query.uid,
            directory=query.directory,
            coordinator=self.coordinator,
            local_copies=self.attempt.local_copies(query.uid),
            participant=query.stage.participant,
        )
        return snapshotter.take(cut, retries_left=retries_left)

    def _cut(self, query: StageQuery, position: LogPosition, barrier: BarrierEntry) -> Cut:
        batch = barrier.batch_id
        sink = self.tables.cut(query.stage, query.directory, batch)
        logs = query.input_logs()
        barriers = {
            uid: found
            for uid, log in logs.items()
            if (found := log.find_barrier(barrier.checkpoint_id)) is not None
        }
        spans = self._unread(query, batch, barriers)
        unread = plan_in_flight(spans)
        return Cut(
            checkpoint_id=barrier.checkpoint_id,
            batch_id=batch,
            input_positions=barriers,
            output_position=position,
            table=sink.snapshot,
            flush=sink.flush,
            extra_files=(*sink.files, *unread),
            recording=frozenset(span.upstream for span in spans),
            persisted_in_flight=sum(file.size for file in unread),
        )

    def _unread(
        self, query: StageQuery, batch: BatchId | None, barriers: Mapping[StageUid, LogPosition]
    ) -> list[Span]:
        """Return the spans that lie unread before the barriers: a stopped stream rests with rows on their way."""
        logs = {uid: log for uid, log in query.input_logs().items() if uid in barriers}
        read = {uid: log.start for uid, log in logs.items()}
        if batch is not None:
            names = names_of_inputs(self.pipeline, query.uid)
            found = channel_positions(read_offsets(query.directory.query, batch), names)
            read = {uid: found[uid] for uid in logs if uid in found}
        return spans_in_flight(read, barriers, logs)
