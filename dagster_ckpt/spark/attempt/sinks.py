"""The sinks of a pipeline: how each is written, cut, published, and brought back to a restore point."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.authoring.stages import StageDefinition
from dagster_ckpt.authoring.targets import ParquetTable
from dagster_ckpt.core.config import CheckpointingMode
from dagster_ckpt.core.ids import BatchId, CheckpointId, CoordinatorEpoch, StageUid
from dagster_ckpt.core.location import local_path, same_place
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.core.model import CheckpointMetadata, TableSnapshot
from dagster_ckpt.core.restore.decision import Restore
from dagster_ckpt.core.restore.facts import RestorePurpose
from dagster_ckpt.core.restore.lineage import Seen
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound, Unavailable
from dagster_ckpt.spark.attempt.derived import DerivedFile, refresh
from dagster_ckpt.spark.channel.entries import BarrierEntry
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.directories import AttemptDirectory, StageDirectory, staged_rows
from dagster_ckpt.spark.files import remove_files
from dagster_ckpt.spark.sink.committables import (
    committable_paths,
    prepared_batches,
    read_committables,
)
from dagster_ckpt.spark.sink.phases import (
    SinkPart,
    bring_back,
    cut_of_sink,
    forget_folder,
    preparing,
    publish_prepared,
)
from dagster_ckpt.spark.sink.port import AttemptId, LaterRows, Sink, SinkContext, SinkCut
from dagster_ckpt.spark.sink.positions import refuse_where_impossible
from dagster_ckpt.spark.sink.published import note_published, why_put_back
from dagster_ckpt.spark.stage_report import Reporter, TableChanged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


@dataclass(frozen=True, kw_only=True)
class PipelineSinks:
    """All sinks of one pipeline, for one attempt."""

    pipeline: CheckpointedPipeline
    table_dir: Path
    work_dir: Path
    mode: CheckpointingMode
    attempt_id: Callable[[], AttemptId]
    """Identity of the attempt; known once the coordinator is open."""
    session: Callable[[], SparkSession]
    """For derived tables only."""
    tell: Callable[[TableChanged], None] = lambda change: None
    """Told of every sink whose rows have changed."""
    unpublished: dict[str, str] = field(default_factory=dict)
    """Why a sink does not show the rows of the newest checkpoint, by name; a publish that succeeds takes it out."""
    _missed: Counter[str] = field(default_factory=Counter)
    """How many checkpoints in a row each of these was not published for."""
    _opened: dict[StageUid, Sink] = field(default_factory=dict)

    def of(self, uid: StageUid) -> Sink:
        """Return a stage's sink, opened once. Raises NotFound for a stage that has none."""
        if uid not in self._opened:
            stage = self.pipeline.stages[uid]
            if stage.table is None:
                raise NotFound(f"stage {uid!r} writes no table")
            context = SinkContext(
                pipeline=self.pipeline.name,
                uid=uid,
                name=stage.table.name,
                key=stage.table.key,
                is_complete=stage.output_mode == "complete",
                table_dir=self.table_dir,
                work_dir=staged_rows(self.work_dir, self.pipeline.name, uid),
                attempt=self.attempt_id,
            )
            self._opened[uid] = (stage.to or ParquetTable(stage.table.name)).open(context)
        return self._opened[uid]

    def _sinks(self) -> Iterator[tuple[StageUid, str, Sink]]:
        """Yield uid, name and sink of every stage that has one."""
        stages = self.pipeline.stages.items()
        return ((uid, self._name(uid), self.of(uid)) for uid, stage in stages if stage.table is not None)

    def _two_phase(self) -> Iterator[tuple[StageUid, str, Sink]]:
        return ((uid, name, sink) for uid, name, sink in self._sinks() if not self._writes_through(sink))

    def _writes_through(self, sink: Sink) -> bool:
        return self.mode is CheckpointingMode.AT_LEAST_ONCE and sink.writes_through

    def _derived(self) -> dict[StageUid, DerivedFile]:
        return {
            table.uid: DerivedFile(self.table_dir / table.uid, str(self.pipeline.name))
            for table in self.pipeline.derived
        }

    def seen(self) -> list[Seen]:
        """Return what every sink has seen of the pipeline. Raises InvalidRequest where two end in one place."""
        self._refuse_shared_places()
        found = []
        for uid, _, sink in self._sinks():
            position = sink.position()
            if position is not None:
                found.append(
                    Seen(
                        where=f"sink {uid} ({sink.place})",
                        lineage=position.lineage,
                        epoch=position.epoch,
                        checkpoint_id=position.checkpoint_id or 0,
                        holds=position.head is not None,
                    )
                )
        return found

    def _refuse_shared_places(self) -> None:
        taken: list[tuple[StageUid, str]] = []
        for uid, _, sink in self._sinks():
            local = local_path(sink.place)
            place = sink.place.rstrip("/") if local is None else os.path.realpath(local)
            for other, there in taken:
                if f"{place}/".startswith(f"{there}/") or f"{there}/".startswith(f"{place}/"):
                    raise InvalidRequest(
                        f"sinks {other!r} and {uid!r} both write {min(place, there, key=len)}: rows of the "
                        "one would be taken for the other's. Give each a table of its own, side by side"
                    )
            taken.append((uid, place))
        for uid, place_of in self._derived().items():
            derived = os.path.realpath(place_of.root)
            meets = [other for other, there in taken if f"{derived}/".startswith(f"{there}/")]
            if meets:
                raise InvalidRequest(
                    f"sink {meets[0]!r} writes {derived}, where {uid!r} is computed: give it another table"
                )
            place_of.refuse_foreign()

    # --- while the stage runs ----------------------------------------------------------------------------------

    def writer(
        self, stage: StageDefinition, directory: StageDirectory, frame: DataFrame
    ) -> Callable[[DataFrame, int], None]:
        """Return the function that takes a sink's micro-batches. Raises InvalidRequest for rows it cannot take."""
        sink = self.of(stage.uid)
        sink.check(frame)
        if self._writes_through(sink):
            return lambda batch, number: sink.write_through(batch, BatchId(number))
        return preparing(sink, directory.root)

    def cut(self, stage: StageDefinition, directory: StageDirectory, batch: BatchId | None) -> SinkPart:
        """Return what the checkpoint must hold of a sink, flushed to disk; nothing for other stages."""
        if stage.table is None or self._writes_through(self.of(stage.uid)):
            return SinkPart()
        return cut_of_sink(self.of(stage.uid), directory.root, batch)

    # --- when a checkpoint is complete -------------------------------------------------------------------------

    def publish(
        self, attempt: AttemptDirectory, checkpoint: CheckpointId, permit: CommitPermit, reporter: Reporter
    ) -> None:
        """Make visible what the checkpoint contains; a sink that fails is in ``unpublished`` till one catches up."""
        for uid, name, sink in self._two_phase():
            directory = attempt.stage(uid)
            log = ChannelLog(directory.log)
            found = log.find_barrier(checkpoint)
            barrier = log.read(found) if found is not None else None
            if not isinstance(barrier, BarrierEntry):
                continue
            try:
                done = publish_prepared(sink, directory.root, barrier.batch_id, permit)
            except Exception as error:  # the other sinks are published all the same
                self.unpublished[name] = str(error)
                self._missed[name] += 1
                reporter.warn(f"table {name} is not published yet, the next checkpoint tries again: {error}")
                continue
            self.unpublished.pop(name, None)
            del self._missed[name]
            if done is not None:
                reporter.info(
                    f"table {name}: published {done.rows:,} rows in {done.files} files for checkpoint {checkpoint}"
                )
                self._tell(uid, checkpoint, rows=done.rows, bytes=done.bytes, version=done.version)
        self.compute_derived(checkpoint, reporter)

    def compute_derived(self, checkpoint: int, reporter: Reporter, *, only_existing: bool = False) -> None:
        """Compute the derived tables whose inputs have changed; one that fails is in ``unpublished``."""
        places = self._derived()
        through = "" if self.mode is CheckpointingMode.EXACTLY_ONCE else str(checkpoint)
        for table in self.pipeline.derived:
            if only_existing and not places[table.uid].file.is_file():
                continue
            name = self._name(table.uid)
            try:
                if late := [uid for uid in table.reads if self._name(uid) in self.unpublished]:
                    raise Unavailable(f"{late[0]}, which it is computed from, is not published yet")
                done = refresh(
                    table,
                    place=places[table.uid],
                    sinks={uid: self.of(uid) for uid in table.reads if uid not in places},
                    derived=places,
                    attempt=self.attempt_id(),
                    more=through,
                    session=self.session,
                )
            except Exception as error:
                self.unpublished[name] = str(error)
                self._missed[name] += 1
                reporter.warn(f"table {table.uid} is not computed, the next checkpoint tries again: {error}")
                continue
            self.unpublished.pop(name, None)
            del self._missed[name]
            if done is not None:
                reporter.info(f"table {table.uid}: computed, {done.rows:,} rows")
                self._tell(table.uid, checkpoint, rows=done.rows, bytes=done.bytes)

    def _name(self, uid: StageUid) -> str:
        """Return under which name ``unpublished`` has a table: its own, unless another one has that too."""
        names = {table.uid: str(table.uid) for table in self.pipeline.derived}
        names |= {one: s.table.name for one, s in self.pipeline.stages.items() if s.table is not None}
        return f"{names[uid]} ({uid})" if [*names.values()].count(names[uid]) > 1 else names[uid]

    def _tell(self, uid: StageUid, checkpoint: int, **what: Any) -> None:
        attempt = self.attempt_id()
        self.tell(
            TableChanged(
                uid=uid,
                place=self.of(uid).place if uid in self.pipeline.stages else str(self.table_dir / uid),
                checkpoint_id=checkpoint,
                # A restore shows the rows of an old checkpoint again: the attempt makes it a version of its own.
                data_version=f"{attempt.lineage}.{attempt.epoch}.{checkpoint}",
                **what,
            )
        )

    def none_published(self, why: str) -> None:
        """Note that publishing failed before any sink could be asked."""
        for _, name, _ in self._two_phase():
            self.unpublished.setdefault(name, why)

    def missed_more_than(self, tolerable: int) -> str | None:
        """Say which sink was not published for more than so many checkpoints in a row, and why; None: none."""
        for name, missed in dict(self._missed).items():
            if missed > tolerable:
                why = self.unpublished.get(name, "")
                return f"table {name} could not be published for {missed} checkpoints in a row: {why}"
        return None

    def collect_garbage(self, attempt: AttemptDirectory, restorable: Sequence[CheckpointMetadata]) -> int:
        """Remove what neither the sinks nor a restorable snapshot needs; return how many files went."""
        removed = 0
        for uid, _, sink in self._two_phase():
            stage_dir = attempt.stage(uid).root
            parts = (metadata.stage(uid) for metadata in restorable)
            needed = [part.table for part in parts if part is not None and part.table is not None]
            position = sink.position()
            done = position.through_batch if position is not None else None
            prepared = prepared_batches(stage_dir)  # once: the stage goes on preparing
            waiting = [n for n in prepared if done is None or n > done]
            removed += sink.collect_garbage(needed, read_committables(stage_dir, waiting))
            kept = {*waiting, *(number for snapshot in needed for number in snapshot.prepared)}
            over = [number for number in prepared if number not in kept]
            removed += remove_files(committable_paths(stage_dir, over))
        return removed

    # --- when an attempt starts --------------------------------------------------------------------------------

    def adopt(self, attempt: AttemptDirectory) -> None:
        """Go on with the sinks as they are; what was being published is finished.

        Raises Corrupt for one that shows less than was published to it, InvalidRequest for rows nobody would publish.
        """
        self._refuse_waiting(attempt)
        for uid, _, sink in self._two_phase():
            why = why_put_back(attempt.stage(uid).root, f"sink {uid} ({sink.place})", sink.position())
            if why:
                raise Corrupt(
                    f"{why}. Bring it back, or choose a snapshot with restore_from, which brings it to exactly its rows"
                )
        for uid, _, sink in self._two_phase():
            sink.take_over()
            note_published(attempt.stage(uid).root, sink.position())

    def _refuse_waiting(self, attempt: AttemptDirectory) -> None:
        """Raise InvalidRequest where a sink that is written at least once has rows that wait for a checkpoint."""
        for uid, name, sink in self._sinks():
            prepared = prepared_batches(attempt.stage(uid).root) if self._writes_through(sink) else []
            shown = position.through_batch if prepared and (position := sink.position()) else None
            if prepared and (shown is None or prepared[-1] > shown):
                raise InvalidRequest(
                    f"table {name} does not show all rows that were prepared for it, and in mode at_least_once nobody "
                    "would publish them. Run it once in mode exactly_once"
                )

    def begin(self, attempt: AttemptDirectory, later: LaterRows, reporter: Reporter) -> None:
        """Set aside whatever the sinks hold, or keep it: the attempt begins without state, its batches count from 0."""
        sinks = list(self._two_phase())
        if later is LaterRows.SET_ASIDE:
            refuse_where_impossible((uid, sink, None) for uid, _, sink in sinks)
        for uid, name, sink in sinks:
            self._roll_back(uid, None, later, name, reporter)
            note_published(attempt.stage(uid).root, sink.position())

    def restore(
        self,
        attempt: AttemptDirectory,
        decision: Restore,
        later: LaterRows,
        reporter: Reporter,
        *,
        published_since: Mapping[CheckpointId, CoordinatorEpoch],
    ) -> None:
        """Bring every sink to the rows of the restored cut; a fork's begin with them.

        ``published_since``: newer snapshots that were published, and their attempts; this machine need not know them.

        Raises InvalidRequest where a sink cannot go back: none was changed then.
        """
        self._refuse_unshown(decision)
        is_fork = decision.purpose is RestorePurpose.FORK
        for uid, _, sink in self._two_phase():
            if is_fork:  # its sinks have folders of their own, and no part in what the origin's stand at
                forget_folder(attempt.stage(uid).root)
            else:
                bring_back(sink, attempt.stage(uid).root, published_since)
        cuts = {uid: self._cut_of(uid, attempt, decision) for uid, _, _ in self._two_phase()}
        if later is LaterRows.SET_ASIDE and not is_fork:
            for uid, cut in cuts.items():
                if cut is not None:
                    self._refuse_another_table(uid, self.of(uid), cut.snapshot)
            since = CheckpointId(decision.metadata.number_at_sinks)
            refuse_where_impossible(((uid, self.of(uid), cut) for uid, cut in cuts.items()), since=since)
        for uid, name, sink in self._two_phase():
            cut = cuts[uid]
            if not is_fork:
                self._roll_back(uid, cut, later, name, reporter)
            elif cut is not None:
                begun = sink.fork(cut)
                reporter.info(f"table {name} of the fork begins with the rows of the savepoint: {begun}")
            note_published(attempt.stage(uid).root, sink.position())

    def _refuse_unshown(self, decision: Restore) -> None:
        """Raise InvalidRequest where a sink that is written at least once would never show rows of the snapshot."""
        through = {uid for uid, _, sink in self._sinks() if self._writes_through(sink)}
        for match in decision.stages.matches:
            table = match.snapshot.table
            if match.uid in through and table is not None and table.prepared:
                raise InvalidRequest(
                    f"table {self._name(match.uid)} does not show all rows of the restore point yet, and in mode "
                    "at_least_once nobody would publish them. Restore it once in mode exactly_once"
                )

    def _cut_of(self, uid: StageUid, attempt: AttemptDirectory, decision: Restore) -> SinkCut | None:
        match = next((m for m in decision.stages.matches if m.uid == uid), None)
        snapshot = match.snapshot.table if match is not None else None
        if snapshot is None:
            return None
        metadata = decision.metadata
        return SinkCut(
            snapshot=snapshot,
            batches=tuple(read_committables(attempt.stage(uid).root, snapshot.prepared)),
            checkpoint_id=CheckpointId(metadata.number_at_sinks),
            lineages=frozenset((metadata.lineage, *metadata.lineages)) - {""},
        )

    def _refuse_another_table(self, uid: StageUid, sink: Sink, snapshot: TableSnapshot) -> None:
        """Raise InvalidRequest where a sink's rows are in another place: a renamed sink's table follows its uid."""
        if snapshot.head is None or same_place(snapshot.uri, sink.place) or sink.has_published(snapshot.head):
            return
        place = Path(snapshot.uri)
        name = place.name if place.parent == self.table_dir else snapshot.uri
        raise InvalidRequest(
            f"sink {uid!r} writes table {sink.place}, which has none of the rows of the restore point: they are in "
            f"{snapshot.uri}. Go on with that table: @spark_sink(table={name!r}); where the sink's table is right, the "
            "coordinator store or the checkpoint storage is another deployment's"
        )

    def _roll_back(
        self, uid: StageUid, cut: SinkCut | None, later: LaterRows, name: str, reporter: Reporter
    ) -> None:
        done = self.of(uid).roll_back(cut, later)
        if done.text:
            reporter.info(f"table {name}: {done.text}, to hold exactly the rows of the restore point")
            self._tell(uid, 0 if cut is None else cut.checkpoint_id, taken_back=done.text)
