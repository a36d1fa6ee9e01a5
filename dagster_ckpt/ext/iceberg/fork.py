"""A table that begins with exactly the rows of a cut of another one, which is only read."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table import DataScan, Transaction
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField

from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.ext.iceberg.catalogs import settings_at
from dagster_ckpt.ext.iceberg.columns import iceberg_columns, new_columns, schema_of
from dagster_ckpt.ext.iceberg.lake import Change, Lake, Raced
from dagster_ckpt.ext.iceberg.marks import mark_of
from dagster_ckpt.ext.iceberg.publish import Writer
from dagster_ckpt.ext.iceberg.staged import staged_files
from dagster_ckpt.ext.iceberg.version import Version
from dagster_ckpt.spark.sink.log_table import refuse_other_key
from dagster_ckpt.spark.sink.port import AttemptId, SinkCut
from dagster_ckpt.spark.sink.positions import SEED


def fork(writer: Writer, attempt: AttemptId, cut: SinkCut) -> str:
    """Give the table the rows of a cut; repeating it finishes it, or changes nothing."""
    lake, source = writer.lake, _source(writer.lake, cut.snapshot.uri)
    if source.place == lake.place:
        raise InvalidRequest(
            f"the fork would write to {lake.place} as its origin does: give it another table"
        )
    origin = f"{source.place} at checkpoint {cut.checkpoint_id}"
    theirs, seed = _seed(source, cut)

    if seed is not None:
        refuse_other_key(mark_of(seed, None), writer.key, source.place)

    def step() -> None:
        version = writer.own(attempt)
        if version is None:
            columns = _columns(theirs, cut)
            if columns:
                lake.create(schema_of(columns))
                raise Raced
            return
        mark = version.mark
        if mark is not None and mark.origin == origin and mark.head == SEED:
            writer.fence(version, attempt)
            return
        has_rows = any(True for _ in version.table.scan().plan_files())
        if (has_rows or (mark is not None and mark.head is not None)) and (mark and mark.origin) != origin:
            raise InvalidRequest(f"table {lake.place} has rows already: give the fork a table of its own")
        if mark is None or mark.origin != origin:
            _copy_rows(writer, version, attempt, theirs, seed, origin=origin, is_all=not cut.batches)
            raise Raced
        _add_prepared(writer, version, attempt, cut, source)

    lake.repeat(step)
    return f"table {lake.place} begins with the rows of {origin}"


def _source(lake: Lake, place: str) -> Lake:
    catalog, _, name = place.rpartition("#")
    settings = settings_at(catalog, lake.settings)
    if settings is None:
        raise InvalidRequest(
            f"the origin {place} is in another catalog than {lake.place}: give the fork a table of the same one"
        )
    return lake.elsewhere(settings, tuple(name.split(".")))


def _seed(source: Lake, cut: SinkCut) -> tuple[Version | None, Snapshot | None]:
    """Return the origin, and its snapshot that shows the cut's head; None: nothing was published at the cut."""
    version = source.load()
    if cut.snapshot.head is None:
        return version, None
    shown = []
    for snapshot in version.snapshots.values() if version is not None else ():
        mark = mark_of(snapshot, None)
        if mark is not None and mark.head == cut.snapshot.head:
            shown.append((mark.lineage in cut.lineages, snapshot.sequence_number or 0, snapshot))
    if not shown:
        raise Corrupt(
            f"table {source.place} has no snapshot that shows checkpoint {cut.snapshot.head}: choose a later "
            "restore point"
        )
    return version, max(shown, key=lambda found: found[:2])[2]


def _columns(theirs: Version | None, cut: SinkCut) -> Sequence[NestedField]:
    if theirs is not None:
        return theirs.table.schema().fields
    return iceberg_columns(cut.batches[0].row_schema) if cut.batches else ()


def _copy_rows(
    writer: Writer,
    version: Version,
    attempt: AttemptId,
    theirs: Version | None,
    seed: Snapshot | None,
    *,
    origin: str,
    is_all: bool,
) -> None:
    """Write the origin's rows; where batches follow, the fork is not begun before they are added."""
    said = mark_of(seed, None) if seed is not None else None
    through = said.through_batch if said is not None else None
    key = said.key if said is not None else ""
    head = SEED if is_all else None
    mark = version.next_mark(attempt, origin=origin, head=head, through_batch=through, key=key)
    if theirs is None or seed is None:
        writer.lake.commit(version, Change(mark=mark))
        return
    source, number = theirs.table, seed.snapshot_id

    def copied(transaction: Transaction) -> tuple[list[DataFile], list[DataFile]]:
        rows = DataScan(source.metadata, source.io, snapshot_id=number).to_arrow()
        io = version.table.io
        return list(_dataframe_to_data_files(transaction.table_metadata, rows, io)) if len(rows) else [], []

    extra = new_columns(version.table, source.schema().fields, writer.lake.place)
    writer.lake.commit(version, Change(mark=mark, columns=extra, rewrite=copied, replaces=True))


def _add_prepared(writer: Writer, version: Version, attempt: AttemptId, cut: SinkCut, source: Lake) -> None:
    ours = writer.staged
    theirs = staged_files(source, ours.work_dir)
    batches = tuple(batch.model_copy(update={"files": batch.files}) for batch in cut.batches)
    files = [file for batch in batches for file in batch.files]
    for file in files:
        ours.copy_from(theirs, file)
    ours.flush(files)
    writer.add(version, attempt, batches, SEED)
