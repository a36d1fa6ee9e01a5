"""``ParquetTable``: a folder of plain Parquet files behind the port of sinks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pyarrow.parquet as pq

from dagster_ckpt.authoring.targets import ParquetTable
from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.core.restore.horizon import Pin
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound
from dagster_ckpt.spark.files import local_path, move_whole
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.sink.port import (
    AlreadyPublished,
    LaterRows,
    Published,
    RolledBack,
    Sink,
    SinkContext,
    SinkCut,
    SinkDescription,
    SinkPosition,
    Upkeep,
)
from dagster_ckpt.spark.sink.rows import PublishedRows
from dagster_ckpt.spark.sink.staging import flush_staged, stage_rows
from dagster_ckpt.spark.table.buckets import merge_into_published
from dagster_ckpt.spark.table.fork import seed_fork
from dagster_ckpt.spark.table.log import Table, create_table, open_own_table, open_table, refuse_fenced
from dagster_ckpt.spark.table.publish import adopt, locate_hidden, locate_intact, publish
from dagster_ckpt.spark.table.read import ParquetRows
from dagster_ckpt.spark.table.records import Append, Upsert
from dagster_ckpt.spark.table.retention import collect_garbage, remove_superseded, superseded
from dagster_ckpt.spark.table.roll_back import check_roll_back, roll_back
from dagster_ckpt.spark.table.schema import columns, merged, refuse_changed, refuse_unfit
from dagster_ckpt.spark.table.sink import with_bucket

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OLD = "old versions of buckets removed"
_NOT_MERGED = Upkeep(
    what="small files merged",
    note="not done for appended rows: readers of the folder would meanwhile find rows twice, or not at all; write to "
    "a DeltaTable or an IcebergTable, whose small files are merged in one commit",
)


class ParquetSink(Sink):
    """A Parquet table of one sink."""

    kind: ClassVar[str] = ""
    writes_through: ClassVar[bool] = True

    def __init__(self, target: ParquetTable, context: SinkContext) -> None:
        self._context = context
        self._folder = local_path(str(context.table_dir / (target.name or context.name)))
        self._mode: Append | Upsert = (
            Upsert(keys=context.key, buckets=target.buckets) if context.key else Append()
        )

    @property
    def place(self) -> str:
        """The table's folder."""
        return str(self._folder)

    @property
    def table(self) -> Table:
        """The table, made when it is not there yet."""
        return create_table(self.place, pipeline=self._context.pipeline, mode=self._mode)

    def position(self) -> SinkPosition | None:
        """Return where the table's log stands, whatever publish its state file names.

        Raises InvalidRequest for another pipeline's: its numbers would look as if this one's store had been lost.
        """
        try:
            table = open_own_table(self.place, self._context.pipeline)
        except NotFound:
            return None
        state = table.state()
        return SinkPosition(
            lineage=state.lineage,
            epoch=state.epoch,
            checkpoint_id=table.newest(),
            head=state.head,
            through_batch=state.published_through,
        )

    def check(self, frame: DataFrame) -> None:
        """Refuse rows that the table's folder could not hold beside those that are there."""
        schema = frame.schema.json()
        refuse_unfit(f"table {self.place}", schema, self._context.key)
        refuse_changed(
            f"table {self.place}",
            self._schema(),
            schema,
            keys=self._context.key,
            of_project=self._context.of_project,
        )

    def write_through(self, frame: DataFrame, batch_id: BatchId) -> None:
        """Publish one micro-batch at once; from then on the table is no exactly-once table any more."""
        table = self.table
        batch = self.prepare(frame, batch_id)
        with table.locked() as state:
            refuse_fenced(table, state, self._context.attempt())
            if not state.written_through:
                table.write_state(state.model_copy(update={"written_through": True}))
            match table.mode:
                case Append():
                    for file in batch.files:
                        move_whole(table.paths.root / file.staged, table.paths.published(file.name))
                case Upsert() as mode:
                    merge_into_published(table.paths, mode, batch.files, replaces=batch.replaces)

    def is_written_through(self) -> bool:
        """Tell what the table's state says."""
        try:
            return open_table(self.place).state().written_through
        except NotFound:
            return False

    def prepare(self, frame: DataFrame, batch_id: BatchId) -> PreparedBatch:
        """Stage a micro-batch below the table's own folder, so that publishing it moves no bytes."""
        table, attempt = self.table, self._context.attempt()
        return stage_rows(
            with_bucket(frame, table.mode),
            batch_id,
            attempt,
            root=table.paths.root,
            staged=table.paths.staged(attempt.epoch),
            replaces=self._context.is_complete,
            row_schema=frame.schema.json(),
        )

    def flush(self, batches: Sequence[PreparedBatch]) -> None:
        """Flush the files, staged or, by a publish that has begun, visible already. Raises Corrupt for a lost one."""
        table = self.table
        files = [file for batch in batches for file in batch.files]
        hidden = locate_hidden(table, files)
        flush_staged([hidden.get(file.name, table.paths.published(file.name)) for file in files])

    def refuse_lost(self, batches: Sequence[PreparedBatch]) -> None:
        """Read all that is staged, or set aside by a roll-back, of these batches."""
        locate_intact(self.table, [file for batch in batches for file in batch.files])

    def take_over(self) -> None:
        """Finish what was being published."""
        adopt(self.table, self._context.attempt())

    def publish(self, batches: Sequence[PreparedBatch], permit: CommitPermit) -> Published | AlreadyPublished:
        """Move files, or merge them into the buckets they touch."""
        return publish(self.table, batches, permit)

    def roll_back(self, cut: SinkCut | None, later: LaterRows) -> RolledBack:
        """Set aside what the cut does not have, bring back what it has."""
        done = roll_back(self.table, cut, self._context.attempt(), later)
        if not done.set_aside and not done.returned:
            return RolledBack(text="")
        return RolledBack(text=f"{done.set_aside} files set aside, {done.returned} brought back")

    def cannot_roll_back(self, cut: SinkCut | None) -> str:
        """Find out before any table is changed whether this one can show the cut. Raises Corrupt where it cannot."""
        if cut is not None:  # asked for no rows before there is an attempt
            check_roll_back(self.table, cut, self._context.attempt(), reads_all=True)
        return ""

    def has_published(self, checkpoint_id: int) -> bool:
        """Tell whether the table's log has the publish."""
        return self.table.record(checkpoint_id) is not None

    def fork(self, cut: SinkCut) -> str:
        """Link the files of the other table's cut."""
        seeded = seed_fork(
            open_table(cut.snapshot.uri), cut=cut, target=self.table, attempt=self._context.attempt()
        )
        return str(seeded)

    def collect_garbage(self, needed: Sequence[TableSnapshot], waiting: Sequence[PreparedBatch]) -> int:
        """Remove staged folders and bucket versions; rows that were set aside stay."""
        return collect_garbage(self.table, needed, waiting)

    def pins(self, cut: SinkCut) -> Sequence[Pin]:
        """Return whether the files of the cut are there: nobody but us removes them."""
        named = f"rows of checkpoint {cut.checkpoint_id} in table {self.place}"
        try:
            check_roll_back(open_table(self.place), cut, self._context.attempt(), reads_all=False)
        except NotFound as error:
            is_empty = cut.snapshot.head is None and not cut.batches
            return (
                Pin(what=f"table {self.place}", is_there=is_empty, advice="" if is_empty else str(error)),
            )
        except (Corrupt, InvalidRequest) as error:
            return (Pin(what=named, is_there=False, advice=str(error)),)
        return (Pin(what=named, is_there=True),)

    def upkeep(self, needed: Sequence[TableSnapshot]) -> Sequence[Upkeep]:
        """Return the bucket versions that go."""
        table = self._maintained()
        if table is None or isinstance(table.mode, Append):
            return () if table is None else (_NOT_MERGED,)
        found = superseded(table, needed)
        return (Upkeep(what=_OLD, files=len(found), bytes=sum(path.stat().st_size for path in found)),)

    def maintain(self, needed: Sequence[TableSnapshot]) -> Sequence[Upkeep]:
        """Remove bucket versions that nothing needs; files of append tables stay as they are."""
        table = self._maintained()
        if table is None or isinstance(table.mode, Append):
            return () if table is None else (_NOT_MERGED,)
        gone = remove_superseded(table, needed)
        return (Upkeep(what=_OLD, files=len(gone), bytes=sum(size for _, size in gone)),)

    def _maintained(self) -> Table | None:
        """Return the table, where there is one that checkpoints tell apart."""
        try:
            table = open_table(self.place)
        except NotFound:
            return None
        return None if table.state().written_through else table

    def rows(self, cut: SinkCut | None = None) -> PublishedRows:
        """Read what the publish log says of the head, or of the cut."""
        return ParquetRows(open_table(self.place), cut)

    def describe(self) -> SinkDescription:
        """Return columns, rows and bytes as the footers of the visible files tell them."""
        table = open_table(self.place)
        footers = [pq.read_metadata(path) for path in sorted(table.paths.root.glob("part-*.parquet"))]
        return SinkDescription(
            place=self.place,
            columns=tuple((name, _text(column["type"])) for name, column in columns(self._schema()).items()),
            rows=sum(footer.num_rows for footer in footers),
            bytes=sum(path.stat().st_size for path in table.paths.root.glob("part-*.parquet")),
            version=str(table.state().head or ""),
        )

    def _schema(self) -> str:
        """Return the Spark schema of what the table holds; empty where it holds nothing, or nobody knows."""
        try:
            table = open_table(self.place)
        except NotFound:
            return ""
        head = table.state().head
        record = None if head is None else table.record(head)
        if record is not None and record.row_schema:
            return record.row_schema
        schema = ""
        for path in sorted(table.paths.root.glob("part-*.parquet"), key=lambda path: path.stat().st_mtime)[
            -20:
        ]:
            schema = merged(schema, _noted_schema(path))
        return schema


def _noted_schema(path: Path) -> str:
    """Return Spark's own note of the types in a file it wrote."""
    try:
        noted = (pq.read_schema(path).metadata or {}).get(b"org.apache.spark.sql.parquet.row.metadata", b"")
    except (OSError, ValueError) as error:
        raise Corrupt(f"{path} is damaged: {error}; restore a snapshot with restore_from") from error
    return str(noted.decode())


def _text(kind: object) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)
