"""A row as a message: its columns ``key`` and ``value`` where it has them, as Spark's own sink, else JSON."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

VALUE = "value"
KEY = "key"


def refuse_unfit(schema: StructType, key: Sequence[str], place: str) -> None:
    """Raise InvalidRequest for rows with a column ``value`` that are not messages."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if VALUE not in types:
        return
    wrong = [f"{n} {t}" for n, t in types.items() if n not in (KEY, VALUE) or t not in ("string", "binary")]
    if wrong or key:
        raise InvalidRequest(
            f"rows for {place} have a column 'value', so it and 'key' are the message, as text or binary, and nothing "
            f"else is ({wrong or 'key=' + str(list(key))}): rename it to have every column written as JSON"
        )


def message(row: dict[str, Any], key: Sequence[str]) -> tuple[bytes | None, bytes | None]:
    """Return key and value of a row."""
    if VALUE in row:
        return _encoded(row.get(KEY)), _encoded(row[VALUE])
    return _json({column: row[column] for column in key}) if key else None, _json(row)


def _encoded(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(_plain(value), separators=(",", ":"), ensure_ascii=False).encode()


def _plain(value: Any) -> Any:
    """Return a value in JSON's types: decimals, times and what is no number as text, binary in Base64."""
    match value:
        case dict():
            return {str(name): _plain(part) for name, part in value.items()}
        case list() | tuple():
            return [_plain(part) for part in value]
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | str() | float():
            return value
        case _:
            return _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, dt.date) else str(value)
