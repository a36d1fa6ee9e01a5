"""Types that a drawn pipeline's key and value have, the values that are drawn of them, and how they are compared."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

from tests.attack.outsides import Kind

Row = tuple[Any, ...]
COLUMNS = ("n", "k", "v", "at", "x")
_UTC = dt.UTC
BEGAN = dt.datetime(2024, 3, 10, tzinfo=_UTC)
"""Event time of the first rows; a clock changes in some zones on that night."""
_DATES = [dt.date(1900, 1, 1), dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(9999, 12, 31), None]
_TIMES = [
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=_UTC),
    dt.datetime(2024, 3, 10, 2, 30, tzinfo=_UTC),
    dt.datetime(2038, 1, 19, 3, 14, 8, 1, tzinfo=_UTC),
]
_TEXTS = [
    "",
    " ",
    "a",
    "A",
    "é",
    "😀",
    "a'b",
    'a"b',
    "null",
    "NULL",
    "None",
    "a\\b",
    "a\nb",
    "a,b",
    "=1",
    "%41",
    None,
]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "string": (pa.string(), _TEXTS),
    "bigint": (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63), None]),
    "date": (pa.date32(), _DATES),
    "timestamp": (pa.timestamp("us", tz="UTC"), [*_TIMES, None]),
    "timestamp_ntz": (pa.timestamp("us"), [*(one.replace(tzinfo=None) for one in _TIMES), None]),
    "decimal(10,2)": (
        pa.decimal128(10, 2),
        [Decimal("0.00"), Decimal("-0.01"), Decimal("99999999.99"), None],
    ),
    "decimal(38,18)": (
        pa.decimal128(38, 18),
        [Decimal("0.000000000000000001"), Decimal("-12345678901234567890"), None],
    ),
    "double": (pa.float64(), [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 0.1, 1e308, None]),
    "float": (pa.float32(), [0.0, math.nan, math.inf, 0.5, None]),
    "boolean": (pa.bool_(), [True, False, None]),
    "binary": (pa.binary(), [b"", b"\x00", b"\xff\xfe", b"a", None]),
    "int": (pa.int32(), [0, 2**31 - 1, -(2**31), None]),
    "tinyint": (pa.int8(), [0, 127, -128, None]),
    "array<int>": (pa.list_(pa.int32()), [[], [1, None], [2, 1], None]),
    "struct<a:int,b:string>": (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        [{"a": 1, "b": "é"}, {"a": None, "b": None}, None],
    ),
    "map<string,int>": (pa.map_(pa.string(), pa.int32()), [[], [("a", 1), ("b", None)], None]),
}
KEY_TYPES = ("string", "bigint", "date", "timestamp", "decimal(10,2)", "double", "boolean", "binary", "int")
VALUE_TYPES = tuple(VALUES)
IN_FOLDERS = ("bigint", "date", "boolean", "int")
"""Types of a key that tables are partitioned by: every sink holds all of their values in names of folders."""
_NOT_IN_SQLITE = ("double", "float", "array<int>", "struct<a:int,b:string>", "map<string,int>")


def fits(type_name: str, kind: Kind) -> bool:
    """Tell whether a sink can hold every value of a type."""
    return kind is not Kind.SQL or type_name not in _NOT_IN_SQLITE


def schema(key_type: str, value_type: str) -> pa.Schema:
    """Return the schema of a source's files."""
    types = (pa.int64(), VALUES[key_type][0], pa.int64(), pa.timestamp("us", tz="UTC"), VALUES[value_type][0])
    return pa.schema(list(zip(COLUMNS, types, strict=True)))


def ddl(key_type: str, value_type: str) -> str:
    """Return the same as Spark reads it."""
    named = {"timestamp": "TIMESTAMP_LTZ"}  # whatever spark.sql.timestampType says
    key, value = (named.get(one, one) for one in (key_type, value_type))
    return f"n BIGINT, k {key}, v BIGINT, at TIMESTAMP_LTZ, x {value}"


def rows_of_feed(dice: Random, number: int, key_type: str, value_type: str, count: int) -> list[Row]:
    """Draw the rows of a file: ``number`` is of no other one, and its times are behind those of lower ones."""
    keys = VALUES[key_type][1]
    made = []
    for i in range(count):
        at = BEGAN + dt.timedelta(minutes=10 * (number // 10), seconds=dice.randrange(0, 540))
        key, value = dice.choice(keys), dice.choice(VALUES[value_type][1])
        made.append((number * 10 + i, key, dice.randint(-50, 50), at, value))
    return made


def plain(value: Any) -> Any:
    """Return a value so that equal ones are equal and have a hash, however a reader spells them."""
    match value:
        case float():
            value = "NaN" if math.isnan(value) else value + 0.0
        case dt.datetime() if value.tzinfo is not None:
            value = value.astimezone(_UTC).replace(tzinfo=None)
        case Decimal():
            value = value.normalize() + 0
        case Mapping():
            value = tuple(plain(one) for one in value.values())
        case list() | tuple():
            value = tuple(plain(one) for one in value)
        case bytearray() | memoryview():
            value = bytes(value)
        case _:
            pass
    return value


def from_sqlite(value: Any, type_name: str) -> Any:
    """Return a value as SQLite keeps it as the type it was."""
    if value is None:
        return None
    match type_name:
        case "date":
            return dt.date.fromisoformat(value)
        case "timestamp" | "timestamp_ntz":
            return dt.datetime.fromisoformat(value)
        case "boolean":
            return bool(value)
        case name if name.startswith("decimal"):
            return Decimal(str(value))
        case _:
            return value


def plain_row(row: Sequence[Any]) -> Row:
    """Return a row of plain values."""
    return tuple(plain(value) for value in row)
