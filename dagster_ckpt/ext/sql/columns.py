"""Columns of a database for Spark's types: what is created, and which existing columns take the values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.sql.names import COLUMN_NAMES
from dagster_ckpt.spark.sink.accepts import (
    NO_NAN,
    NO_NUL,
    PLAIN,
    UTF8,
    YEARS,
    Accepts,
    ValueRule,
    most_bytes,
    no_null,
)

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_CREATED = {
    "boolean": "BOOLEAN",
    "tinyint": "SMALLINT",
    "smallint": "SMALLINT",
    "int": "INTEGER",
    "bigint": "BIGINT",
    "float": "REAL",
    "double": "DOUBLE PRECISION",
    "string": "TEXT",
    "binary": "BYTEA",
    "date": "DATE",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
    "timestamp_ntz": "TIMESTAMP WITHOUT TIME ZONE",
}
_INTEGERS = ("SMALLINT", "INTEGER", "BIGINT", "NUMERIC")
_WIDER = {
    "tinyint": _INTEGERS,
    "smallint": _INTEGERS,
    "int": _INTEGERS[1:],
    "bigint": _INTEGERS[2:],
    "float": ("REAL", "DOUBLE PRECISION"),
    "double": ("DOUBLE PRECISION",),
    "string": ("TEXT", "CHARACTER VARYING"),
}
"""Existing columns that hold every value of the type, beside the one that would be created."""
_ON_SQLITE = {
    "BYTEA": "BLOB",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMP",
    "TIMESTAMP WITHOUT TIME ZONE": "TIMESTAMP",
}
_DECIMAL = re.compile(r"(?:NUMERIC|DECIMAL)\((\d+), ?(\d+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Dialect of a database."""

    name: str
    created: Callable[[DataType], str]
    """Type of a new column."""
    takes: Callable[[DataType, str], bool]
    """Whether a column of this type holds every value."""
    values: tuple[ValueRule, ...]
    """Values that it has no form for."""
    most_key_bytes: int | None = None
    """Text and bytes that a key can have; None: any."""
    folds_case: bool = False
    """Columns whose names differ in case only are one."""
    most_columns: int
    """Columns of a table, without a few of ours."""
    key_text: Callable[[DataType], str] = lambda of: ""
    """Form of the texts that values are compared by, as a pattern; empty: they are compared by themselves."""

    def accepts(self, key: Sequence[str] = (), needed: Sequence[str] = ()) -> Accepts:
        """Return the values that a table with this key can hold, whose columns ``needed`` have a value in every row."""
        long = (
            ()
            if self.most_key_bytes is None
            else (most_bytes(key, self.most_key_bytes, "a key in an index"),)
        )
        return Accepts(
            types=PLAIN,
            names=COLUMN_NAMES[self.name],
            folds_case=self.folds_case,
            values=self.values,
            columns=(*no_null(needed), *long),
        )


def column_types(dialect: Dialect, place: str, schema: StructType) -> dict[str, str]:
    """Return the columns that rows need. Raises InvalidRequest, naming the column that no column here can hold."""
    if len(schema.names) > dialect.most_columns:
        raise InvalidRequest(
            f"the rows have {len(schema.names):,} columns, and {place} has room for {dialect.most_columns:,}: write "
            "some of them as one text, to_json(struct(...)), in the sink's function"
        )
    dialect.accepts().refuse_columns(place, schema.json())
    return {field.name: dialect.created(field.dataType) for field in schema.fields}


def _created_on_postgres(of: DataType) -> str:
    name = of.simpleString()
    if name.startswith("decimal("):
        return f"NUMERIC({_digits(of)[0]}, {_digits(of)[1]})"
    return _CREATED[_plain(name)]


def _taken_on_postgres(of: DataType, existing: str) -> bool:
    name = _plain(of.simpleString())
    if name.startswith("decimal("):
        precision, scale = _digits(of)
        found = _DECIMAL.fullmatch(existing)
        if found is None:
            return existing == "NUMERIC"
        return int(found[2]) >= scale and int(found[1]) - int(found[2]) >= precision - scale
    return existing == _CREATED.get(name) or existing in _WIDER.get(name, ())


def _created_on_sqlite(of: DataType) -> str:
    if of.simpleString().startswith("decimal("):
        return "TEXT"  # a number would be stored as floating point
    created = _created_on_postgres(of)
    return _ON_SQLITE.get(created, created)


def _taken_on_sqlite(of: DataType, existing: str) -> bool:
    """SQLite's types are affinities: a declared type decides only how a value is stored."""
    name = _plain(of.simpleString())
    affinity, is_time = _affinity(existing), existing.split("(", maxsplit=1)[0] in _TIMES
    if name in ("string", "binary") or name.startswith("decimal("):
        return affinity == ("blob" if name == "binary" else "text")
    if name in ("float", "double"):
        return affinity == "real"
    if name in ("date", "timestamp", "timestamp_ntz"):
        return affinity == "text" or is_time
    return affinity in ("integer", "numeric") and not is_time


def _key_text_on_sqlite(of: DataType) -> str:
    name = of.simpleString()
    if name.startswith("decimal("):
        scale = _digits(of)[1]
        return rf"-?\d+\.\d{{{scale}}}" if scale else r"-?\d+"
    return {"date": r"[^ ]+", "timestamp": r"[^ ]+ [^ ]+", "timestamp_ntz": r"[^ ]+ [^ ]+"}.get(name, "")


_TIMES = ("DATE", "DATETIME", "TIMESTAMP")
_AFFINITIES = (
    ("integer", ("INT",)),
    ("text", ("CHAR", "CLOB", "TEXT")),
    ("blob", ("BLOB",)),
    ("real", ("REAL", "FLOA", "DOUBLE")),
)


def _affinity(declared: str) -> str:
    """Return how SQLite stores values of a declared type, by its own rules."""
    if not declared:
        return "blob"
    return next((name for name, parts in _AFFINITIES if any(part in declared for part in parts)), "numeric")


def arrow_type(declared: str, *, is_sqlite: bool) -> Any:
    """Return Arrow's type for the values of an existing column; its null type: whatever they turn out to be."""
    import pyarrow as pa

    found = _DECIMAL.fullmatch(declared)
    if found is not None:
        return pa.decimal128(int(found[1]), int(found[2])) if int(found[1]) <= 38 else pa.null()
    kind = declared.split("(", maxsplit=1)[0].strip()
    real = pa.float64() if is_sqlite else pa.float32()  # SQLite's REAL has eight bytes
    types = {
        "BOOLEAN": pa.bool_(),
        "SMALLINT": pa.int16(),
        "INTEGER": pa.int64() if is_sqlite else pa.int32(),
        "BIGINT": pa.int64(),
        "REAL": real,
        "DOUBLE PRECISION": pa.float64(),
        "FLOAT": pa.float64(),
        "TEXT": pa.string(),
        "VARCHAR": pa.string(),
        "CHARACTER VARYING": pa.string(),
        "INT": pa.int64(),
        "BYTEA": pa.binary(),
        "BLOB": pa.binary(),
        "DATE": pa.date32(),
        "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", "UTC"),
        "TIMESTAMP WITHOUT TIME ZONE": pa.timestamp("us"),
        "TIMESTAMP": pa.timestamp("us"),
    }
    return types.get(kind, pa.null())


def _plain(name: str) -> str:
    return "string" if name.startswith(("string", "varchar", "char")) else name


def _digits(of: Any) -> tuple[int, int]:
    return of.precision, of.scale


DIALECTS = {
    "postgresql": Dialect(
        name="postgresql",
        created=_created_on_postgres,
        takes=_taken_on_postgres,
        values=(UTF8, NO_NUL, *YEARS),
        most_key_bytes=2600,
        most_columns=1_590,
    ),
    "sqlite": Dialect(
        name="sqlite",
        created=_created_on_sqlite,
        takes=_taken_on_sqlite,
        values=(UTF8, NO_NAN, *YEARS),
        folds_case=True,
        most_columns=1_990,
        key_text=_key_text_on_sqlite,
    ),
}
