"""The tables of a pipeline's sinks: how each is written, cut, published, and brought back to a restore point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from dagster_ckpt.authoring.stages import StageDefinition, TableMode, TableTarget
from dagster_ckpt.core.config import CheckpointingMode
from dagster_ckpt.core.ids import BatchId, CheckpointId, CoordinatorEpoch, StageUid
from dagster_ckpt.core.location import same_place
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.core.model import CheckpointMetadata, FileKind, TableSnapshot
from dagster_ckpt.core.restore.decision import Restore
from dagster_ckpt.core.restore.facts import RestorePurpose
from dagster_ckpt.errors import InvalidRequest, NotFound
from dagster_ckpt.spark.channel.entries import BarrierEntry
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.directories import AttemptDirectory, StageDirectory
from dagster_ckpt.spark.snapshot.state_files import PlannedFile, planned
from dagster_ckpt.spark.stage_report import Reporter
from dagster_ckpt.spark.table.fork import seed_fork
from dagster_ckpt.spark.table.log import Table, create_table, open_table
from dagster_ckpt.spark.table.publish import Published, adopt, publish
from dagster_ckpt.spark.table.records import (
    Append,
    Upsert,
)
from dagster_ckpt.spark.table.retention import collect_garbage
from dagster_ckpt.spark.table.roll_back import LaterRows, RolledBack, roll_back
from dagster_ckpt.spark.table.sink import (
    DirectTableSink,
    TableCut,
    TableSink,
    flush_committables,
    table_snapshot,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


@dataclass(frozen=True, slots=True)
class SinkCut:
    """A sink's part of a cut beside its query."""

    snapshot: TableSnapshot | None = None
    files: tuple[PlannedFile, ...] = ()
    """Committables, which the checkpoint must hold."""


@dataclass(frozen=True, kw_only=True)
class PipelineTables:
    """All tables of one pipeline, for one attempt."""

    pipeline: CheckpointedPipeline
    table_dir: Path
    mode: CheckpointingMode
    epoch: Callable[[], CoordinatorEpoch]
    """The attempt's epoch; known once the coordinator is open."""
    unpublished: dict[str, str] = field(default_factory=dict)
    """Why a table does not show the rows of the newest checkpoint, by name; a publish that succeeds takes it out."""
    _missed: Counter[str] = field(default_factory=Counter)
    """How many checkpoints in a row each of these was not published for."""

    def location(self, target: TableTarget) -> str:
        """Return a table's folder."""
        return str(self.table_dir / target.name)

    def _sinks(self) -> Iterator[tuple[StageUid, TableTarget]]:
        for uid, stage in self.pipeline.stages.items():
            if stage.table is not None:
                yield uid, stage.table

    def _create(self, target: TableTarget) -> Table:
        match target.mode:
            case TableMode.APPEND:
                mode: Append | Upsert = Append()
            case TableMode.UPSERT:
                mode = Upsert(keys=target.key)
            case _:
                assert_never(target.mode)
        return create_table(self.location(target), pipeline=self.pipeline.name, mode=mode)

    def newest_epoch(self) -> int:
        """Return the newest attempt that any of the tables knows; 0 where none is there yet."""
        newest = 0
        for _, target in self._sinks():
            with suppress(NotFound):
                newest = max(newest, open_table(self.location(target)).state().epoch)
        return newest

    # --- while the stage runs ----------------------------------------------------------------------------------

    def writer(
        self, stage: StageDefinition, directory: StageDirectory, _frame: DataFrame
    ) -> Callable[[DataFrame, int], None]:
        """Return the function that takes a sink's micro-batches."""
        if stage.table is None:
            raise NotFound(f"stage {stage.uid!r} writes no table")
        table = self._create(stage.table)
        match self.mode:
            case CheckpointingMode.EXACTLY_ONCE:
                return TableSink(table, stage_dir=directory.root, epoch=self.epoch())
            case CheckpointingMode.AT_LEAST_ONCE:
                return DirectTableSink(table, epoch=self.epoch())
            case _:
                assert_never(self.mode)

    def cut(self, stage: StageDefinition, directory: StageDirectory, batch: BatchId | None) -> SinkCut:
        """Return what the checkpoint must hold of a sink's table, flushed to disk; nothing for other stages."""
        if stage.table is None or self.mode is CheckpointingMode.AT_LEAST_ONCE:
            return SinkCut()
        table = self._create(stage.table)
        cut: TableCut = table_snapshot(table, stage_dir=directory.root, through_batch=batch)
        flush_committables(table, cut, stage_dir=directory.root)
        files = tuple(planned(directory.root, path, FileKind.COMMITTABLE) for path in cut.committables)
        return SinkCut(cut.snapshot, files)

    # --- when a checkpoint is complete -------------------------------------------------------------------------

    def publish(
        self, attempt: AttemptDirectory, checkpoint: CheckpointId, permit: CommitPermit, reporter: Reporter
    ) -> None:
        """Make visible what the checkpoint contains; a table that fails is in ``unpublished`` till one catches up."""
        if self.mode is CheckpointingMode.AT_LEAST_ONCE:
            return
        for uid, target in self._sinks():
            directory = attempt.stage(uid)
            log = ChannelLog(directory.log)
            position = log.find_barrier(checkpoint)
            barrier = log.read(position) if position is not None else None
            if not isinstance(barrier, BarrierEntry):
                continue
            try:
                done = publish(
                    self._create(target),
                    stage_dir=directory.root,
                    through_batch=barrier.batch_id,
                    permit=permit,
                )
            except Exception as error:  # the other tables are published all the same
                self.unpublished[target.name] = str(error)
                self._missed[target.name] += 1
                reporter.warn(
                    f"table {target.name} is not published yet, the next checkpoint tries again: {error}"
                )
                continue
            self.unpublished.pop(target.name, None)
            del self._missed[target.name]
            if isinstance(done, Published):
                reporter.info(
                    f"table {target.name}: published {done.rows:,} rows in {done.files} files "
                    f"for checkpoint {checkpoint}"
                )

    def missed_more_than(self, tolerable: int) -> str | None:
        """Say which table was not published for more than so many checkpoints in a row, and why; None: none."""
        for name, missed in dict(self._missed).items():
            if missed > tolerable:
                why = self.unpublished.get(name, "")
                return f"table {name} could not be published for {missed} checkpoints in a row: {why}"
        return None

    def collect_garbage(self, attempt: AttemptDirectory, restorable: Sequence[CheckpointMetadata]) -> int:
        """Remove what neither the tables nor a restorable snapshot needs; return how many files went."""
        if self.mode is CheckpointingMode.AT_LEAST_ONCE:
            return 0
        removed = 0
        for uid, target in self._sinks():
            parts = (metadata.stage(uid) for metadata in restorable)
            needed = [part.table for part in parts if part is not None and part.table is not None]
            removed += collect_garbage(self._create(target), needed=needed, stage_dir=attempt.stage(uid).root)
        return removed

    # --- when an attempt starts --------------------------------------------------------------------------------

    def adopt(self) -> None:
        """Go on with the tables as they are; what was being published is finished."""
        if self.mode is CheckpointingMode.EXACTLY_ONCE:
            for _, target in self._sinks():
                adopt(self._create(target), epoch=self.epoch())

    def empty(self, attempt: AttemptDirectory, reporter: Reporter) -> None:
        """Set aside whatever the tables hold: the attempt begins without state."""
        if self.mode is CheckpointingMode.EXACTLY_ONCE:
            for uid, target in self._sinks():
                table = self._create(target)
                done = roll_back(
                    table,
                    snapshot=TableSnapshot(uri=table.uri),
                    checkpoint_id=None,
                    stage_dir=attempt.stage(uid).root,
                    epoch=self.epoch(),
                )
                _report(done, target, reporter)

    def restore(
        self, attempt: AttemptDirectory, decision: Restore, later: LaterRows, reporter: Reporter
    ) -> None:
        """Bring every table to the rows of the restored cut; a fork's tables begin with them."""
        if self.mode is CheckpointingMode.AT_LEAST_ONCE:
            return
        snapshots = {match.uid: match.snapshot.table for match in decision.stages.matches}
        number = CheckpointId(decision.metadata.checkpoint_id)
        for uid, target in self._sinks():
            stage_dir = attempt.stage(uid).root
            snapshot = snapshots.get(uid)
            if decision.purpose is RestorePurpose.FORK:
                if snapshot is not None:
                    self._seed(target, snapshot, number, stage_dir, reporter)
                continue
            table = self._create(target)
            if later is LaterRows.SET_ASIDE:
                self._refuse_another_table(uid, table, snapshot)
            done = roll_back(
                table,
                snapshot=snapshot or TableSnapshot(uri=table.uri),
                checkpoint_id=number if snapshot else None,
                stage_dir=stage_dir,
                epoch=self.epoch(),
                later_rows=later,
            )
            _report(done, target, reporter)

    def _refuse_another_table(self, uid: StageUid, table: Table, snapshot: TableSnapshot | None) -> None:
        """Raise InvalidRequest where a sink's rows are in another folder: a renamed sink's table follows its uid."""
        if snapshot is None or snapshot.head is None or same_place(snapshot.uri, table.uri):
            return
        if table.record(snapshot.head) is None:
            place = Path(snapshot.uri)
            name = place.name if place.parent == self.table_dir else snapshot.uri
            raise InvalidRequest(
                f"sink {uid!r} writes table {table.uri}, which has none of the rows of the restore point: they are in "
                f"{snapshot.uri}. Go on with that table: @spark_sink(table={name!r})"
            )

    def _seed(
        self,
        target: TableTarget,
        snapshot: TableSnapshot,
        checkpoint: CheckpointId,
        stage_dir: Path,
        reporter: Reporter,
    ) -> None:
        seeded = seed_fork(
            open_table(snapshot.uri),
            snapshot=snapshot,
            checkpoint_id=checkpoint,
            stage_dir=stage_dir,
            target=self._create(target),
            epoch=self.epoch(),
        )
        reporter.info(f"table {target.name} of the fork begins with the rows of the savepoint: {seeded}")


def _report(done: RolledBack, target: TableTarget, reporter: Reporter) -> None:
    if done.set_aside or done.returned:
        reporter.info(
            f"table {target.name}: {done.set_aside} files set aside, {done.returned} brought back, "
            "to hold exactly the rows of the restore point"
        )
