"""The user's table: created from the rows' schema, widened by new columns, refused where it does not fit."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, inspect

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.sql.catalog import (
    WAY_OUT,
    Existing,
    Trigger,
    columns_of,
    kind_of,
    triggers_of,
    unique_keys,
    why_not_as_written,
)
from dagster_ckpt.ext.sql.columns import DIALECTS, column_types
from dagster_ckpt.ext.sql.names import RESERVED, SqlName

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

CHECKPOINT = f"{RESERVED}checkpoint"
"""Column of appended rows whose before-images are kept: the checkpoint that published them."""
_ROWS = f"{RESERVED}wanted_rows"
_WANTED = SqlName(schema="", name=f"{RESERVED}wanted")
"""Temporary table: what the table has to show after a roll-back, where triggers may make something else of it."""


class TableTransaction:
    """One table, worked on in one transaction."""

    def __init__(self, connection: Connection, name: SqlName, key: tuple[str, ...]) -> None:
        self.connection = connection
        self.name = name
        self.key = key
        self.dialect = DIALECTS[connection.dialect.name]

    # --- names ----------------------------------------------------------------------------------------------

    def quoted(self, identifier: str) -> str:
        """Return an identifier as SQL has it, for a statement that is executed without parameters."""
        if (
            self.dialect.name == "sqlite"
        ):  # which takes a column in double quotes that is not there for a text
            return "`" + identifier.replace("`", "``") + "`"
        return self.connection.dialect.identifier_preparer.quote_identifier(identifier)

    def table(self, name: SqlName | None = None) -> str:
        """Return a table's quoted name; default: this table's."""
        name = name or self.name
        return ".".join(self.quoted(part) for part in (name.schema, name.name) if part)

    def list_of(self, columns: tuple[str, ...] | list[str], prefix: str = "") -> str:
        """Return quoted columns, comma-separated."""
        return ", ".join(prefix + self.quoted(column) for column in columns)

    def execute(self, statement: str) -> Any:
        """Carry out a statement without parameters."""
        return self.connection.exec_driver_sql(statement)

    def value(self, query: str) -> Any:
        """Return the first value that a query finds, or None."""
        return self.connection.exec_driver_sql(query).scalar()

    def found(self, query: str) -> list[Any]:
        """Return the rows that a query finds."""
        return list(self.connection.exec_driver_sql(query).all())

    # --- what is there --------------------------------------------------------------------------------------

    def exists(self, name: SqlName | None = None) -> bool:
        """Tell whether the table is there."""
        name = name or self.name
        return inspect(self.connection).has_table(name.name, schema=name.schema or None)

    def has_rows(self) -> bool:
        """Tell whether the table is there and has any row."""
        return self.exists() and self.value(f"SELECT 1 FROM {self.table()} LIMIT 1") is not None

    def count(self) -> int:
        """Return how many rows the table has."""
        return int(self.value(f"SELECT count(*) FROM {self.table()}"))

    def columns(self, name: SqlName | None = None) -> list[Existing]:
        """Return the table's columns."""
        return columns_of(self.connection, name or self.name)

    def kept_columns(self) -> list[Existing]:
        """Return the columns that hold a value of their own, and not one that the database computes."""
        return [column for column in self.columns() if not column.is_computed]

    @property
    def even_identities(self) -> str:
        """Words before ``SELECT`` of an INSERT: what PostgreSQL numbers by itself takes a number that is given."""
        return "OVERRIDING SYSTEM VALUE " if self.dialect.name == "postgresql" else ""

    @cached_property
    def triggers(self) -> list[Trigger]:
        """The table's triggers, as the transaction finds them first."""
        return triggers_of(self.connection, self.name) if self.exists() else []

    def comparable(self, name: str) -> str:
        """Return a column as values are compared: as text in PostgreSQL, of which some types have no equality."""
        column = self.quoted(name)
        return f"CAST({column} AS TEXT) AS {column}" if self.dialect.name == "postgresql" else column

    def refuse_missing(self, wanted: str, columns: Iterable[str]) -> None:
        """Raise InvalidRequest where the table lacks a row that this query finds, which was written to it."""
        listed = ", ".join(map(self.comparable, columns))
        if self.found(
            f"SELECT {listed} FROM ({wanted}) AS {_ROWS} EXCEPT SELECT {listed} FROM {self.table()} LIMIT 1"
        ):
            self.refuse_as_written()

    def copied(self, query: str, name: SqlName = _WANTED) -> str:
        """Return a temporary table with the rows that a query finds, in place of one that a step has made before."""
        copy, is_postgres = self.table(name), self.dialect.name == "postgresql"
        self.execute(f"DROP TABLE IF EXISTS {'pg_temp' if is_postgres else 'temp'}.{copy}")
        self.execute(f"CREATE TEMPORARY TABLE {copy}{' ON COMMIT DROP' if is_postgres else ''} AS {query}")
        return copy

    def refuse_other_than(self, wanted: str, columns: Collection[str]) -> None:
        """Raise InvalidRequest where the table has not exactly the rows of this one, by these columns."""
        self.refuse_missing(f"SELECT * FROM {wanted}", columns)
        if self.count() != self.value(f"SELECT count(*) FROM {wanted}"):
            self.refuse_as_written()

    def refuse_as_written(self) -> None:
        """Raise InvalidRequest: the table has not the rows that were written to it."""
        by = (
            f"trigger {' or '.join(repr(one.name) for one in self.triggers)}"
            if self.triggers
            else "a constraint"
        )
        raise InvalidRequest(
            f"{by} of table {self.name} has dropped or changed rows that were written to it, nothing was changed: "
            f"{WAY_OUT}"
        )

    # --- compared and changed -------------------------------------------------------------------------------

    def refuse_unfit(
        self, schema: StructType, place: str, had: Collection[str] = frozenset()
    ) -> dict[str, str]:
        """Return the columns that are missing for these rows, with their types; ``had``: columns of earlier rows.

        Raises InvalidRequest, naming the column and the change, where the table cannot take the rows.
        """
        wanted = column_types(self.dialect, place, schema)
        if not self.exists():
            return wanted
        if why := self.why_not_written(place, schema.names):
            raise InvalidRequest(why)
        existing = {column.name: column for column in self.columns()}
        called = {name.lower(): name for name in existing}
        for field in schema.fields:
            there = existing.get(field.name)
            if there is None and field.name in had:
                raise InvalidRequest(
                    f"column {field.name!r}, which earlier rows of the sink have, is gone from {place}: it was "
                    "renamed or dropped, and would be made again without their values. Give it its name again, add it "
                    "(ALTER TABLE ... ADD COLUMN), or name another table"
                )
            if there is None and field.name.lower() in called:
                raise InvalidRequest(
                    f"column {field.name!r} is called {called[field.name.lower()]!r} in {place}, and the values of one "
                    "column would be in two: keep its name, or name another table"
                )
            if there is not None and there.is_computed:
                raise InvalidRequest(
                    f"column {field.name!r} of {place} is computed by the database, which takes no value for it: leave "
                    "it out of the rows, or rename it in the sink's function"
                )
            if there is not None and not self.dialect.takes(field.dataType, there.type):
                raise InvalidRequest(
                    f"column {field.name!r} of {place} is {there.type} and the rows have "
                    f"{field.dataType.simpleString()} ({wanted[field.name]}): change the column, cast in the sink's "
                    "function, or name another table"
                )
        unfilled = [c.name for c in existing.values() if c.must_be_given and c.name not in wanted]
        if unfilled:
            raise InvalidRequest(
                f"columns {unfilled} of {place} are NOT NULL without a default, and the rows do not have them: add "
                "them to the rows, or give them a default"
            )
        self._refuse_without_unique_key(place)
        self._refuse_other_texts_of_keys(schema, existing, place)
        return {name: of for name, of in wanted.items() if name not in existing}

    def fit(
        self, schema: StructType, place: str, had: Collection[str] = frozenset(), *, with_checkpoints: bool
    ) -> None:
        """Create the table, or add the columns it does not have."""
        missing = self.refuse_unfit(schema, place, had)
        if not self.exists():
            self.create(missing)
        else:
            self.add_columns(self.name, missing)
        if with_checkpoints and CHECKPOINT not in [column.name for column in self.columns()]:
            self.add_columns(self.name, {CHECKPOINT: "BIGINT"})

    def create(self, columns: dict[str, str]) -> None:
        """Make the table, with its key."""
        parts = [
            f"{self.quoted(name)} {of}{' NOT NULL' if name in self.key else ''}"
            for name, of in columns.items()
        ]
        if self.key:
            parts.append(f"PRIMARY KEY ({self.list_of(self.key)})")
        self.execute(f"CREATE TABLE {self.table()} ({', '.join(parts)})")

    def add_columns(self, name: SqlName, columns: dict[str, str]) -> None:
        """Add columns to the table, or to one of its side tables."""
        for column, of in columns.items():
            self.execute(f"ALTER TABLE {self.table(name)} ADD COLUMN {self.quoted(column)} {of}")

    def needed_in_every_row(self) -> tuple[str, ...]:
        """Return the columns that every row needs a value in."""
        if not self.exists():
            return self.key
        must = [column.name for column in self.columns() if column.must_be_given]
        return tuple(dict.fromkeys([*self.key, *must]))

    def _refuse_other_texts_of_keys(self, schema: StructType, existing: Collection[str], place: str) -> None:
        """Raise InvalidRequest where a key would be another text than the same key is in the table's rows (SQLite)."""
        for field in schema.fields:
            form = self.dialect.key_text(field.dataType) if field.name in self.key else ""
            if not form or field.name not in existing:
                continue
            found = self.value(f"SELECT {self.quoted(field.name)} FROM {self.table()} LIMIT 1")
            if isinstance(found, str) and not re.fullmatch(form, found):
                raise InvalidRequest(
                    f"the key column {field.name!r} of {place} is kept as text, {found!r} in its rows, and as "
                    f"{field.dataType.simpleString()} it would be another one: a key would be there twice. Cast it to "
                    "the type it had, or name another table"
                )

    def why_not_written(self, place: str, columns: Collection[str]) -> str:
        """Return why rows with these columns would not be there as they are written; empty: nothing is known to."""
        if not self.exists():
            return ""
        kind = kind_of(self.connection, self.name)
        if kind != "table":
            shows = "name the one that it shows, SqlTable(url, name)"
            return f"{place} is a {kind}, and rows are written to a table: {shows}"
        why = why_not_as_written(self.connection, self.name, columns)
        return why and f"{place} {why}"

    def _refuse_without_unique_key(self, place: str) -> None:
        if not self.key:
            return
        if frozenset(self.key) not in unique_keys(self.connection, self.name):
            raise InvalidRequest(
                f"{place} has no unique constraint on its key {list(self.key)} that holds for every row at once and "
                "compares texts by their characters (one that is partial, deferrable, of a table that others INHERIT, "
                "or takes no notice of case does not): CREATE UNIQUE INDEX "
                f"{self.quoted(self.name.generated('_key'))} ON {self.table()} "
                f"({self.list_of(self.key)})"
            )
