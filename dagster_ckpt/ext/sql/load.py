"""Rows into a table, from Arrow: COPY for PostgreSQL, many inserts for SQLite; appended, or the latest of each key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dagster_ckpt.ext.sql.names import RESERVED, SqlName
from dagster_ckpt.ext.sql.table import TableTransaction

if TYPE_CHECKING:
    import pyarrow as pa

STAGED = SqlName(schema="", name=f"{RESERVED}rows")
"""Temporary table of a publish by key, or whose rows are compared."""
NUMBER = f"{RESERVED}number"
"""Place of a row in it."""
_RANK, _INTO, _FROM = f"{RESERVED}rank", f"{RESERVED}into", f"{RESERVED}from"
"""A column of our own, and what the statement calls its two tables: a user's may have any other name."""


def append(table: TableTransaction, rows: pa.RecordBatchReader) -> None:
    """Add all rows. Raises InvalidRequest where the table does not have them then."""
    _insert(table, table.table(), rows.schema.names, rows)


def stage(table: TableTransaction, rows: pa.RecordBatchReader, marks: Mapping[str, int]) -> None:
    """Put the rows into a temporary table, numbered in their order; ``marks``: columns of one value in all of them."""
    columns = [*rows.schema.names, *marks]
    on_commit = " ON COMMIT DROP" if table.dialect.name == "postgresql" else ""
    table.execute(
        f"CREATE TEMPORARY TABLE {table.table(STAGED)}{on_commit} AS "
        f"SELECT {table.list_of(columns)}, CAST(0 AS BIGINT) AS {table.quoted(NUMBER)} FROM {table.table()} WHERE 1 = 0"
    )
    _insert(
        table, table.table(STAGED), [*columns, NUMBER], _numbered(_marked(batch, marks) for batch in rows)
    )


def drop_staged(table: TableTransaction) -> None:
    """Remove the temporary table."""
    table.execute(f"DROP TABLE {table.table(STAGED)}")


def append_staged(table: TableTransaction, columns: list[str]) -> None:
    """Add all staged rows. Raises InvalidRequest where a trigger makes something else of them."""
    listed, staged = table.list_of(columns), table.table(STAGED)
    written = f"INSERT INTO {table.table()} ({listed}) {table.even_identities}SELECT {listed} FROM {staged}"
    if any(trigger.is_before for trigger in table.triggers):
        compared = ", ".join(map(table.comparable, columns))
        is_other = table.found(
            f"WITH {_INTO} AS ({written} RETURNING {listed}) SELECT {compared} FROM {staged} EXCEPT ALL "
            f"SELECT {compared} FROM {_INTO} LIMIT 1"
        )
    else:
        is_other = table.execute(written).rowcount != table.value(f"SELECT count(*) FROM {staged}")
    if is_other:
        table.refuse_as_written()


def upsert_staged(table: TableTransaction, columns: list[str], absent: Iterable[str]) -> None:
    """Write the last staged row of each key.

    ``absent``: columns that rows had before, and these have not. A row that comes again is as one that is new: its
    value there is the column's default, or null.
    """
    key, listed, staged = table.list_of(table.key), table.list_of(columns), table.table(STAGED)
    changed = [column for column in (*columns, *absent) if column not in table.key]
    updates = ", ".join(f"{table.quoted(column)} = excluded.{table.quoted(column)}" for column in changed)
    newest = (
        f"SELECT {listed} FROM (SELECT {listed}, row_number() OVER (PARTITION BY {key} ORDER BY {NUMBER} DESC) "
        f"AS {_RANK} FROM {staged}) AS {_FROM} WHERE {_RANK} = 1"
    )
    table.execute(
        f"INSERT INTO {table.table()} AS {_INTO} ({listed}) {table.even_identities}{newest} "
        f"ON CONFLICT ({key}) DO {f'UPDATE SET {updates}' if changed else 'NOTHING'}"
    )
    if table.triggers:
        table.refuse_missing(newest, columns)


def _insert(
    table: TableTransaction, into: str, columns: list[str], batches: Iterable[pa.RecordBatch]
) -> None:
    listed = table.list_of(columns)
    if table.dialect.name == "postgresql":
        # Said, because a database of another encoding would take the bytes for text in its own.
        options = "FORMAT csv, ENCODING 'UTF8'"
        _copy(table, f"COPY {into} ({listed}) FROM STDIN ({options})".replace("%%", "%"), batches)
        return
    places = ", ".join("?" for _ in columns)
    for batch in batches:
        values = [_for_sqlite(column) for column in batch.columns]
        done = table.connection.exec_driver_sql(
            f"INSERT INTO {into} ({listed}) VALUES ({places})", list(zip(*values, strict=True))
        )
        if done.rowcount != batch.num_rows:
            table.refuse_as_written()


def _copy(table: TableTransaction, statement: str, batches: Iterable[pa.RecordBatch]) -> None:
    import pyarrow as pa
    from pyarrow import csv

    options = csv.WriteOptions(include_header=False)
    driver: Any = table.connection.connection.driver_connection
    rows = 0
    with driver.cursor() as cursor:
        with cursor.copy(statement) as copy:
            for batch in batches:
                buffer = pa.BufferOutputStream()
                csv.write_csv(_for_csv(batch), buffer, options)
                copy.write(buffer.getvalue().to_pybytes())
                rows += batch.num_rows
        if cursor.rowcount != rows:
            table.refuse_as_written()


def _for_csv(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with values in PostgreSQL's spelling: CSV is text.

    A single-precision number is written as the double it is equal to: its shortest text is another number in a column
    of double precision.
    """
    import pyarrow as pa

    for index, field in enumerate(batch.schema):
        if pa.types.is_float32(field.type):
            batch = batch.set_column(index, field.name, batch.column(index).cast(pa.float64()))
        if pa.types.is_binary(field.type):
            hexadecimal = [None if v is None else f"\\x{v.hex()}" for v in batch.column(index).to_pylist()]
            batch = batch.set_column(index, field.name, pa.array(hexadecimal, pa.string()))
    return batch


def _for_sqlite(column: pa.Array) -> list[Any]:
    """Return values as SQLite's driver takes them: decimals, dates and times as text, times in UTC."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_timestamp(column.type):
        text = pc.strftime(column.cast(pa.timestamp("us")), format="%Y-%m-%d %H:%M:%S")
        return list(text.to_pylist())
    if pa.types.is_date(column.type):
        return list(column.cast(pa.string()).to_pylist())
    if pa.types.is_decimal(column.type):
        return [None if value is None else f"{value:f}" for value in column.to_pylist()]
    return list(column.to_pylist())


def _marked(batch: pa.RecordBatch, marks: Mapping[str, int]) -> pa.RecordBatch:
    import pyarrow as pa

    for name, value in marks.items():
        batch = batch.append_column(name, pa.array([value] * batch.num_rows, pa.int64()))
    return batch


def _numbered(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    number = 0
    for batch in rows:
        following = number + batch.num_rows
        yield batch.append_column(NUMBER, pa.array(range(number, following), pa.int64()))
        number = following
