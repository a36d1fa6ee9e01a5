"""Rows by key: the latest of each, and the files that they touch written again without the rows they replace.

Not by delta-rs's MERGE: it takes NaN, the zeros and nulls of a key for others than Spark does, and writes bounds that
hide rows.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from dagster_ckpt.errors import Corrupt
from dagster_ckpt.ext.delta.columns import bounded_columns, statistics
from dagster_ckpt.ext.tables.rewrite import bounds_of, conformed, gathered, repeating, staying
from dagster_ckpt.ext.tables.staged_files import READ_WHOLE, StagedFiles, partition_values
from dagster_ckpt.spark.files import bounded_by_pyarrow
from dagster_ckpt.spark.sink.committables import TableFile
from dagster_ckpt.spark.sink.staged_rows import flush_staged

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction


def add_actions(table: DeltaTable, staged: StagedFiles, files: Sequence[TableFile]) -> list[AddAction]:
    """Return the actions that add staged files where they lie. Raises Corrupt when one is gone."""
    footers = staged.footers(files)
    return adds(
        table, [(file.staged, file.bytes, footer) for file, footer in zip(files, footers, strict=True)]
    )


def adds(table: DeltaTable, files: Sequence[tuple[str, int, pq.FileMetaData]]) -> list[AddAction]:
    """Return the actions that add files: their paths below the table, bytes and footers."""
    from deltalake.transaction import AddAction

    now, bounded = int(time.time() * 1000), bounded_columns(table)
    return [
        AddAction(
            path=path,
            size=size,
            partition_values=partition_values(path),
            modification_time=now,
            data_change=True,
            stats=statistics(footer, bounded),
        )
        for path, size, footer in files
    ]


@cache
def _format() -> Any:
    import pyarrow.dataset as pads  # brings pandas, half a second that runs without rows do not need

    return pads.ParquetFileFormat(read_options=pads.ParquetReadOptions(coerce_int96_timestamp_unit="us"))


_OPEN = 256
"""Files of partitions that are written at a time: a process may often have no more than 1,024 open."""


def upsert(
    table: DeltaTable,
    staged: StagedFiles,
    files: Sequence[TableFile],
    *,
    key: Sequence[str],
    is_alone: bool = False,
    least: str = "",
) -> list[AddAction | RemoveAction]:
    """Write the rows of these files, the last of each key; return what adds them, and removes the files they touch.

    ``is_alone``: no row of the table stays; what removes them is left to the commit. ``least``: rows of the table with
    a key below it leave.
    """
    schema = pa.schema(table.schema().to_arrow())
    new = conformed(staged.latest_rows(files, key), schema)
    actions: list[AddAction | RemoveAction] = []

    def parts() -> Iterator[pa.Table]:
        yield new
        for file, stay in () if is_alone else _touched(table, staged, new.select(key), schema, least):
            actions.append(file.removed())
            yield stay

    for rows in gathered(parts()):
        actions += adds(table, write_files(staged, rows, table.metadata().partition_columns, key=key))
    return actions


def write_files(
    staged: StagedFiles,
    rows: pa.Table,
    partition_by: Sequence[str],
    *,
    key: Sequence[str] = (),
    below: str = "",
) -> list[tuple[str, int, pq.FileMetaData]]:
    """Write rows into files of the table's folder, or ``below`` it, as ``adds`` takes them; they are in no commit."""
    import pyarrow.dataset as pads

    store, folder = store_of(staged)
    folders = {name: quote(name, safe="") for name in partition_by}  # pyarrow encodes the values alone
    rows = rows.rename_columns([folders.get(name, name) for name in rows.column_names])
    written: list[tuple[str, int, pq.FileMetaData]] = []

    def note(file: Any) -> None:
        written.append((file.path[len(folder) + 1 :], file.size, file.metadata))

    options = _format().make_write_options(
        store_schema=False,
        write_statistics=bounded_by_pyarrow(rows.schema),
        use_dictionary=repeating(rows.schema, key),
    )
    pads.write_dataset(
        rows,
        f"{folder}/{below}" if below else folder,
        filesystem=store,
        format=_format(),
        file_options=options,
        partitioning=pads.partitioning(
            pa.schema([rows.schema.field(name) for name in folders.values()]), flavor="hive"
        ),
        max_partitions=max(1, rows.num_rows),
        max_open_files=_OPEN,
        basename_template=f"part-{uuid.uuid4()}-{{i}}.parquet",
        existing_data_behavior="overwrite_or_ignore",
        create_dir=staged.table_dir is not None,  # in an object store: three requests for nothing
        use_threads=False,  # their order is kept
        file_visitor=note,
    )
    if staged.table_dir is not None:
        flush_staged([staged.table_dir / name for name, _, _ in written])
    return written


@dataclass(frozen=True)
class TableFileOfLog:
    """A file of the table."""

    path: str
    bytes: int
    partition: dict[str, Any]
    bounds: dict[str, tuple[Any, Any]]

    def may_have(self, keys: pa.Table) -> bool:
        """Tell whether its bounds are those of one that has one of these keys."""
        for name in keys.column_names:
            there, ours = self.bounds.get(name), bounds_of(keys[name])
            if there is None or ours is None or None in there:
                continue
            if there[1] < ours[0] or there[0] > ours[1]:
                return False
            low, high = (pa.scalar(bound, keys.schema.field(name).type) for bound in there)
            is_within = pc.and_(pc.greater_equal(keys[name], low), pc.less_equal(keys[name], high))
            keys = keys.filter(is_within)
        return bool(keys.num_rows)

    def may_have_below(self, name: str, least: str) -> bool:
        """Tell whether its bounds are those of one that has texts of a column below this one."""
        return bool(least) and (self.bounds.get(name) or ("",))[0] < least

    def read(self, staged: StagedFiles, schema: pa.Schema, names: Sequence[str]) -> pa.Table:
        """Return these columns of its rows."""
        store, folder = store_of(staged)
        said = pc.scalar(True)
        for name, value in self.partition.items():
            said = said & (
                pc.field(name).is_null()
                if value is None
                else pc.field(name) == pa.scalar(value, schema.field(name).type)
            )
        fragment = _format().make_fragment(f"{folder}/{self.path}", store, said, file_size=self.bytes)
        try:
            rows = fragment.to_table(schema=schema, columns=list(names))
        except FileNotFoundError as error:
            raise Corrupt(
                f"table {staged.place} has lost rows of this version: {error}. Choose a later checkpoint"
            ) from error
        return conformed(rows, pa.schema([schema.field(name) for name in names]))

    def removed(self, *, changes_rows: bool = True) -> RemoveAction:
        """Return the action that takes it out of the table."""
        from deltalake.transaction import RemoveAction

        values = {name: _text(value) for name, value in self.partition.items()}
        return RemoveAction(self.path, changes_rows, int(time.time() * 1000), self.bytes, values)


def _touched(
    table: DeltaTable, staged: StagedFiles, keys: pa.Table, schema: pa.Schema, least: str
) -> Iterator[tuple[TableFileOfLog, pa.Table]]:
    """Yield each file that has one of these keys, or one below ``least``, with its rows that have none."""
    for file in files_of_log(table):
        if not (file.may_have(keys) or file.may_have_below(keys.column_names[0], least)):
            continue
        is_far = (
            staged.table_dir is None and file.bytes <= READ_WHOLE
        )  # a second look costs more than its rows
        there = file.read(staged, schema, schema.names if is_far else keys.column_names)
        stays = staying(there.select(keys.column_names), keys)
        if least:
            stays = pc.and_(stays, pc.greater_equal(there[keys.column_names[0]], least))
        if pc.all(stays).as_py():
            continue
        columns = {name: there[name] for name in there.column_names}
        if others := [name for name in schema.names if name not in columns]:  # in the same order
            rest = file.read(staged, schema, others)
            columns |= {name: rest[name] for name in others}
        yield file, pa.table([columns[name] for name in schema.names], schema=schema).filter(stays)


def files_of_log(table: DeltaTable) -> Iterator[TableFileOfLog]:
    """Yield the files of a version, with what the log says of them."""
    for action in pa.table(table.get_add_actions()).to_pylist():
        partition = action.get("partition") or {}
        least, most = action.get("min") or {}, action.get("max") or {}
        bounds = {name: (least[name], most.get(name)) for name in least} | {
            name: (value, value) for name, value in partition.items()
        }
        yield TableFileOfLog(unquote(action["path"]), action["size_bytes"], partition, bounds)


def _text(value: Any) -> str | None:
    """Return a partition's value as the log has it."""
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def store_of(staged: StagedFiles) -> tuple[Any, str]:
    """Return the file system that holds a table, and the table's folder in it."""
    if staged.table_dir is not None:
        return pafs.LocalFileSystem(), str(Path(staged.table_dir).absolute())
    return staged.store
