"""Turns a stage into a running query: its inputs read channel logs, its batches go to its log or its table.

The same in both kinds of run; only the trigger and who releases barriers differ.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from dagster_ckpt.authoring.stages import StageDefinition, StageRole
from dagster_ckpt.core.ids import BatchId, StageUid
from dagster_ckpt.errors import CheckpointError, InvalidRequest
from dagster_ckpt.spark.attempt.fan_out import FanOut, SinkBranch
from dagster_ckpt.spark.attempt.own_objects import OwnObjects, StageArguments, call_function, call_stage
from dagster_ckpt.spark.attempt.participant import (
    BatchFiles,
    ParticipantContext,
    Requeue,
    plan_empty_batch,
    rules_ahead,
)
from dagster_ckpt.spark.attempt.query_state import checkpoint_location, refuse_names_that_are_patterns
from dagster_ckpt.spark.channel.batch_input import BatchInput
from dagster_ckpt.spark.channel.entries import Release
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.channel.positions import names_of_inputs
from dagster_ckpt.spark.channel.sink import ChannelSink
from dagster_ckpt.spark.directories import AttemptDirectory, StageDirectory
from dagster_ckpt.spark.plan.errors import understood
from dagster_ckpt.spark.plan.files import no_files_yet, no_such_columns
from dagster_ckpt.spark.plan.functions import digest_of, refuse_renamed_variables
from dagster_ckpt.spark.plan.refusals import (
    is_meant_for_readers,
    random_keys,
    refuse_counted_changes,
    refuse_lost_watermark,
    refuse_mode,
)
from dagster_ckpt.spark.plan.rules import check_plan
from dagster_ckpt.spark.plan.sources import (
    ChainOfFrames,
    refuse_clean_source,
    renamed,
    why_it_needs_a_query,
)
from dagster_ckpt.spark.plan.tree import has_processing_timers
from dagster_ckpt.spark.session import session_settings, start_under_free_name
from dagster_ckpt.spark.sink.committables import is_prepared
from dagster_ckpt.spark.sink.port import Sink
from dagster_ckpt.spark.source.positions import note_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline

_PARTITIONS = "spark.sql.shuffle.partitions"
_IDLE_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"

BatchWriter = Callable[["DataFrame", int], None]
TableWriterFactory = Callable[["StageDefinition", StageDirectory, "DataFrame"], BatchWriter]

log = logging.getLogger(__name__)


def _unguarded(write: BatchWriter) -> BatchWriter:
    return write


def _nothing_again(uid: StageUid) -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class StageQuery:
    """One stage of one attempt, ready to be started."""

    pipeline: CheckpointedPipeline
    uid: StageUid
    attempt: AttemptDirectory
    table_writer: TableWriterFactory
    arguments: StageArguments = StageArguments()
    members: Mapping[StageUid, StageArguments] = field(default_factory=dict)
    """Arguments of the stages that run in this query before the last one, by uid."""
    guard: Callable[[BatchWriter], BatchWriter] = _unguarded
    """Wrapped around what takes the batches: a streaming run holds and stops queries there."""
    warn: Callable[[str], None] = log.warning
    """Told of what is no error and may be a mistake."""
    requeue: Callable[[StageUid], Requeue | None] = _nothing_again
    """Rows of a stage's own table that are to go through it again; None: none are."""
    sink_of: Callable[[StageUid], Sink] | None = None
    """Returns a stage's sink; None: nothing is asked of sinks ahead."""
    fan_out: FanOut | None = None
    """Takes the query's batches to its readers; None: they go to its channel."""
    compare: Callable[..., None] = check_plan
    """Compares the query's plan with the one that its state was made by (``check_plan``)."""

    @property
    def stage(self) -> StageDefinition:
        """The stage as its author declared it."""
        return self.pipeline.stages[self.uid]

    @property
    def directory(self) -> StageDirectory:
        """The stage's working directory."""
        return self.attempt.stage(self.uid)

    @property
    def log(self) -> ChannelLog:
        """The stage's channel log; a sink's has no rows, but its batches and barriers."""
        return ChannelLog(self.directory.log)

    @property
    def release(self) -> Release:
        """Release of the stage: the barriers that readers of its inputs may pass."""
        return Release(self.directory.root)

    def input_logs(self) -> dict[StageUid, ChannelLog]:
        """Return the channel logs the stage reads."""
        return {uid: ChannelLog(self.attempt.stage(uid).log) for uid in self.pipeline.upstream[self.uid]}

    def start(
        self, spark: SparkSession, *, available_now: Literal[True] | None = None, interval: str = "0 seconds"
    ) -> StreamingQuery:
        """Start the query: until its input is exhausted (``available_now``) or until it is stopped.

        Raises InvalidRequest when the function does not return a streaming DataFrame or its rows cannot be carried.
        """
        with self._as_set(spark):
            return self._start(spark, available_now=available_now, interval=interval)

    def planned(self, spark: SparkSession) -> DataFrame:
        """Return the rows of the query, planned and compared and not started; its channel gets its columns.

        Raises what ``start`` raises.
        """
        with self._as_set(spark):
            own = self._own_objects()
            frame, _ = self._output(spark, own)
            refuse_mode(self.pipeline.title(self.uid), frame, self.stage.output_mode)
            self._batch_writer(frame, own)
            return frame

    def branch(self, spark: SparkSession) -> SinkBranch | str:
        """Return the sink as a branch of the query that it reads, or why it needs a query of its own.

        Raises what ``start`` raises.
        """
        with self._as_set(spark):
            frame, inputs = self._output(spark, self._own_objects())
            refuse_mode(self.pipeline.title(self.uid), frame, self.stage.output_mode)
            if why := why_it_needs_a_query(frame, inputs):
                return why
            write = self.table_writer(self.stage, self.directory, frame)

        def stage(batch: DataFrame, number: int) -> None:
            write(call_function(self.stage, batch.sparkSession, [batch], self.arguments), number)

        (upstream,) = self.pipeline.upstream[self.uid]
        branch = SinkBranch(
            uid=self.uid,
            directory=self.directory,
            log=self.log,
            read=self.input_logs()[upstream],
            names=names_of_inputs(self.pipeline, self.uid),
            write=stage,
        )
        return "has rows in the channel" if branch.has_backlog else branch

    @contextmanager
    def _as_set(self, spark: SparkSession) -> Iterator[None]:
        """Give the session the query's settings; what fails is told in one sentence where it can be."""
        try:
            with session_settings(spark, self._settings):
                yield
        except Exception as error:
            told = self.understood(error)
            if told is None:
                raise
            raise told from error

    @property
    def _settings(self) -> dict[str, str]:
        """Settings of the session that the query is to have, and only this one."""
        wanted = self.stage.partitions
        return {**self.stage.conf, **({} if wanted is None else {_PARTITIONS: str(wanted)})}

    def understood(self, error: BaseException) -> CheckpointError | None:
        """Return the query's end in one sentence; None: the error says it best itself."""
        return understood(self.stage, error, title=self.pipeline.title(self.uid))

    def _start(
        self, spark: SparkSession, *, available_now: Literal[True] | None, interval: str
    ) -> StreamingQuery:
        stage = self.stage
        own = self._own_objects()
        frame, _ = self._output(spark, own)
        location, settings = checkpoint_location(spark, self.uid, self.directory.query, frame)
        writer = (
            frame.writeStream.outputMode(stage.output_mode)
            .option("checkpointLocation", location)
            .foreachBatch(self.guard(self._checked(self._batch_writer(frame, own))))
        )
        trigger = (
            writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=interval)
        )
        if available_now and has_processing_timers(frame):
            settings |= {_IDLE_BATCHES: "false"}  # there is always one more: such a query would never be done
        if stage.participant is not None and self.requeue(self.uid) is not None:
            plan_empty_batch(self.directory.query)
        with session_settings(spark, settings):
            return start_under_free_name(
                lambda name: trigger.queryName(name).start(),
                f"{self.pipeline.name}.{self.uid}",
                lambda: {query.name for query in spark.streams.active},
            )

    def _own_objects(self) -> OwnObjects:
        return OwnObjects.of(self.pipeline, self.uid, self.directory)

    def _output(self, spark: SparkSession, own: OwnObjects) -> tuple[DataFrame, list[DataFrame]]:
        """Return the rows of the query, each function called with what those before it returned, and its inputs."""
        frames: dict[StageUid, DataFrame] = {}
        read: list[tuple[StageUid, DataFrame]] = []
        chain = self.pipeline.chain_of(self.uid)
        checked = None if chain is None else ChainOfFrames(chain=chain)
        for uid in self.pipeline.members(self.uid):
            inputs = self.pipeline.authored.upstream[uid]
            from_chain = any(one in frames for one in inputs)
            given = [frames[one] if one in frames else self._input(spark, uid, one) for one in inputs]
            read += ((one, rows) for one, rows in zip(inputs, given, strict=True) if one not in frames)
            arguments = replace(self._arguments(uid), state=own.of_function(uid))
            frames[uid] = frame = call_stage(self._definition(uid), spark, given, arguments)
            if checked is not None:
                checked.check(uid, frame, given, from_chain=from_chain)
            if not from_chain:
                whose = self._whose(uid)
                for told in (
                    *no_files_yet(whose, frame, self.directory.query),
                    *no_such_columns(whose, frame),
                ):
                    self.warn(told)
        refuse_clean_source(self.pipeline.title(self.uid), frame)
        stages = () if checked is None else checked.owners(frame)
        refuse_lost_watermark(self.pipeline.title(self.uid), frame, read)
        self._tell_random_keys(frame)
        refuse_counted_changes(self.pipeline, self.attempt, self.uid, frame, read)
        self.compare(
            self.uid,
            self.directory,
            frame,
            output_mode=self.stage.output_mode,
            stages=stages,
            functions={str(uid): digest_of(self._definition(uid).fn) for uid in frames},
            renamed=renamed(self.pipeline, self.uid),
        )
        return frame, [rows for _, rows in read]

    def _tell_random_keys(self, frame: DataFrame) -> None:
        """Warn of a key that is another one each time its row is processed: nothing ever replaces its row."""
        key = self.stage.table.key if self.stage.table is not None and self.stage.participant is None else ()
        for name in random_keys(frame, key):
            self.warn(
                f"{self.pipeline.title(self.uid)}: the key column {name!r} is drawn by chance, so that a row which is "
                "processed again is another row of the table: make the key of columns that the row brings"
            )

    def _whose(self, uid: StageUid) -> str:
        return self._definition(uid).title or self.pipeline.title(uid)

    def _definition(self, uid: StageUid) -> StageDefinition:
        return self.pipeline.authored.stages[uid]

    def _arguments(self, uid: StageUid) -> StageArguments:
        return self.arguments if uid == self.uid else self.members.get(uid, StageArguments())

    def _input(self, spark: SparkSession, reader: StageUid, upstream: StageUid) -> DataFrame:
        from dagster_ckpt.spark.channel.source import (
            read_channel,  # the only module that needs pyspark to load
        )

        return read_channel(
            spark,
            str(self.attempt.stage(upstream).log),
            channel=upstream,
            formerly=self.pipeline.stages[upstream].previous_uids,
            release_file=str(self.release.path),
            max_entries=self._definition(reader).max_entries_per_trigger or None,
        )

    def _checked(self, write: BatchWriter) -> BatchWriter:
        """Return ``write``, which looks at names of files first, and once at what Spark says when it plans a batch."""
        first = iter([True])

        def checked(batch: DataFrame, batch_id: int) -> None:
            refuse_names_that_are_patterns(
                self.pipeline.title(self.uid), self.directory.query, BatchId(batch_id)
            )
            if next(first, False):
                refuse_renamed_variables(self.directory.query, batch_id)
                note_topics(self.pipeline, self.uid, self.directory, BatchId(batch_id))
            write(batch, batch_id)

        return checked

    def _channel(self, frame: DataFrame, own: OwnObjects, *, marked: bool) -> ChannelSink:
        participant = self.stage.participant
        if participant is None:
            return ChannelSink(self.log, frame.schema, marked=marked, processed=own.processed, note=own.note)
        files: BatchFiles = participant.open(self._participant_context(frame, own))
        return ChannelSink(
            self.log, files.schema, marked=marked, write=files.write, replay=files.replay, note=own.note
        )

    def _participant_context(self, frame: DataFrame, own: OwnObjects) -> ParticipantContext:
        stage, sink_of = self.stage, self.sink_of

        def function(spark: SparkSession, inputs: Sequence[DataFrame]) -> DataFrame:
            return call_function(stage, spark, inputs, replace(self.arguments, state=own.again(self.uid)))

        return ParticipantContext(
            stage=stage,
            directory=self.directory,
            frame=frame,
            keep=lambda rows: self.table_writer(stage, self.directory, rows),
            requeue=lambda: self.requeue(self.uid),
            function=function,
            processed=own.processed,
            input_of=self._input_of,
            rules_ahead=lambda rows: rules_ahead(self.pipeline, self.uid, rows, sink_of) if sink_of else (),
            own_table=lambda: sink_of(self.uid) if sink_of else None,
            warn=self.warn,
        )

    def _input_of(self, batch: BatchId | None) -> BatchInput:
        channels, logs = self.pipeline.upstream[self.uid], self.input_logs()
        if not channels:
            raise InvalidRequest(f"{self.uid!r} reads a source, and only a channel is read twice")
        if batch is None:
            return BatchInput(channels=channels, logs=logs)
        return BatchInput.of(
            channels, logs, names_of_inputs(self.pipeline, self.uid), self.directory.query, batch
        )

    def _batch_writer(self, frame: DataFrame, own: OwnObjects) -> BatchWriter:
        if self.stage.role is not StageRole.SINK:
            # Such stages read one another as tables, which no watermark passes in Spark either.
            marked = not self.stage.reads_all and is_meant_for_readers(frame)
            try:
                channel = self._channel(frame, own, marked=marked)
            except InvalidRequest as error:
                raise InvalidRequest(f"{self._whose(self.uid)}: {error}") from error
            writer = own.writer(channel, is_settled=lambda batch: self.log.find_batch(batch) is not None)
            return writer if self.fan_out is None else self.fan_out.instead_of(writer, frame)
        log, write = self.log, self.table_writer(self.stage, self.directory, frame)

        def write_and_note(batch: DataFrame, batch_id: int) -> None:
            with own.processed(batch, BatchId(batch_id)) as rows:
                write(rows, batch_id)
            own.note(BatchId(batch_id))
            log.append_data(BatchId(batch_id), ())  # so that a barrier in a sink's log knows its last batch

        return own.writer(write_and_note, is_settled=self._is_written)

    def _is_written(self, batch: BatchId) -> bool:
        """Tell whether the sink has the rows of a batch."""
        return is_prepared(self.directory.root, batch) or self.log.find_batch(batch) is not None
