"""The rows of a database's table, as one statement finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection

from dagster_ckpt.ext.sql.catalog import Existing
from dagster_ckpt.ext.sql.columns import arrow_type
from dagster_ckpt.ext.sql.database import Database
from dagster_ckpt.ext.sql.names import RESERVED, SqlName
from dagster_ckpt.ext.sql.table import CHECKPOINT, TableTransaction
from dagster_ckpt.spark.sink.rows import PublishedRows

Query = Callable[[Connection], str]
"""Returns the query of a table's rows, of the columns that hold a value of their own."""


class SqlRows(PublishedRows):
    """Rows of one state, read once: every form of them has the same."""

    def __init__(
        self, database: Database, name: SqlName, place: str, version: str = "", query: Query | None = None
    ) -> None:
        """``query``: of the rows of an older state; None: the newest."""
        super().__init__(place, version)
        self._database, self._name, self._query = database, name, query

    def to_arrow(self) -> pa.Table:
        """Read all rows."""
        return self._rows

    @cached_property
    def _rows(self) -> pa.Table:
        with self._database.at_one_moment() as connection:
            table = TableTransaction(connection, self._name, ())
            existing = table.columns() if self._query is None else table.kept_columns()
            columns = [column for column in existing if column.name != CHECKPOINT]
            names = tuple(column.name for column in columns)
            rows = table.table() if self._query is None else f"({self._query(connection)}) AS {RESERVED}shown"
            found = table.execute(f"SELECT {table.list_of(names)} FROM {rows}").all()
            is_sqlite = table.dialect.name == "sqlite"
        values = list(zip(*found, strict=True)) or [() for _ in columns]
        arrays = [_array(column, of, is_sqlite=is_sqlite) for column, of in zip(columns, values, strict=True)]
        return pa.Table.from_arrays(arrays, names=list(names))


class NoRows(PublishedRows):
    """No rows, of a table that is not there yet."""

    def to_arrow(self) -> pa.Table:
        """Return none, and no columns."""
        return pa.schema([]).empty_table()


def _array(column: Existing, values: Sequence[Any], *, is_sqlite: bool) -> pa.Array:
    """Return a column's values; of a type of Arrow's own choice where the declared one has no counterpart."""
    wanted = arrow_type(column.type, is_sqlite=is_sqlite)
    plain = [
        float(value) if isinstance(value, int) and pa.types.is_floating(wanted) else value for value in values
    ]
    try:
        if is_sqlite and pa.types.is_boolean(wanted):
            return pa.array([None if value is None else bool(value) for value in plain], wanted)
        if is_sqlite and pa.types.is_temporal(wanted):
            return pa.array(plain, pa.string()).cast(wanted)
        return pa.array(plain, None if pa.types.is_null(wanted) else wanted)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return pa.array(plain)
