"""The sinks of a pipeline: how each is opened, written, cut and published."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.authoring.stages import StageDefinition
from dagster_ckpt.core.checkpoint.tables import Moved, ShownTables, tables_of
from dagster_ckpt.core.ids import BatchId, CheckpointId, StageUid
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.core.model import CheckpointMetadata, TableSnapshot
from dagster_ckpt.core.paths import local_path, one_spelling, same_place
from dagster_ckpt.core.restore.facts import Seen
from dagster_ckpt.core.units import counted
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.attempt.showing import HeldChanges, changed_before
from dagster_ckpt.spark.channel.entries import BarrierEntry
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.directories import AttemptDirectory, StageDirectory
from dagster_ckpt.spark.files import remove_files
from dagster_ckpt.spark.sink.accepts import refuse_collated
from dagster_ckpt.spark.sink.committables import (
    PreparedBatch,
    committable_paths,
    prepared_batches,
    read_committables,
)
from dagster_ckpt.spark.sink.opening import open_derived, open_sink
from dagster_ckpt.spark.sink.phases import (
    Due,
    Judge,
    SinkPart,
    begun_with,
    cut_of_sink,
    in_groups,
    preparing,
    publish_prepared,
    waiting_in,
)
from dagster_ckpt.spark.sink.port import AttemptId, Sink
from dagster_ckpt.spark.sink.positions import as_fork_began
from dagster_ckpt.spark.sink.published import has_waiting, noted_through, shown_as_noted, shown_by
from dagster_ckpt.spark.sink.waiting import (
    WAY_OUT_OF_FORK,
    SinkNow,
    forget_refused,
    note_refused,
    refuse_changed_sink,
    way_out_of_refusal,
)
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
    attempt_id: Callable[[], AttemptId]
    """Identity of the attempt; known once the coordinator is open."""
    session: Callable[[], SparkSession]
    """For participants in publishes only."""
    tell: Callable[[TableChanged], None] = lambda change: None
    """Told of every sink whose rows readers find changed."""
    unpublished: dict[str, str] = field(default_factory=dict)
    """Why a sink does not show the rows of the newest checkpoint, by name; a publish that succeeds takes it out."""
    _told_apart: set[str] = field(default_factory=set)
    _missed: Counter[str] = field(default_factory=Counter)
    """How many checkpoints in a row each of these was not published for."""
    _opened: dict[StageUid, Sink] = field(default_factory=dict)
    _changes: HeldChanges = field(default_factory=HeldChanges)

    def of(self, uid: StageUid) -> Sink:
        """Return a stage's sink, or a derived table, opened once. Raises NotFound for a stage that has none."""
        if uid not in self._opened and uid not in self.pipeline.stages:
            self._opened[uid] = open_derived(
                uid,
                self.pipeline.name,
                table_dir=self.table_dir,
                work_dir=self.work_dir,
                attempt=self.attempt_id,
            )
        if uid not in self._opened:
            self._opened[uid] = open_sink(
                self.pipeline.stages[uid],
                self.pipeline.name,
                previous_pipelines=self.pipeline.previous_names,
                table_dir=self.table_dir,
                work_dir=self.work_dir,
                attempt=self.attempt_id,
            )
        return self._opened[uid]

    def names_of(self, uid: StageUid) -> tuple[StageUid, ...]:
        """Return the names of a stage, of now first."""
        return self.pipeline.stages[uid].names

    def opened(self) -> Iterator[tuple[StageUid, str, Sink]]:
        """Yield uid, name and sink of every stage that has one."""
        stages = self.pipeline.stages.items()
        return ((uid, self.name_of(uid), self.of(uid)) for uid, stage in stages if stage.table is not None)

    def groups(self) -> list[list[StageUid]]:
        """Return the sinks, those together whose rows change at one moment."""
        return in_groups((uid, sink) for uid, _, sink in self.opened())

    def seen(self) -> list[Seen]:
        """Return the numbers that each sink has seen of the pipeline. Raises InvalidRequest where two share a place."""
        self._refuse_shared_places()
        found = []
        for uid, _, sink in self.opened():
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
        for uid, _, sink in self.opened():
            local = local_path(sink.place)
            place = one_spelling(sink.place if local is None else os.path.realpath(local))
            for other, there in taken:
                if _is_within(place, there) or _is_within(there, place):
                    raise InvalidRequest(
                        f"sinks {other!r} and {uid!r} both write {min(place, there, key=len)}: rows of the "
                        "one would be taken for the other's. Give each a table of its own, side by side"
                    )
            taken.append((uid, place))
        for table in self.pipeline.derived:
            derived = os.path.realpath(self.of(table.uid).place)
            meets = [other for other, there in taken if f"{derived}/".startswith(f"{there}/")]
            if meets:
                raise InvalidRequest(
                    f"sink {meets[0]!r} writes {derived}, where {table.uid!r} is computed: give it another table"
                )

    # --- while the stage runs ----------------------------------------------------------------------------------

    def writer(
        self, stage: StageDefinition, directory: StageDirectory, frame: DataFrame
    ) -> Callable[[DataFrame, int], None]:
        """Return the function that takes a sink's micro-batches. Raises InvalidRequest for rows it cannot take."""
        sink = self.of(stage.uid)
        refuse_collated(sink.place, stage.table.key if stage.table is not None else (), frame)
        judge = Judge.of(sink, frame)
        sink.check(frame)
        columns = frame.schema.json()
        self.refuse_changed(stage.uid, waiting_in(directory.root, sink), columns)
        self.refuse_changed(stage.uid, begun_with(directory.root, sink), columns, way_out=WAY_OUT_OF_FORK)
        return preparing(sink, directory.root, judge, self.as_now(stage.uid).staged_as)

    def as_now(self, uid: StageUid, row_schema: str = "") -> SinkNow:
        """Return a stage's sink as it is now, with rows of this schema (Spark's; empty: not known yet)."""
        return SinkNow.of(self.pipeline.stages[uid], self.of(uid), row_schema)

    def refuse_changed(
        self, uid: StageUid, waiting: Sequence[PreparedBatch], row_schema: str = "", *, way_out: str = ""
    ) -> None:
        """Raise InvalidRequest where rows that wait were staged for another sink than this one is now.

        ``row_schema``: of the rows to come; empty: not known yet. ``way_out``: what to do, where that is another thing.
        """
        refuse_changed_sink(uid, self.pipeline.name, waiting, self.as_now(uid, row_schema), way_out)

    def cut(self, stage: StageDefinition, directory: StageDirectory, batch: BatchId | None) -> SinkPart:
        """Return the sink's part of a checkpoint, flushed to disk; nothing for other stages."""
        if stage.table is None:
            return SinkPart()
        return cut_of_sink(self.of(stage.uid), directory.root, batch)

    # --- when a checkpoint is complete -------------------------------------------------------------------------

    def publish(
        self, attempt: AttemptDirectory, checkpoint: CheckpointId, permit: CommitPermit, reporter: Reporter
    ) -> ShownTables | None:
        """Make visible what the checkpoint contains; a sink that fails is in ``unpublished`` till one catches up.

        Sinks of one database fail together: their tables show one checkpoint. Returns what all of them show; None
        where one does not show this checkpoint, or none waits for checkpoints.
        """
        unmarked: set[StageUid] = set()
        for group in self.groups():
            found = {uid: self._due(uid, attempt, checkpoint) for uid in group}
            due = {uid: part for uid, part in found.items() if part is not None}
            unmarked |= found.keys() - due.keys()
            self._publish(due, permit, reporter)
        self.follow(checkpoint, reporter)
        return self._all_shown(attempt, checkpoint, unmarked)

    def _due(self, uid: StageUid, attempt: AttemptDirectory, checkpoint: CheckpointId) -> Due | None:
        directory = attempt.stage(uid)
        log = ChannelLog(directory.log)
        found = log.find_barrier(checkpoint)
        barrier = log.read(found) if found is not None else None
        return (
            Due(self.of(uid), directory.root, barrier.batch_id) if isinstance(barrier, BarrierEntry) else None
        )

    def _publish(self, due: Mapping[StageUid, Due], permit: CommitPermit, reporter: Reporter) -> None:
        names = {uid: self.name_of(uid) for uid in due}
        try:
            published = publish_prepared([*due.values()], permit) if due else []
            self._tell_apart(due, reporter)
        except Exception as error:  # the other sinks are published all the same
            for uid, name in names.items():
                why = str(error)
                if note_refused(due[uid].stage_dir, permit.checkpoint_id, due[uid].through, error):
                    why = f"{why.rstrip('.')}. {way_out_of_refusal(uid, self.pipeline.name)}"
                self.note_late(name, why)
                reporter.warn(f"table {name} is not published yet, the next checkpoint tries again: {why}")
            return
        for (uid, name), done in zip(names.items(), published, strict=True):
            forget_refused(due[uid].stage_dir)
            self.note_shown(name)
            if done is not None:
                at = permit.checkpoint_id
                reporter.info(
                    f"table {name}: published {counted(done.rows, 'row')} in {counted(done.files, 'file')} "
                    f"for checkpoint {at}"
                )
                self.tell_changed(uid, at, rows=done.rows, bytes=done.bytes, version=done.version)

    def _tell_apart(self, due: Mapping[StageUid, Due], reporter: Reporter) -> None:
        """Tell once of tables that should change together and cannot."""
        joint = next((part.sink.joint for part in due.values()), None)
        why = joint.why_apart if joint is not None and len(due) > 1 else ""
        if why and why not in self._told_apart:
            self._told_apart.add(why)
            reporter.warn(why)

    def _all_shown(
        self, attempt: AttemptDirectory, checkpoint: CheckpointId, unmarked: Collection[StageUid]
    ) -> ShownTables | None:
        """Return the tables if all show this checkpoint; ``unmarked``: those that have no barrier of it."""
        late = any(
            name in self.unpublished or (uid in unmarked and has_waiting(attempt.stage(uid).root))
            for uid, name, _ in self.opened()
        )
        late = late or any(self.name_of(table.uid) in self.unpublished for table in self.pipeline.derived)
        shown = self.shown_in(attempt, checkpoint)
        # Rows of later checkpoints stay where a restore was told to keep them: then a table shows more than this one.
        shows_more = any((shown.tables[uid].head or 0) > checkpoint for uid, _, _ in self.opened())
        return None if late or shows_more or not shown.tables else shown

    def shown_in(self, attempt: AttemptDirectory, checkpoint: int | None) -> ShownTables:
        """Return the attempt's tables, as noted when each was published or brought to its rows."""
        tables = {
            str(uid): shown_as_noted(attempt.stage(uid).root, sink.place) for uid, _, sink in self.opened()
        }
        derived = {str(table.uid): shown_by(self.of(table.uid)) for table in self.pipeline.derived}
        return ShownTables(checkpoint_id=checkpoint, tables=tables | derived)

    def tell_shown(self, moved: Moved) -> None:
        """Tell of the tables whose rows readers find since now."""
        told = self._changes.released(moved)
        at = moved.after.checkpoint_id or 0
        before = [self._change(uid, at, is_of_before=True) for uid in changed_before(moved, told)]
        for change in (*told, *before):
            self.tell(change)

    @cached_property
    def _participants(self) -> list[Any]:
        return [participant.open(self) for participant in self.pipeline.after_publish]

    def follow(self, checkpoint: int, reporter: Reporter, *, only_existing: bool = False) -> None:
        """Let participants make what follows from the published tables; what fails is in ``unpublished``."""
        for participant in self._participants:
            participant(checkpoint, reporter, only_existing=only_existing)

    def note_late(self, name: str, why: str) -> None:
        """Note that a table does not show the rows of the newest checkpoint."""
        self.unpublished[name] = why
        self._missed[name] += 1

    def note_shown(self, name: str) -> None:
        """Note that a table shows the rows of the newest checkpoint."""
        self.unpublished.pop(name, None)
        del self._missed[name]

    def name_of(self, uid: StageUid) -> str:
        """Return under which name ``unpublished`` has a table: its own, unless another one has that too."""
        names = {table.uid: str(table.uid) for table in self.pipeline.derived}
        names |= {one: s.table.name for one, s in self.pipeline.stages.items() if s.table is not None}
        return f"{names[uid]} ({uid})" if [*names.values()].count(names[uid]) > 1 else names[uid]

    def tell_changed(self, uid: StageUid, checkpoint: int, **what: Any) -> None:
        """Tell that a sink's rows have changed with a checkpoint, once all tables show that one.

        ``what``: as ``TableChanged`` has it. Where no table waits for checkpoints it is told at once.
        """
        change = self._change(uid, checkpoint, **what)
        if any(self.opened()):
            self._changes.hold(change)
        else:
            self.tell(change)

    def _change(self, uid: StageUid, checkpoint: int, **what: Any) -> TableChanged:
        attempt = self.attempt_id()
        return TableChanged(
            uid=uid,
            place=self.of(uid).place,
            checkpoint_id=checkpoint,
            # A restore shows the rows of an old checkpoint again: the attempt makes it a version of its own.
            data_version=f"{attempt.lineage}.{attempt.epoch}.{checkpoint}",
            **what,
        )

    def none_published(self, why: str) -> None:
        """Note that publishing failed before any sink could be asked."""
        for _, name, _ in self.opened():
            self.unpublished.setdefault(name, why)

    def missed_more_than(self, tolerable: int) -> str | None:
        """Say which sink was not published for more than so many checkpoints in a row, and why; None: none."""
        for name, missed in dict(self._missed).items():
            if missed > tolerable:
                why, times = self.unpublished.get(name, ""), counted(missed, "checkpoint")
                return f"table {name} could not be published for {times} in a row: {why}"
        return None

    def _tables_of(
        self, uid: StageUid, sink: Sink, restorable: Sequence[CheckpointMetadata], shown: ShownTables | None
    ) -> list[TableSnapshot]:
        """Return the tables that snapshots go back to of a sink: under its names, and those of its table.

        And what readers of ``shown`` find in that table.
        """
        names = self.pipeline.stages[uid].names
        retained = ((metadata, *found) for metadata in restorable for found in tables_of(metadata))
        found = [
            table if self.pipeline.is_called(metadata.pipeline) else as_fork_began(table, sink.place)
            for metadata, name, table in retained
            if name in names or same_place(table.uri, sink.place)
        ]
        tables = () if shown is None else shown.tables.values()
        return [*found, *(table.as_cut() for table in tables if same_place(table.uri, sink.place))]

    def collect_garbage(
        self,
        attempt: AttemptDirectory,
        restorable: Sequence[CheckpointMetadata],
        shown: ShownTables | None = None,
    ) -> int:
        """Remove what neither the sinks, nor a snapshot, nor readers of ``shown`` need; return how many files went."""
        removed = 0
        for uid, _, sink in self.opened():
            stage_dir = attempt.stage(uid).root
            needed = self._tables_of(uid, sink, restorable, shown)
            done = noted_through(stage_dir)
            prepared = prepared_batches(stage_dir)  # once: the stage goes on preparing
            waiting = [n for n in prepared if done is None or n > done]
            removed += sink.collect_garbage(needed, read_committables(stage_dir, waiting))
            named = {*waiting, *(number for snapshot in needed for number in snapshot.prepared)}
            over = [number for number in prepared if number not in named]
            removed += remove_files(committable_paths(stage_dir, over))
        tables = {} if shown is None else shown.tables
        for derived in self.pipeline.derived:
            kept = [tables[derived.uid].as_cut()] if derived.uid in tables else []
            removed += self.of(derived.uid).collect_garbage(kept, ())
        return removed


def _is_within(place: str, other: str) -> bool:
    """Tell whether a place is another one, or a folder in it; tables of a database are in no folder."""
    is_table = "://" in other and "#" in other
    return place == other or (not is_table and place.startswith(f"{other.rstrip('/')}/"))
