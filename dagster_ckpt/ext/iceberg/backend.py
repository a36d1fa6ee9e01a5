"""An Iceberg table behind the engine: a change is one commit, whatever is in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.io import ADLS_BLOB_STORAGE_AUTHORITY
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import DataScan, Table, Transaction
from pyiceberg.table.snapshots import Snapshot

from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.ext.iceberg.catalogs import settings_at
from dagster_ckpt.ext.iceberg.columns import (
    COLUMNS,
    refuse_table,
    schema_columns,
    schema_of,
)
from dagster_ckpt.ext.iceberg.files import upsert, write_files
from dagster_ckpt.ext.iceberg.lake import Lake, Outside, TableChange, committing, folder_at, reading
from dagster_ckpt.ext.iceberg.version import IcebergVersion
from dagster_ckpt.ext.tables.columns import Column
from dagster_ckpt.ext.tables.engine import Change, OriginState
from dagster_ckpt.ext.tables.marks import Mark, SinkNames
from dagster_ckpt.ext.tables.rewrite import conformed
from dagster_ckpt.ext.tables.staged_files import StagedFiles, areas_of
from dagster_ckpt.ext.tables.version import State, refuse_gone
from dagster_ckpt.spark.exchange.options import AZURE, azure_folder
from dagster_ckpt.spark.files import batch_folder_name
from dagster_ckpt.spark.sink.committables import TableFile, shown_files


def staged_files(lake: Lake, names: SinkNames, work_dir: Path) -> StagedFiles:
    """Return a table's staged files; the files of each sink of a table have a folder of their own."""
    location = lake.location
    area, *former = areas_of(names.pipeline, (names.uid, *names.previous))

    def open_store() -> tuple[Any, str]:
        table = lake.table()
        properties = table.io.properties if table is not None else lake.settings.open().properties
        parts = urlsplit(location)
        if parts.scheme in ("abfs", "abfss") and ADLS_BLOB_STORAGE_AUTHORITY not in properties:
            return azure_store(location, properties)
        scheme, netloc, path = PyArrowFileIO.parse_location(location, properties)
        return PyArrowFileIO(properties).fs_by_scheme(scheme, netloc), path

    return StagedFiles(
        place=lake.place,
        table_dir=folder_at(location),
        work_dir=work_dir,
        open_store=open_store,
        area=area,
        former_areas=tuple(former),
    )


def azure_store(location: str, properties: Mapping[str, Any]) -> tuple[Any, str]:
    """Return pyarrow's client of a container, by the properties that PyIceberg itself hands to adlfs.

    PyIceberg's own pyarrow client takes neither a connection string nor the account that a location names.
    """
    given = {word: str(properties.get(f"adls.{word.replace('_', '-')}") or "") for word in AZURE}
    options = {word: value for word, value in given.items() if value}
    return azure_folder(location, options, what=f"the table at {location}").connected()


Rewrite = Callable[[Transaction], tuple[Sequence[DataFile], Sequence[DataFile]]]


@dataclass(frozen=True)
class IcebergBackend:
    """One table as one sink works on it."""

    lake: Lake
    names: SinkNames
    work_dir: Path
    key: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The catalog and the table's name in it."""
        return self.lake.place

    @cached_property
    def staged(self) -> StagedFiles:
        """The table's staged files: where they are is asked of the catalog."""
        return staged_files(self.lake, self.names, self.work_dir)

    @cached_property
    def location(self) -> str:
        """Where the table's files lie: where they were staged."""
        return self.lake.location

    def load(self, *, reads_on: bool = False) -> IcebergVersion | None:
        """Return the newest version, or None where there is no table."""
        table = self.lake.table()
        return None if table is None else IcebergVersion(self.place, self.names, table)

    def elsewhere(self, place: str) -> IcebergBackend:
        """Return another table of a catalog that is known."""
        catalog, _, name = place.rpartition("#")
        settings = settings_at(catalog, self.lake.settings)
        if settings is None:
            raise InvalidRequest(
                f"the origin {place} is in another catalog than {self.place}: give the fork a table of the same one"
            )
        lake = self.lake.elsewhere(settings, tuple(name.split(".")))
        return IcebergBackend(lake, self.names, self.work_dir, self.key)

    # --- columns ----------------------------------------------------------------------------------------------

    def columns(self, what: Sequence[str] | OriginState) -> list[Column]:
        """Return the columns of batches with these schemas together, or those of a table.

        Raises InvalidRequest also where the table's place is not known.
        """
        if isinstance(what, OriginState):
            return schema_columns(what.version.table.schema())
        columns = COLUMNS.together(what, key=self.key, partition_by=self.lake.partition_by)
        assert self.location  # raises where it is not known
        return columns

    def refuse_unfit(self, version: IcebergVersion, columns: Sequence[Column]) -> None:
        """Raise InvalidRequest for rows that this table cannot take."""
        is_keyed = bool(self.key)
        refuse_table(version.table, self.place, partition_by=self.lake.partition_by, is_keyed=is_keyed)
        self._new_columns(version, columns)

    def _added(self, version: IcebergVersion, columns: Sequence[Column]) -> list[Column]:
        return COLUMNS.added(columns, schema_columns(version.table.schema()), self.place)

    def _new_columns(self, version: IcebergVersion, columns: Sequence[Column]) -> list[Column]:
        added = self._added(version, columns)
        names = [column["name"] for column in added]
        for name in names:
            if now := _renamed_to(version.table, name):
                raise InvalidRequest(
                    f"the column {name!r} of table {self.place} is called {now!r} now, somebody renamed it: "
                    "rename it in the sink's function, or give the table its old name back"
                )
        shown = None if version.shown is None else version.snapshots[version.shown.number].schema_id
        schema = next((one for one in version.table.metadata.schemas if one.schema_id == shown), None)
        refuse_gone(self.place, names, () if schema is None else schema.column_names)
        return added

    # --- commits ----------------------------------------------------------------------------------------------

    def create(self, columns: Sequence[Column], mark: Mark) -> None:
        """Make the table, without rows, unless somebody did; its first snapshot brings the mark."""
        self.lake.create(schema_of(columns))

    def commit(self, version: IcebergVersion, change: Change) -> str:
        """Commit on top of exactly the snapshot that was read."""
        files, replaces = shown_files(change.batches)
        self.staged.footers(files)  # what is gone is named before anything is written
        # Rows by key are not staged apart for each partition, also those that replace all.
        is_parted = not version.table.spec().is_unpartitioned()
        merges = bool(self.key) and bool(change.batches) and (not replaces or is_parted)
        columns: Sequence[Column] = ()
        rewrite: Rewrite | None = None
        if change.batches:
            columns = self._new_columns(version, self.columns([batch.row_schema for batch in change.batches]))
            is_alone = replaces or change.is_emptied
            rewrite = self._merged(change, files, is_alone=is_alone) if merges else None
        elif change.copied is not None:
            columns = self._added(version, self.columns(change.copied))
            rewrite = _copied(change.copied)
        step = TableChange(
            mark=change.mark.model_copy(update={"staged": ()}),
            columns=schema_of(columns).fields,
            back_to=change.back_to,
            set_aside=change.aside,
            staged=() if merges else [f"{self.location}/{file.staged}" for file in files],
            replaces=replaces or change.is_emptied or change.copied is not None,
            rewrite=rewrite,
        )
        with committing(self.place):
            return str(Outside.commit(version, step))

    def folder(self, epoch: int, batch_id: int) -> str:
        """Return a new folder for files that an attempt writes beside those that are staged."""
        return f"{self.location}/{self.staged.area}/{int(epoch)}/{batch_folder_name(batch_id)}"

    def _merged(self, change: Change, files: Sequence[TableFile], *, is_alone: bool) -> Rewrite:
        """Return the function that writes the files which rows by key touch, in a folder of this try's own."""
        staged = self.staged
        folder = self.folder(change.mark.epoch, max(batch.batch_id for batch in change.batches))
        return lambda transaction: upsert(
            transaction, staged, files, key=self.key, folder=folder, is_alone=is_alone
        )

    # --- older snapshots --------------------------------------------------------------------------------------

    def read(self, version: IcebergVersion, number: int | None) -> pa.Table | None:
        """Return the rows of a snapshot; None: of before the first one."""
        table = version.table
        if number is None:
            return table.schema().as_arrow().empty_table().replace_schema_metadata()
        with reading(self.place):
            try:
                scan = DataScan(table.metadata, table.io, snapshot_id=number)
                return scan.to_arrow().replace_schema_metadata()
            except FileNotFoundError as error:
                raise Corrupt(
                    f"table {self.place} can no longer show snapshot {number}: {error}. Choose a later checkpoint, or "
                    "load the newest rows"
                ) from error

    def refuse_lost(self, version: IcebergVersion, state: State | None) -> None:
        """Raise Corrupt where files of a snapshot are gone; in an object store readers find that out."""
        if state is None:
            return
        with reading(self.place):
            wanted = files_of(version, version.snapshots[state.number])
            now = version.snapshots.get(version.number or 0)
            missing = wanted - (files_of(version, now) if now is not None else set())
        for name in sorted(missing):
            path = folder_at(name)
            if path is not None and not path.exists():
                raise Corrupt(
                    f"{name} is gone: table {self.place} cannot show snapshot {state.number} any more; choose a later "
                    "checkpoint"
                )


def files_of(version: IcebergVersion, snapshot: Snapshot) -> set[str]:
    """Return the files that hold a snapshot's rows."""
    io = version.table.io
    return {
        entry.data_file.file_path
        for manifest in snapshot.manifests(io)
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
    }


def _copied(origin: OriginState) -> Rewrite:
    """Return the function that writes the rows of another table's snapshot."""
    source: Table = origin.version.table

    def write(transaction: Transaction) -> tuple[list[DataFile], list[DataFile]]:
        rows = DataScan(source.metadata, source.io, snapshot_id=origin.number).to_arrow()
        if not len(rows):
            return [], []
        metadata = transaction.table_metadata
        rows = conformed(rows, schema_to_pyarrow(metadata.schema(), include_field_ids=False))
        return write_files(metadata, rows, transaction._table.io), []

    return write


def _renamed_to(table: Table, name: str) -> str:
    """Return today's name of a column that an earlier schema of the table has under this name; empty: there is
    none.
    """
    now = {column.field_id: column.name for column in table.schema().fields}
    earlier = (column for schema in table.metadata.schemas for column in schema.fields)
    return next((now[c.field_id] for c in earlier if c.name == name and c.field_id in now), "")
