"""Refusals of sinks when an attempt starts: by the rules of a run, asked by its preview as well; nothing is changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from dagster_ckpt.core.ids import CheckpointId, PipelineId, StageUid
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.core.paths import same_place
from dagster_ckpt.core.restore.choice import Restore
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.attempt.earlier_attempts import had_rows
from dagster_ckpt.spark.attempt.sinks import PipelineSinks
from dagster_ckpt.spark.sink.opening import open_at
from dagster_ckpt.spark.sink.port import LaterRows, Sink, SinkCut
from dagster_ckpt.spark.sink.positions import has_begun, refuse_where_impossible
from dagster_ckpt.spark.sink.published import MOVED
from dagster_ckpt.spark.sink.waiting import WAY_OUT_OF_FORK, without_table


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRefusals:
    """Rules by which the sinks of a pipeline refuse a start, before any of them is changed."""

    sinks: PipelineSinks
    keep_rows_of: Collection[str] = ()
    """Sinks whose later rows stay, whatever becomes of the others'."""

    def later(self, uid: StageUid, later: LaterRows) -> LaterRows:
        """Return the treatment of a sink's later rows; ``later``: that of the others'."""
        return LaterRows.KEEP if uid in self.keep_rows_of else later

    def kept(self, uid: StageUid, cut: SinkCut | None) -> SinkCut | None:
        """Return a sink's cut; None: of a quarantine that somebody removed and that is kept so: it begins empty."""
        is_quarantine = self.sinks.pipeline.stages[uid].participant is not None
        is_removed = uid in self.keep_rows_of and is_quarantine and not has_begun(self.sinks.of(uid))
        return None if is_removed else cut

    def refuse_unknown(self) -> None:
        """Raise InvalidRequest where rows of a sink that is not there are to stay."""
        sinks = [str(uid) for uid, _, _ in self.sinks.opened()]
        unknown = sorted(set(self.keep_rows_of) - set(sinks))
        if unknown:
            raise InvalidRequest(
                f"keep_rows_of names {unknown[0]!r}, and the sinks of pipeline {self.sinks.pipeline.name!r} are "
                f"{', '.join(sorted(sinks)) or 'none'}: name one of these"
            )

    def refuse_other_tables(self, decision: Restore) -> None:
        """Raise InvalidRequest where sinks have exchanged their tables, or rows wait for one that is no more."""
        self.refuse_exchanged(_places_of_rows(decision))
        self._refuse_without_table(decision)

    def refuse_exchanged(self, rows: Mapping[str, str]) -> None:
        """Raise InvalidRequest where a sink writes the table that another one's rows are in; ``rows``: by sink.

        Its position tells of that one's batches: rows with their numbers would pass for published.
        """
        for uid, _, sink in self.sinks.opened():
            if uid not in rows or same_place(rows[uid], sink.place):
                continue
            owner = next(
                (one for one, place in rows.items() if place and same_place(place, sink.place)), None
            )
            if owner is not None:
                raise InvalidRequest(
                    f"sink {uid!r} writes {sink.place} now, and there are the rows of sink {owner!r}: its own would "
                    "pass for published, and be left out. Give it its table again; or begin without state "
                    "(restore_from: none), which empties the tables first"
                )

    def _refuse_without_table(self, decision: Restore) -> None:
        """Raise InvalidRequest where a restore point has rows that wait for a table its stage has no more."""
        stages, metadata, matches = self.sinks.pipeline.stages, decision.metadata, decision.stages.matches
        tables = {str(one.uid): one.snapshot.table for one in matches if stages[one.uid].table is None}
        tables |= {one.joined.judge.uid: one.joined.judge.table for one in matches if one.joined is not None}
        for uid, table in ((StageUid(one), t) for one, t in tables.items() if t is not None and t.prepared):
            sink = open_at(table.uri, table.sink, PipelineId(metadata.pipeline), uid)
            if sink is not None and not sink.has_published(metadata.number_at_sinks):
                raise without_table(uid, self.sinks.pipeline.name)

    def refuse_changed(self, cuts: Mapping[StageUid, SinkCut | None]) -> None:
        """Raise InvalidRequest where rows that wait at a cut were staged for another definition of their sink."""
        for uid, cut in cuts.items():
            if cut is not None and not self.sinks.of(uid).has_published(cut.checkpoint_id):
                self.sinks.refuse_changed(uid, cut.batches)

    def refuse_where_impossible(
        self, cuts: Mapping[StageUid, SinkCut | None], decision: Restore, later: LaterRows
    ) -> None:
        """Raise Corrupt or InvalidRequest where a sink cannot be brought to its cut; changes nothing."""
        leave = {uid: cut for uid, cut in cuts.items() if self.later(uid, later) is LaterRows.SET_ASIDE}
        for uid, cut in cuts.items():
            if cut is not None:
                refuse = self._refuse_another_table if uid in leave else self._refuse_not_kept
                refuse(uid, self.sinks.of(uid), cut)
        refuse_where_impossible(
            ((uid, self.sinks.of(uid), cut) for uid, cut in leave.items()),
            since=CheckpointId(decision.metadata.number_at_sinks),
            left=had_rows(self.sinks, decision),
        )

    def _refuse_another_table(self, uid: StageUid, sink: Sink, cut: SinkCut) -> None:
        """Raise InvalidRequest where a sink's rows are in another place: a renamed sink's table follows its uid.

        Before a sink's first publish there are only rows that wait for it, staged beside their own table.
        """
        head = cut.snapshot.head
        if same_place(cut.snapshot.uri, sink.place) or (head is None and not cut.batches):
            return
        is_here = _can_show(sink, cut) if head is None else sink.has_published(head)
        if not is_here:
            raise self._in_another_table(uid, sink, cut)

    def _refuse_not_kept(self, uid: StageUid, sink: Sink, cut: SinkCut) -> None:
        """Raise where rows that wait at the cut are gone: with the later rows kept they go out with the next
        checkpoint, and without them none would ever complete. Also where those shown are not made on the cut's.
        """
        try:
            if why := sink.why_not_kept(cut):
                raise InvalidRequest(f"sink {uid}: {why}. Nothing was changed")
            sink.refuse_lost(cut.batches)
        except (Corrupt, InvalidRequest) as error:
            if same_place(cut.snapshot.uri, sink.place):
                raise
            raise self._in_another_table(uid, sink, cut) from error

    def _in_another_table(self, uid: StageUid, sink: Sink, cut: SinkCut) -> InvalidRequest:
        uri = cut.snapshot.uri
        place = Path(uri)
        name = place.name if place.parent == self.sinks.table_dir else uri
        named = f"@spark_sink(table={name!r})" if name != uri else "its former `to`"
        if self.sinks.pipeline.stages[uid].participant is not None:
            named = f"quarantine={place.name!r}"
        return InvalidRequest(
            f"sink {uid!r} writes table {sink.place}, which has none of the rows of the restore point: they are in "
            f"{uri}. Go on with that table: {named}; or {MOVED}. Where it was always this table, the store or the "
            "storage is another deployment's"
        )


def refuse_forks(sinks: PipelineSinks, cuts: Mapping[StageUid, SinkCut]) -> None:
    """Raise where a sink of a fork cannot begin with such rows, or they were staged for another one."""
    for uid, cut in cuts.items():
        sinks.refuse_changed(uid, cut.batches, way_out=WAY_OUT_OF_FORK)
        sinks.of(uid).refuse_fork(cut)


def _places_of_rows(decision: Restore) -> dict[str, str]:
    """Return where the rows of a restore point are, by sink, also of those that are gone; empty: there are none."""
    matched = {str(match.uid): match.snapshot for match in decision.stages.matches}
    gone = {saved.uid: saved for saved in decision.metadata.stages if saved.uid in decision.stages.skipped}
    return {uid: _place_of_rows(saved.table) for uid, saved in (gone | matched).items()}


def _place_of_rows(table: TableSnapshot | None) -> str:
    return "" if table is None or (table.head is None and not table.prepared) else table.uri


def _can_show(sink: Sink, cut: SinkCut) -> bool:
    try:
        return not sink.cannot_roll_back(cut)
    except Corrupt:
        return False
