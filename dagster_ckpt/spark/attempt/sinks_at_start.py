"""The sinks of a pipeline when an attempt starts: gone on with as they are, begun without rows, or brought to a cut."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, StageUid
from dagster_ckpt.core.restore.choice import Restore
from dagster_ckpt.core.restore.facts import Origin, RestorePurpose
from dagster_ckpt.core.units import counted
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.attempt.earlier_attempts import left_table, table_of
from dagster_ckpt.spark.attempt.showing import ShownBefore
from dagster_ckpt.spark.attempt.sink_refusals import SinkRefusals, refuse_forks
from dagster_ckpt.spark.attempt.sinks import PipelineSinks
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.files import remove_files
from dagster_ckpt.spark.sink.committables import PreparedBatch, committable_paths, read_committables
from dagster_ckpt.spark.sink.phases import bring_back, forget_folder, waiting_in
from dagster_ckpt.spark.sink.port import LaterRows, Sink, SinkCut, in_one_step
from dagster_ckpt.spark.sink.positions import as_fork_began, has_begun, refuse_where_impossible, to_publish
from dagster_ckpt.spark.sink.published import has_waiting, note_published, place_of_rows, why_put_back
from dagster_ckpt.spark.sink.waiting import (
    folder_of,
    forget_refused,
    refuse_left_waiting,
    refuse_other_place,
    refused_in,
    set_aside,
    to_set_aside,
    way_out_of_refusal,
    without_table,
)
from dagster_ckpt.spark.stage_report import Reporter


@dataclass(frozen=True, slots=True, kw_only=True)
class SinksAtStart:
    """Brings all sinks to where an attempt starts from; what one of them refuses changes none."""

    sinks: PipelineSinks
    reporter: Reporter
    before: ShownBefore
    about_to_change: Callable[[], None] = lambda: None
    """Called once no sink has refused, before the first one is changed."""
    set_aside: Collection[StageUid] = ()
    """Sinks whose waiting rows are not to be shown: they are written to files, and the attempt goes on without."""
    keep_rows_of: Collection[str] = ()
    """Sinks whose later rows stay, whatever becomes of the others'."""

    @property
    def refusals(self) -> SinkRefusals:
        """Rules by which they refuse, asked before any is changed."""
        return SinkRefusals(sinks=self.sinks, keep_rows_of=self.keep_rows_of)

    def adopt(self, attempt: AttemptDirectory) -> None:
        """Go on with the sinks as they are; what was being published is finished.

        Raises Corrupt for one that shows less than was published to it, or whose staged rows are gone or changed.
        """
        self.refusals.refuse_exchanged(
            {uid: place_of_rows(attempt.stage(uid).root) for uid in self.sinks.pipeline.stages}
        )
        pipeline = self.sinks.pipeline
        for uid in (one for one, stage in pipeline.stages.items() if stage.table is None):
            if has_waiting(attempt.stage(uid).root):
                raise without_table(uid, pipeline.name)
        for uid, name, sink in self.sinks.opened():
            why = why_put_back(attempt.stage(uid).root, sink, f"sink {uid} ({sink.place})")
            if why:
                raise Corrupt(
                    f"{why}. Bring it back, or choose a snapshot with restore_from, which brings it to exactly its rows"
                )
            if uid in self.set_aside:
                root = attempt.stage(uid).root
                self._set_aside(attempt, uid, to_set_aside(waiting_in(root, sink), refused_in(root)))
            self._refuse_waiting_rows(attempt, uid, sink)
            self._tell_refused(attempt, uid, name, sink)
        for uid, _, sink in self.sinks.opened():
            sink.take_over()
            note_published(attempt.stage(uid).root, sink.place, sink.position())

    def _refuse_waiting_rows(self, attempt: AttemptDirectory, uid: StageUid, sink: Sink) -> None:
        """Raise where rows that wait in the directory cannot be shown: no checkpoint with them could be published.

        Corrupt where they are gone, InvalidRequest where their sink was changed, or others have changed its table.
        """
        waiting = waiting_in(attempt.stage(uid).root, sink)
        self.sinks.refuse_changed(uid, waiting)
        try:
            sink.refuse_lost(waiting)
        except Corrupt:
            refuse_other_place(uid, self.sinks.pipeline.name, waiting, sink.place)
            raise
        if waiting:
            try:
                sink.refuse_unfit(waiting)
            except InvalidRequest as error:
                raise self._with_way_out(uid, error) from error

    def _with_way_out(self, uid: StageUid, error: InvalidRequest) -> InvalidRequest:
        way_out = way_out_of_refusal(uid, self.sinks.pipeline.name)
        return InvalidRequest(f"{str(error).rstrip('.')}. {way_out}")

    def _set_aside(
        self, attempt: AttemptDirectory, uid: StageUid, chosen: Sequence[PreparedBatch]
    ) -> set[int]:
        """Set aside batches that wait for a sink, and return their numbers."""
        stage_dir, sinks = attempt.stage(uid).root, self.sinks
        folder = folder_of(sinks.table_dir, sinks.pipeline.name, uid)
        notes = set_aside(sinks.of(uid), stage_dir, chosen, folder)
        for note in notes:
            where = f"written to {note.file}" if note.file else "gone, and written nowhere"
            batch = f"of batch {note.batch_id}"
            rows = counted(note.rows, f"row {batch} is", f"rows {batch} are")
            self.reporter.warn(f"sink {uid}: {rows} set aside, {where}")
        forget_refused(stage_dir)
        return {note.batch_id for note in notes}

    def _tell_refused(self, attempt: AttemptDirectory, uid: StageUid, name: str, sink: Sink) -> None:
        """Say which checkpoint a sink did not show, and why: the next one tries again."""
        stage_dir = attempt.stage(uid).root
        note = refused_in(stage_dir)
        if note is not None and waiting_in(stage_dir, sink):
            self.reporter.warn(
                f"table {name} does not show checkpoint {note.checkpoint_id}, and the next one tries again: "
                f"{note.why.rstrip('.')}. {way_out_of_refusal(uid, self.sinks.pipeline.name)}"
            )

    def refuse_beginning(self) -> None:
        """Raise InvalidRequest where a sink cannot begin without rows, or would be called from the beginning again.

        Asked before the pipeline is claimed: a claim to begin without state would be what ``latest`` follows.
        """
        sinks = [(uid, sink) for uid, _, sink in self.sinks.opened() if uid not in self.keep_rows_of]
        for uid, sink in sinks:
            if sink.forgets_calls and (later := self.before.by(self.sinks.names_of(uid), sink.kind)):
                with TemporaryDirectory() as empty:
                    sink.bring_back(Path(empty), later)
        refuse_where_impossible((uid, sink, None) for uid, sink in sinks)

    def begin(self, attempt: AttemptDirectory, later: LaterRows) -> None:
        """Set aside whatever the sinks hold, or keep it: the attempt begins without state, its batches count from 0."""
        sinks = list(self.sinks.opened())
        for uid, _, sink in sinks:
            bring_back(sink, attempt.stage(uid).root, self.before.by(self.sinks.names_of(uid), sink.kind))
        leave = [
            (uid, sink, None)
            for uid, _, sink in sinks
            if self.refusals.later(uid, later) is LaterRows.SET_ASIDE
        ]
        refuse_where_impossible(leave)
        self.about_to_change()
        for _, name, sink in sinks:
            if sink.never_rolls_back:  # told once, while nothing depends on it yet
                self.reporter.warn(f"table {name} does not go back with a restore: {sink.never_rolls_back}")
        self._bring(attempt, lambda uid: self._rolled_back(uid, None, self.refusals.later(uid, later)))

    def restore(
        self,
        attempt: AttemptDirectory,
        decision: Restore,
        later: LaterRows,
        *,
        published_since: Mapping[CheckpointId, CoordinatorEpoch],
    ) -> None:
        """Bring every sink to the rows of the restored cut; a fork's begin with them.

        ``published_since``: newer snapshots that were published, and their attempts; this machine need not know them.

        Raises InvalidRequest where a sink cannot go back: none was changed then.
        """
        forks = self._forks(decision)
        if decision.purpose is not RestorePurpose.FORK:
            self.refusals.refuse_other_tables(decision)
        for uid, _, sink in self.sinks.opened():
            if decision.purpose is RestorePurpose.FORK:  # the origin's folder is no part of a fork's sink
                forget_folder(attempt.stage(uid).root)
            else:
                later_than = self._later_than(uid, sink, decision, published_since)
                bring_back(sink, attempt.stage(uid).root, later_than)
        found = {uid: self._cut_of(uid, attempt, decision) for uid, _, _ in self.sinks.opened()}
        cuts = {uid: self.refusals.kept(uid, cut) for uid, cut in found.items()}
        for uid, cut in found.items():
            if cut is not None and cuts[uid] is None:  # what it had prepared is gone with it
                remove_files(committable_paths(attempt.stage(uid).root, [b.batch_id for b in cut.batches]))
        for uid, cut in cuts.items():
            if uid in self.set_aside and cut is not None and uid not in forks:
                gone = self._set_aside(attempt, uid, to_publish(self.sinks.of(uid).position(), cut))
                cuts[uid] = replace(cut, batches=tuple(b for b in cut.batches if b.batch_id not in gone))
        refuse_forks(self.sinks, {uid: cut for uid, cut in cuts.items() if uid in forks and cut is not None})
        self.refusals.refuse_changed({uid: cut for uid, cut in cuts.items() if uid not in forks})
        self.refusals.refuse_where_impossible(
            {uid: cut for uid, cut in cuts.items() if uid not in forks}, decision, later
        )
        self.about_to_change()
        self._bring(
            attempt,
            lambda uid: (
                self._forked(uid, cuts[uid])
                if uid in forks
                else self._rolled_back(uid, cuts[uid], self.refusals.later(uid, later))
            ),
        )

    def _forks(self, decision: Restore) -> frozenset[StageUid]:
        """Return the sinks that are given another pipeline's rows: neither begun ones, nor those that keep theirs."""
        if decision.purpose is not RestorePurpose.FORK:
            return frozenset()
        is_beginning = decision.origin is Origin.STORE
        return frozenset(
            uid
            for uid, _, sink in self.sinks.opened()
            if uid not in self.keep_rows_of and not (is_beginning and has_begun(sink))
        )

    def _bring(self, attempt: AttemptDirectory, act: Callable[[StageUid], Callable[[], None]]) -> None:
        """Bring each sink to where it begins, those that change together in one step; then tell what was done."""
        for group in self.sinks.groups():
            sinks = [self.sinks.of(uid) for uid in group]
            done = in_one_step(sinks, lambda group=group: [act(uid) for uid in group])  # type: ignore[misc]
            for uid, tell in zip(group, done, strict=True):
                tell()
                sink = self.sinks.of(uid)
                note_published(attempt.stage(uid).root, sink.place, sink.position())

    def _later_than(
        self,
        uid: StageUid,
        sink: Sink,
        decision: Restore,
        published_since: Mapping[CheckpointId, CoordinatorEpoch],
    ) -> Mapping[CheckpointId, CoordinatorEpoch]:
        """Return the checkpoints published since the cut: any, where the snapshot has no such sink."""
        table = table_of(uid, decision)
        is_in_it = table is not None and table.sink == sink.kind
        return published_since if is_in_it else self.before.by(self.sinks.names_of(uid), sink.kind)

    def _cut_of(self, uid: StageUid, attempt: AttemptDirectory, decision: Restore) -> SinkCut | None:
        snapshot = table_of(uid, decision) or left_table(uid, self.sinks, decision)
        if snapshot is None:
            return None
        metadata = decision.metadata
        if decision.purpose is RestorePurpose.FORK and uid not in self._forks(decision):
            if not has_begun(self.sinks.of(uid)):
                refuse_left_waiting(uid, snapshot)
                return None
            began = as_fork_began(snapshot, self.sinks.of(uid).place)
            number = CheckpointId(metadata.number_at_sinks)
            return None if began.head is None else SinkCut(snapshot=began, batches=(), checkpoint_id=number)
        return SinkCut(
            snapshot=snapshot,
            batches=tuple(read_committables(attempt.stage(uid).root, snapshot.prepared)),
            checkpoint_id=CheckpointId(metadata.number_at_sinks),
            lineages=frozenset((metadata.lineage, *metadata.lineages)) - {""},
        )

    def _rolled_back(self, uid: StageUid, cut: SinkCut | None, later: LaterRows) -> Callable[[], None]:
        try:
            text = self.sinks.of(uid).roll_back(cut, later).text
        except InvalidRequest as error:
            if cut is None or not cut.batches:
                raise
            raise self._with_way_out(uid, error) from error

        def tell() -> None:
            if text:
                name = self.sinks.name_of(uid)
                self.reporter.info(f"table {name}: {text}, to hold exactly the rows of the restore point")
                self.sinks.tell_changed(uid, 0 if cut is None else cut.checkpoint_id, taken_back=text)

        return tell

    def _forked(self, uid: StageUid, cut: SinkCut | None) -> Callable[[], None]:
        begun = "" if cut is None else self.sinks.of(uid).fork(cut)

        def tell() -> None:
            if begun:
                name = self.sinks.name_of(uid)
                self.reporter.info(f"table {name} of the fork begins with the rows of the savepoint: {begun}")

        return tell
