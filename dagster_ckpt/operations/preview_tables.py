"""Preview of what a restore does to tables: read from their publish logs, nothing is moved."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.core.model import StageSnapshot, TableSnapshot
from dagster_ckpt.errors import CheckpointError, NotFound
from dagster_ckpt.operations.contents import prepared_batches_of
from dagster_ckpt.spark.sink.committables import TableFile
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot
from dagster_ckpt.spark.table.buckets import located_versions, touched_buckets
from dagster_ckpt.spark.table.log import Table, open_table
from dagster_ckpt.spark.table.publish import locate_hidden
from dagster_ckpt.spark.table.records import (
    Append,
    PublishRecord,
    Upsert,
)

__all__ = ["TableFate", "TablePlan", "TablePreview", "of_fork", "preview_table", "table_plan"]


class TablePlan(StrEnum):
    """Treatment of tables that the restore is asked for."""

    ROLL_BACK = "roll_back"
    KEEP_LATER_ROWS = "keep_later_rows"
    FORK = "fork"


def table_plan(options: RestoreOptions) -> TablePlan:
    """Return what a restore with these options does to tables."""
    if options.fork:
        return TablePlan.FORK
    return TablePlan.ROLL_BACK if options.roll_back_tables else TablePlan.KEEP_LATER_ROWS


class TableFate(StrEnum):
    """Fate of one table in a restore."""

    UNCHANGED = "unchanged"
    """It holds exactly the rows of the cut already."""
    MOVES = "moves"
    """Rows are set aside or brought back, so that it holds exactly the rows of the cut."""
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
    publishes_after: int = 0
    """Checkpoints published since the cut."""
    rows_set_aside: int = 0
    """Append: rows that leave the table; with KEEPS_ROWS: rows past the cut that stay."""
    files_set_aside: int = 0
    rows_returning: int = 0
    """Append: rows that were set aside, or never became visible, and come back."""
    buckets_changing: int = 0
    """Upsert: files that are replaced by an earlier version."""
    message: str = ""


def preview_table(source: StoredSnapshot, stage: StageSnapshot, plan: TablePlan) -> TablePreview | None:
    """Return what would become of the table of one stage; None for a stage without one. Raises Corrupt, Unavailable."""
    cut = stage.table
    if cut is None:
        return None
    if cut.sink:
        return _of_other_sink(stage, cut, plan)
    found = _Cut(
        snapshot=cut,
        prepared=tuple(file for batch in prepared_batches_of(source, stage) for file in batch.files),
        checkpoint_id=source.metadata.number_at_sinks,
    )
    try:
        table = open_table(cut.uri)
    except NotFound as error:
        return _without_table(stage, found, str(error))
    except CheckpointError as error:
        return _impossible(stage, cut, "", str(error))
    try:
        return _preview(stage, found, table, plan)
    except CheckpointError as error:
        return _impossible(stage, cut, table.mode.kind, str(error))


def of_fork(origins: TablePreview, pipeline: PipelineId, uid: StageUid, plan: TablePlan) -> TablePreview:
    """Return what becomes of a fork's own table, by its asset's name, where the fork goes back to its beginning."""
    goes = plan is TablePlan.ROLL_BACK
    return TablePreview(
        stage=uid,
        uri=f"{pipeline}/{uid}",
        mode=origins.mode,
        fate=TableFate.MOVES if goes else TableFate.KEEPS_ROWS,
        message="the sink brings it to the rows that the fork began with when the run starts" if goes else "",
    )


def _of_other_sink(stage: StageSnapshot, cut: TableSnapshot, plan: TablePlan) -> TablePreview:
    """Return what the snapshot itself says of a sink that is no Parquet table: only its run can ask the outside."""
    fates = {
        TablePlan.ROLL_BACK: TableFate.IMPOSSIBLE if cut.cannot_roll_back else TableFate.MOVES,
        TablePlan.KEEP_LATER_ROWS: TableFate.KEEPS_ROWS,
        TablePlan.FORK: TableFate.SEEDED,
    }
    at = "no rows" if cut.head is None else f"the rows of checkpoint {cut.head}"
    message = cut.cannot_roll_back or f"the sink brings it to {at} when the run starts"
    return TablePreview(stage=stage.uid, uri=cut.uri, mode=cut.sink, fate=fates[plan], message=message)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """A table's part of a snapshot."""

    snapshot: TableSnapshot
    prepared: tuple[TableFile, ...]
    """Files of the batches that were prepared and not published."""
    checkpoint_id: int

    def is_published(self, table: Table) -> bool:
        """True where the snapshot's own publish has made the prepared batches part of the table since."""
        return bool(self.prepared) and table.record(self.checkpoint_id) is not None

    def lineage(self, table: Table) -> list[PublishRecord]:
        """Return the publishes that hold rows of the cut, newest first; prepared batches may be in none yet."""
        return table.lineage(self.checkpoint_id if self.is_published(table) else self.snapshot.head)


def _without_table(stage: StageSnapshot, cut: _Cut, message: str) -> TablePreview:
    if cut.snapshot.head is None and not cut.prepared:
        return TablePreview(stage=stage.uid, uri=cut.snapshot.uri, mode="", fate=TableFate.UNCHANGED)
    return _impossible(stage, cut.snapshot, "", f"{message}; the rows of the cut were in it")


def _impossible(stage: StageSnapshot, cut: TableSnapshot, mode: str, message: str) -> TablePreview:
    return TablePreview(stage=stage.uid, uri=cut.uri, mode=mode, fate=TableFate.IMPOSSIBLE, message=message)


def _preview(stage: StageSnapshot, cut: _Cut, table: Table, plan: TablePlan) -> TablePreview:
    now = table.lineage(table.state().head)
    then = cut.lineage(table)
    match table.mode:
        case Append():
            found = _append(stage, cut, table, [*(f for r in then for f in r.files), *cut.prepared])
        case Upsert():
            found = _upsert(stage, cut, table, now, then)
        case _:
            assert_never(table.mode)
    contained = {record.checkpoint_id for record in then}
    after = sum(record.checkpoint_id not in contained for record in now)
    changes = found.rows_set_aside or found.rows_returning or found.buckets_changing
    return _with_fate(found, plan, after, is_changing=bool(changes))


def _with_fate(found: TablePreview, plan: TablePlan, after: int, *, is_changing: bool) -> TablePreview:
    match plan:
        case TablePlan.ROLL_BACK:
            fate = TableFate.MOVES if is_changing else TableFate.UNCHANGED
        case TablePlan.KEEP_LATER_ROWS:
            fate = TableFate.KEEPS_ROWS if is_changing else TableFate.UNCHANGED
        case TablePlan.FORK:
            fate = TableFate.SEEDED
        case _:
            assert_never(plan)
    is_untouched = fate in (TableFate.KEEPS_ROWS, TableFate.SEEDED)
    return TablePreview(
        stage=found.stage,
        uri=found.uri,
        mode=found.mode,
        fate=fate,
        publishes_after=after,
        rows_set_aside=found.rows_set_aside,
        files_set_aside=0 if is_untouched else found.files_set_aside,
        rows_returning=0 if is_untouched else found.rows_returning,
        buckets_changing=0 if is_untouched else found.buckets_changing,
    )


def _append(stage: StageSnapshot, cut: _Cut, table: Table, wanted: list[TableFile]) -> TablePreview:
    """A file keeps its name for life: what is visible and not wanted is set aside, and the other way round."""
    known = {file.name: file for record in table.records() for file in record.files}
    visible = {path.name for path in table.paths.root.glob("part-*.parquet")} & known.keys()
    names = {file.name for file in wanted}
    extra = [known[name] for name in visible - names]
    hidden = locate_hidden(table, wanted)
    return TablePreview(
        stage=stage.uid,
        uri=cut.snapshot.uri,
        mode=table.mode.kind,
        fate=TableFate.UNCHANGED,
        rows_set_aside=sum(file.rows for file in extra),
        files_set_aside=len(extra),
        rows_returning=sum({f.name: f.rows for f in wanted if f.name in hidden}.values()),
    )


def _upsert(
    stage: StageSnapshot, cut: _Cut, table: Table, now: list[PublishRecord], then: list[PublishRecord]
) -> TablePreview:
    shown, wanted = (lineage[0].versions if lineage else {} for lineage in (now, then))
    located_versions(table.paths, wanted)
    changing = {bucket for bucket in {*shown, *wanted} if shown.get(bucket) != wanted.get(bucket)}
    unpublished = () if cut.is_published(table) else cut.prepared
    changing |= set(touched_buckets(table.paths.root, unpublished))
    return TablePreview(
        stage=stage.uid,
        uri=cut.snapshot.uri,
        mode=table.mode.kind,
        fate=TableFate.UNCHANGED,
        buckets_changing=len(changing),
        rows_returning=sum(file.rows for file in unpublished),
    )
