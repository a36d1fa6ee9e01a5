"""Parts of a restore's preview: its sources, hooks and tables; nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import CoordinatorEpoch, PipelineId, StageUid
from dagster_ckpt.core.model import CheckpointMetadata, StageSnapshot, TableSnapshot
from dagster_ckpt.core.restore.choice import Restore
from dagster_ckpt.core.restore.facts import RestorePurpose
from dagster_ckpt.core.restore.matching import (
    MatchedStages,
    NonRestoredState,
    StageMatch,
    match_hooks,
    non_restored_state,
    staying_finished,
)
from dagster_ckpt.errors import CheckpointError, InvalidRequest
from dagster_ckpt.operations.deployment import Deployment
from dagster_ckpt.operations.readers.load_table import cut_of
from dagster_ckpt.runtime.record_store import RecordStore
from dagster_ckpt.spark.attempt.earlier_attempts import left_table
from dagster_ckpt.spark.attempt.restore import bounded_among, not_read_again, partial_inputs
from dagster_ckpt.spark.attempt.sink_refusals import SinkRefusals, refuse_forks
from dagster_ckpt.spark.attempt.sinks import PipelineSinks
from dagster_ckpt.spark.sink.opening import open_at
from dagster_ckpt.spark.sink.port import AttemptId, Difference, LaterRows, SinkCut
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot
from dagster_ckpt.spark.source.pins import refuse_gone_files, refuse_lost
from dagster_ckpt.spark.source.positions import LagReader, SourceLag, source_positions

if TYPE_CHECKING:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePreview:
    """Sources of a restore; without the pipeline's code no log is asked."""

    lags: tuple[SourceLag, ...] = ()
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class _Heard:
    """Keeps what a restore would say."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def info(self, message: str) -> None:
        """Nothing is kept of this."""

    def warn(self, message: str) -> None:
        """Keep it."""
        self.warnings.append(message)


def preview_sources(
    deployment: Deployment,
    snapshot: StoredSnapshot,
    pipeline: CheckpointedPipeline | None,
    options: RestoreOptions,
    matches: Sequence[StageMatch],
) -> SourcePreview:
    """Return a restore's decision about a snapshot's positions and files, and how far behind they are.

    Whether an epoch or a stream is to be restored is not known: what refuses only the one is a warning.
    """
    metadata, heard, refusals = snapshot.metadata, _Heard(), []
    over = _not_read_by_streams(pipeline, matches)
    positions = source_positions(metadata, pipeline)
    try:
        refuse_lost([at for at in positions if at.stage in over], heard)
    except InvalidRequest as error:
        heard.warn(
            f"as a stream it goes on, which does not read again what had finished; as an epoch: {error}"
        )
    try:
        refuse_lost([at for at in positions if at.stage not in over], heard)
        if not options.allow_missing_files:
            record = RecordStore(deployment.store).record(PipelineId(metadata.pipeline))
            refuse_gone_files(snapshot, record, deployment.open_storage)
    except InvalidRequest as error:
        refusals.append(str(error))
    lags = LagReader(pipeline=pipeline).read(metadata)
    return SourcePreview(lags=lags, refusals=tuple(refusals), warnings=tuple(heard.warnings))


def _not_read_by_streams(
    pipeline: CheckpointedPipeline | None, matches: Sequence[StageMatch]
) -> frozenset[StageUid]:
    if pipeline is None:
        return frozenset()
    ended = staying_finished({match.uid: match.finished_on_restore for match in matches})
    return not_read_again(matches, bounded_among(pipeline, ended))


def late_readers(
    graph: PipelineGraph, matched: MatchedStages | None, code: CheckpointedPipeline | None
) -> Iterator[str]:
    """Yield why new stages would miss rows that were read before."""
    if matched is None or code is None:
        return
    yield from partial_inputs(
        code.stages,
        {uid: [edge.upstream for edge in graph.inputs[uid]] for uid in matched.new},
        begun={match.uid for match in matched.matches if match.snapshot.batch_id is not None},
        new=matched.new,
    )


class HookFate(StrEnum):
    """Fate of a hook's state in a restore."""

    RESTORED = "restored"
    NEW = "new"
    """It begins without state."""
    DROPPED = "dropped"
    """Its state was saved, and the pipeline no longer has the hook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookPreview:
    """One hook."""

    uid: str
    fate: HookFate


def preview_hooks(
    hooks: Sequence[str] | None, metadata: CheckpointMetadata, options: RestoreOptions
) -> tuple[tuple[HookPreview, ...], list[str]]:
    """Return each hook's fate, and the refusal where a state would be lost."""
    if hooks is None:
        return (), []
    states, refusals = metadata.master_states, []
    try:
        match_hooks(hooks, states, non_restored=non_restored_state(options))
    except InvalidRequest as error:
        refusals = [str(error)]
    matched = match_hooks(hooks, states, non_restored=NonRestoredState.SKIP)
    fates = (
        (HookFate.RESTORED, matched.restored),
        (HookFate.NEW, matched.new),
        (HookFate.DROPPED, matched.dropped),
    )
    return tuple(HookPreview(uid=uid, fate=fate) for fate, uids in fates for uid in uids), refusals


class TablePlan(StrEnum):
    """Treatment of tables that the restore is asked for."""

    ROLL_BACK = "roll_back"
    KEEP_LATER_ROWS = "keep_later_rows"
    FORK = "fork"


def table_plan(options: RestoreOptions, uid: StageUid) -> TablePlan:
    """Return the plan for the table of a sink in a restore with these options."""
    if options.fork and uid not in options.keep_rows_of:
        return TablePlan.FORK
    goes = options.roll_back_tables and uid not in options.keep_rows_of
    return TablePlan.ROLL_BACK if goes else TablePlan.KEEP_LATER_ROWS


class TableFate(StrEnum):
    """Fate of one table in a restore."""

    UNCHANGED = "unchanged"
    """It holds exactly the rows of the cut already."""
    MOVES = "moves"
    """Rows leave or come back, so that it holds exactly the rows of the cut."""
    KEEPS_ROWS = "keeps_rows"
    """Rows past the restore point stay, and will be written again."""
    SEEDED = "seeded"
    """A fork's own table begins with the rows of the cut; this one is only read."""
    IMPOSSIBLE = "impossible"
    """The rows of the cut cannot be told apart or are gone; ``message`` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePreview:
    """One table."""

    stage: str
    uri: str
    mode: str
    fate: TableFate
    rows_leaving: int = 0
    """Rows that leave the table; with KEEPS_ROWS: rows past the cut that stay."""
    rows_returning: int = 0
    """Rows that left it, or never became visible, and come back."""
    message: str = ""


def preview_table(
    source: StoredSnapshot, match: StageMatch, plan: TablePlan, sinks: PipelineSinks | None
) -> TablePreview | None:
    """Return the fate of one stage's table; None for a stage without one.

    ``sinks``: those of now, which are asked whether a fork's can begin with such rows.
    """
    stage = match.snapshot
    cut = stage.table
    if cut is None:
        return None
    if cut.cannot_roll_back and plan is TablePlan.ROLL_BACK:
        return _preview(stage, cut, TableFate.IMPOSSIBLE, cut.cannot_roll_back)
    try:
        sink = open_at(cut.uri, cut.sink, PipelineId(source.metadata.pipeline), StageUid(stage.uid))
        if (
            plan is TablePlan.FORK
            and sinks is not None
            and sinks.pipeline.stages[match.uid].table is not None
        ):
            refuse_forks(sinks, {match.uid: cut_of(source, stage, cut)})
        found = None if sink is None else sink.difference(cut_of(source, stage, cut))
    except CheckpointError as error:
        return _preview(stage, cut, TableFate.IMPOSSIBLE, str(error))
    return _preview_of(stage, cut, plan, found)


def refused_by_sinks(
    source: StoredSnapshot,
    decision: Restore,
    sinks: PipelineSinks,
    options: RestoreOptions,
    record: CoordinatorRecord,
) -> Iterator[str]:
    """Yield why sinks of now would refuse a restore of the pipeline's own snapshot, by the rules of its run.

    A fork's are asked table by table. Rows that the checkpoint itself holds are not: the run puts them back first.
    """
    if decision.purpose is RestorePurpose.FORK:
        return
    attempt = AttemptId(record.lineage, CoordinatorEpoch(record.epoch))
    sinks = replace(sinks, attempt_id=lambda: attempt)
    refusals = SinkRefusals(sinks=sinks, keep_rows_of=options.keep_rows_of)
    later = LaterRows.SET_ASIDE if options.roll_back_tables else LaterRows.KEEP
    try:
        sinks.seen()
        refusals.refuse_unknown()
        refusals.refuse_other_tables(decision)
        cuts = {
            uid: refusals.kept(uid, _cut_of(source, decision, sinks, uid)) for uid, _, _ in sinks.opened()
        }
        refusals.refuse_changed(cuts)
        asked = {
            uid: replace(cut, batches=()) if cut is not None and sinks.of(uid).rereads else cut
            for uid, cut in cuts.items()
        }
        refusals.refuse_where_impossible(asked, decision, later)
    except CheckpointError as error:
        yield str(error)


def _cut_of(source: StoredSnapshot, decision: Restore, sinks: PipelineSinks, uid: StageUid) -> SinkCut | None:
    stage = next((one.snapshot for one in decision.stages.matches if one.uid == uid), None)
    if stage is not None and stage.table is not None:
        return cut_of(source, stage, stage.table)
    left = left_table(uid, sinks, decision)
    return None if left is None else cut_of(source, None, left)


def of_fork(origins: TablePreview, pipeline: PipelineId, uid: StageUid, plan: TablePlan) -> TablePreview:
    """Return the fate of a fork's own table, by its asset's name, where the fork goes back to its beginning."""
    goes = plan is TablePlan.ROLL_BACK
    return TablePreview(
        stage=uid,
        uri=f"{pipeline}/{uid}",
        mode=origins.mode,
        fate=TableFate.MOVES if goes else TableFate.KEEPS_ROWS,
        message="the sink brings it to the rows that the fork began with when the run starts" if goes else "",
    )


def _preview_of(
    stage: StageSnapshot, cut: TableSnapshot, plan: TablePlan, found: Difference | None
) -> TablePreview:
    """Return the fate of a table that can show the cut; ``found`` None: only its run can ask it."""
    if plan is TablePlan.FORK:
        return _preview(stage, cut, TableFate.SEEDED)
    is_rolled_back = plan is TablePlan.ROLL_BACK
    fate = TableFate.MOVES if is_rolled_back else TableFate.KEEPS_ROWS
    if found is None:
        at = "no rows" if cut.head is None else f"the rows of checkpoint {cut.head}"
        return _preview(
            stage, cut, fate, cut.cannot_roll_back or f"the sink brings it to {at} when the run starts"
        )
    if found.is_same:
        return _preview(stage, cut, TableFate.UNCHANGED)
    added = found.rows_now - found.rows_then
    return TablePreview(
        stage=stage.uid,
        uri=cut.uri,
        mode=cut.sink,
        fate=fate,
        rows_leaving=max(0, added),
        rows_returning=max(0, -added) if is_rolled_back else 0,
        message="rows of keys that stay go back to their values of then"
        if found.by_key and is_rolled_back
        else "",
    )


def _preview(stage: StageSnapshot, cut: TableSnapshot, fate: TableFate, message: str = "") -> TablePreview:
    return TablePreview(stage=stage.uid, uri=cut.uri, mode=cut.sink, fate=fate, message=message)
