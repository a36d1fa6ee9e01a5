"""Prepares the working directory an attempt starts from: adopted, built from a snapshot, or empty.

Everything is verified before anything is started; what cannot be restored leaves the earlier state untouched.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from dagster_ckpt.authoring.stage_settings import Boundedness
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.checkpoint.tables import ShownTables
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.ids import BatchId, CheckpointId, CoordinatorEpoch, StageUid
from dagster_ckpt.core.model import FileEntry
from dagster_ckpt.core.restore.choice import Adopt, Fresh, Restore, RestoreDecision
from dagster_ckpt.core.restore.facts import DirectoryState, RestorePurpose
from dagster_ckpt.core.restore.matching import StageMatch
from dagster_ckpt.errors import CheckpointError, InvalidRequest
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.spark.attempt.earlier_attempts import is_as_left, left_tables, mark, tell_left, tell_orders
from dagster_ckpt.spark.attempt.showing import ShownBefore
from dagster_ckpt.spark.attempt.sinks import PipelineSinks
from dagster_ckpt.spark.attempt.sinks_at_start import SinksAtStart
from dagster_ckpt.spark.channel.in_flight import restore_logs, sweep_staging
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.exchange.mounts import begin, exchange_of, is_reached, sweep_older, work_in
from dagster_ckpt.spark.java.sessions import is_local
from dagster_ckpt.spark.sink.port import LaterRows
from dagster_ckpt.spark.snapshot.capture import (
    latest_committed_batch,
    noted_topic_ids,
    read_offsets,
    sweep_pins,
)
from dagster_ckpt.spark.snapshot.rescale import has_other_partition_count, rescale_stage, saved_partitions
from dagster_ckpt.spark.snapshot.restore import LocalCopy, build_stage_directory, find_local_copy
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot
from dagster_ckpt.spark.source.pins import refuse_lost
from dagster_ckpt.spark.source.positions import positions_at, source_positions
from dagster_ckpt.spark.stage_report import Reporter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
    from dagster_ckpt.authoring.stages import StageDefinition


def state_of_directory(
    pipeline: CheckpointedPipeline, work_dir: Path, path: str, record: CoordinatorRecord
) -> DirectoryState:
    """Return whether an attempt's directory holds everything its stages would go on from, and is this deployment's."""
    directory = AttemptDirectory(Path(path))
    if path and not directory.root.resolve().is_relative_to(work_dir.resolve()):
        return DirectoryState.ELSEWHERE
    if not path or not directory.root.is_dir() or not is_reached(directory.root):
        return DirectoryState.MISSING
    if not is_as_left(directory, record):
        return DirectoryState.PUT_BACK
    for uid in pipeline.stages:
        stage = directory.stage(uid)
        try:
            last = ChannelLog(stage.log).last_batch()
        except CheckpointError:
            return DirectoryState.DAMAGED
        if not _agree(last, stage.query):
            return DirectoryState.DAMAGED
    has_left = any(
        s.table and not record.left_tables.keys().isdisjoint(s.names) for s in pipeline.stages.values()
    )
    return DirectoryState.WITHOUT_TABLE if has_left else _state_of_partitions(pipeline, directory)


def _agree(last: BatchId | None, query: Path) -> bool:
    """Tell whether log and query know of the same batches: one is in the log before Spark commits it.

    Spark plans a batch again whose offsets are gone, with other ends, and the log knows the batch by its number alone.
    """
    committed = latest_committed_batch(query)
    if committed is None:
        return last is None
    return last is not None and committed <= last and (query / "offsets" / str(committed)).exists()


def _state_of_partitions(pipeline: CheckpointedPipeline, directory: AttemptDirectory) -> DirectoryState:
    """Spark would go on with the old number without a word, so a changed one has to be restored."""
    try:
        for uid, stage in pipeline.stages.items():
            wanted = stage.partitions
            if wanted is not None and has_other_partition_count(directory.stage(uid).query, wanted):
                return DirectoryState.OTHER_PARTITIONS
    except CheckpointError:
        return DirectoryState.DAMAGED
    return DirectoryState.INTACT


def refuse_lost_positions(
    pipeline: CheckpointedPipeline,
    reporter: Reporter,
    decision: RestoreDecision,
    finished: Callable[[], Collection[StageUid]] = frozenset,
) -> None:
    """Raise InvalidRequest where a source cannot read on from what an attempt would start from.

    ``finished``: stages that are not to run again, so that nobody reads on from their positions.
    """
    match decision:
        case Restore():
            over = not_read_again(decision.stages.matches, finished())
            read = source_positions(decision.metadata, pipeline)
            refuse_lost([at for at in read if at.stage not in over], reporter)
        case Adopt():
            directory = AttemptDirectory(Path(decision.working_directory))
            offsets: dict[str, dict[str, str]] = {}
            ids: dict[str, dict[str, str]] = {}
            for uid in pipeline.stages:
                query = directory.stage(uid).query
                batch = latest_committed_batch(query)
                offsets[uid] = {} if batch is None else read_offsets(query, batch)
                ids[uid] = noted_topic_ids(directory.stage(uid))
            over = frozenset(finished())
            read = positions_at(offsets, pipeline.chains, pipeline, ids)
            refuse_lost([at for at in read if at.stage not in over], reporter)
        case Fresh():
            pass
        case _:
            assert_never(decision)


def not_read_again(matches: Sequence[StageMatch], finished: Collection[StageUid]) -> frozenset[StageUid]:
    """Return finished stages, by their uids of now and of the snapshot."""
    return frozenset(finished) | {StageUid(match.snapshot.uid) for match in matches if match.uid in finished}


def bounded_among(pipeline: CheckpointedPipeline, finished: Collection[StageUid]) -> frozenset[StageUid]:
    """Return the sources, of finished stages, that a stream does not read again: those that are still bounded."""
    stages = pipeline.stages
    return frozenset(
        uid for uid in finished if uid in stages and stages[uid].boundedness is Boundedness.BOUNDED
    )


def stored_in(open_storage: Callable[[str], CheckpointStorage], decision: Restore) -> StoredSnapshot:
    """Return the snapshot that is restored, opened."""
    return StoredSnapshot(
        storage=open_storage(decision.location.base_uri),
        folder=decision.location.folder,
        metadata=decision.metadata,
    )


def refuse_partial_inputs(pipeline: CheckpointedPipeline, decision: RestoreDecision) -> None:
    """Raise InvalidRequest for a new stage that must read all of an input (``reads_all``) which goes on without it."""
    match decision:
        case Restore():
            begun = {match.uid for match in decision.stages.matches if match.snapshot.batch_id is not None}
            new = set(decision.stages.new)
        case Adopt():
            directory = AttemptDirectory(Path(decision.working_directory))
            logs = {uid: ChannelLog(directory.stage(uid).log) for uid in pipeline.stages}
            begun = {uid for uid, log in logs.items() if log.last_batch() is not None}
            new = {uid for uid in logs if not directory.stage(uid).log.exists()}
        case Fresh():
            return
        case _:
            assert_never(decision)
    why = next(partial_inputs(pipeline.stages, pipeline.upstream, begun=begun, new=new), None)
    if why is not None:
        raise InvalidRequest(why)


def partial_inputs(
    stages: Mapping[StageUid, StageDefinition],
    upstream: Mapping[StageUid, Sequence[StageUid]],
    *,
    begun: Collection[StageUid],
    new: Collection[StageUid],
) -> Iterator[str]:
    """Yield why a new stage would miss rows of an input that has begun."""
    for uid in sorted(new):
        late = [one for one in upstream[uid] if one in begun and stages[uid].reads_all]
        if late:
            yield (
                f"{uid!r} is new and reads {late[0]!r}, which goes on after rows that were read before: {uid!r} would "
                "never get those. Leave it out, or begin from nothing with restore_from: none, which reads it all again"
            )


@dataclass(frozen=True, kw_only=True)
class AttemptRestorer:
    """Carries out the coordinator's restore decision."""

    pipeline: CheckpointedPipeline
    coordinator: CheckpointCoordinator
    work_dir: Path
    open_storage: Callable[[str], CheckpointStorage]
    tables: PipelineSinks
    reporter: Reporter
    options: RestoreOptions
    before: ShownBefore
    set_aside: Collection[StageUid] = ()
    """Sinks whose waiting rows are set aside."""
    session: Callable[[], SparkSession]
    """Asked for only where state has to be spread over another number of partitions."""

    def restore(self) -> AttemptDirectory:
        """Prepare every stage's directory and its table, and tell the coordinator that the attempt runs.

        Raises Corrupt (naming the file), InvalidRequest, Unavailable; then no directory of this attempt is left.
        """
        decision = self.coordinator.restored
        match decision:
            case Adopt():
                directory = AttemptDirectory(Path(decision.working_directory))
                work_in(directory.root)
                self._adopt(directory)
            case Restore():
                directory = self._own()
                self._build(directory, decision)
            case Fresh():
                directory = self._own()
                self._begin(directory)
            case _:
                assert_never(decision)
        if not isinstance(decision, Adopt):
            tell_left(self.tables, self.coordinator.record, self.reporter)
        tell_orders(self.tables, self.coordinator.record, self.reporter)
        self.reporter.info(f"attempt {self.coordinator.epoch} of {self.pipeline.name}: {decision.reason}")
        mark(directory, self.coordinator.lineage, self.coordinator.epoch)
        left = left_tables(self.tables, self.coordinator.record, directory, decision)
        self.coordinator.started(str(directory.root), self._shown(directory, decision), left)
        sweep_older(directory.root)
        for removed in directory.remove_older_siblings():
            self.reporter.info(f"removed the working directory of an earlier attempt: {removed.name}")
        return directory

    def _own(self) -> AttemptDirectory:
        directory = AttemptDirectory.of(self.work_dir, self.pipeline.name, self.coordinator.epoch)
        shutil.rmtree(directory.root, ignore_errors=True)  # a try of this very attempt that failed half-way
        begin(directory.root, self.coordinator.lineage)
        work_in(directory.root)
        return directory

    @property
    def _sinks(self) -> SinksAtStart:
        return SinksAtStart(
            sinks=self.tables,
            reporter=self.reporter,
            before=self.before,
            about_to_change=self.coordinator.tables_change,
            set_aside=self.set_aside,
            keep_rows_of=self.options.keep_rows_of,
        )

    @property
    def _later(self) -> LaterRows:
        return LaterRows.SET_ASIDE if self.options.roll_back_tables else LaterRows.KEEP

    def _shown(self, directory: AttemptDirectory, decision: RestoreDecision) -> ShownTables | None:
        """Return the tables as they were brought; None: they show what they did, whatever was restored."""
        if not any(self.tables.opened()):
            return ShownTables()
        match decision:
            case Restore(purpose=RestorePurpose.FORK) as restored:
                return self.tables.shown_in(directory, restored.metadata.checkpoint_id)
            case Adopt():
                return None
            case _ if self._later is LaterRows.KEEP or self.options.keep_rows_of:
                return None
            case Restore():
                return self.tables.shown_in(directory, decision.metadata.checkpoint_id)
            case Fresh():
                return self.tables.shown_in(directory, None)
            case _:
                assert_never(decision)

    # --- the three beginnings ----------------------------------------------------------------------------------

    def _adopt(self, directory: AttemptDirectory) -> None:
        for uid in self.pipeline.stages:
            stage = directory.stage(uid)
            sweep_pins(stage.root)
            sweep_staging(ChannelLog(stage.log))
        self._sinks.adopt(directory)

    def _begin(self, directory: AttemptDirectory) -> None:
        try:
            for uid in self.pipeline.stages:
                ChannelLog.create(directory.stage(uid).log)
            self._sinks.begin(directory, self._later)
        except BaseException:
            shutil.rmtree(directory.root, ignore_errors=True)
            raise
        self.tables.follow(0, self.reporter, only_existing=True)

    def _build(self, directory: AttemptDirectory, decision: Restore) -> None:
        source = stored_in(self.open_storage, decision)
        fork = decision.purpose is RestorePurpose.FORK
        restored: dict[StageUid, list[FileEntry]] = {}
        try:
            for match in decision.stages.matches:
                restored[match.uid] = build_stage_directory(
                    source,
                    match.snapshot,
                    target_dir=directory.stage(match.uid).root,
                    new_query_id=str(uuid.uuid4()) if fork or match.has_new_query else None,
                    part=match.part,
                    joined=match.joined,
                    local_copy=self._local_copy(directory, match, decision),
                )
            restore_logs(directory, decision)
            for match in decision.stages.matches:
                self._rescale(directory, match)
            for uid in decision.stages.new:
                ChannelLog.create(directory.stage(uid).log)
            self._sinks.restore(
                directory,
                decision,
                self._later,
                published_since=self._published_after(decision.metadata.number_at_sinks),
            )
            self.tables.follow(decision.metadata.checkpoint_id, self.reporter)
        except BaseException:
            shutil.rmtree(directory.root, ignore_errors=True)
            raise

    def _published_after(self, number: int) -> Mapping[CheckpointId, CoordinatorEpoch]:
        return {**self.before.after(number), **self.coordinator.record.published_after(number)}

    def _rescale(self, directory: AttemptDirectory, match: StageMatch) -> None:
        """Spread a stage's state over the partitions its author asks for now; its log gets the batch that took."""
        wanted = self.pipeline.stages[match.uid].partitions
        saved = saved_partitions(match.snapshot.state_formats)
        if wanted is None or saved is None or wanted == saved:
            return
        stage = directory.stage(match.uid)
        if exchange_of(stage.root) is not None and not is_local(self.session()):
            raise InvalidRequest(
                f"the state of stage {match.uid!r} cannot be spread over {wanted} partitions where work_dir is in an "
                f"object store and tasks run on other machines: run it once with spark.master local[*], or keep {saved}"
            )
        done = rescale_stage(self.session(), stage_dir=stage.root, partitions=wanted)
        ChannelLog(stage.log).append_data(done.batch_id, ())
        self.reporter.info(
            f"spread the state of stage {match.uid} ({done.rows:,} rows) over {wanted} partitions instead of {saved}"
        )

    def _local_copy(
        self, directory: AttemptDirectory, match: StageMatch, decision: Restore
    ) -> LocalCopy | None:
        if not self.coordinator.config.local_backup or decision.purpose is RestorePurpose.FORK:
            return None
        return find_local_copy(
            directory.local_copies(match.uid), CheckpointId(decision.metadata.checkpoint_id)
        )
