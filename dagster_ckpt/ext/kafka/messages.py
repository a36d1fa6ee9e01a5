"""A row as a message: its columns ``key`` and ``value`` where it has them, as Spark's own sink, else JSON."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.quoting import quoted
from dagster_ckpt.spark.sink.accepts import RowRule

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

VALUE = "value"
KEY = "key"
_SHORT_BYTES = 64
"""Bytes that a value which is neither text nor nested has at most, as JSON."""
_SPELLING = 16
"""Bytes by which such a value may be longer here than in Spark's JSON."""


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


def most_bytes(limit: int, key: Sequence[str]) -> Callable[[Mapping[str, Any]], RowRule]:
    """Return the rule of rows that make a message of more bytes than its topic takes."""

    def rule(types: Mapping[str, Any]) -> RowRule:
        if VALUE in types:
            size = " + ".join(
                f"coalesce(octet_length({quoted(one)}), 0)" for one in (KEY, VALUE) if one in types
            )
            return _longer_than(limit, f"{size} > {limit}", quoted(VALUE))
        message, keys = (_json_of(names) for names in (types, key))
        size = " + ".join(f"octet_length({one})" for one in (message, keys) if one)
        texts = [_length_of(name, of) for name, of in types.items() if not _is_short(of)]
        # An upper bound comes first, which costs nearly nothing: a byte of text becomes at most six in JSON.
        rest = sum(6 * len(name.encode()) + _SHORT_BYTES for name in types)
        bound = f"12 * ({' + '.join(texts) or 0}) > {limit - rest}"
        return _longer_than(limit, f"{bound} AND {size} > {limit - _SPELLING * len(types)}", message)

    return rule


def _json_of(names: Iterable[str]) -> str:
    listed = ", ".join(map(quoted, names))
    return f"to_json(struct({listed}), map('ignoreNullFields', 'false'))" if listed else ""


def _is_short(of: Any) -> bool:
    return isinstance(of, str) and of not in ("string", "binary")


def _length_of(name: str, of: Any) -> str:
    return f"coalesce(octet_length({quoted(name) if isinstance(of, str) else _json_of([name])}), 0)"


def _longer_than(limit: int, broken: str, example: str) -> RowRule:
    return RowRule(
        column="a message",
        broken=broken,
        example=example,
        what=f"more than the {limit} bytes that topic and producer take",
        way_out=(
            "cut it, or raise max.message.bytes of the topic and, over 1,000,000, message.max.bytes in the target's "
            "options"
        ),
    )


def messages(batch: pa.RecordBatch, key: Sequence[str]) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield key and value of each row."""
    if VALUE in batch.schema.names:
        for row in batch.to_pylist():
            yield _encoded(row.get(KEY)), _encoded(row[VALUE])
        return
    spelled = {field.name: _spelled(field.type) for field in batch.schema}
    for row in batch.to_pylist():
        plain = {name: spell(row[name]) for name, spell in spelled.items()}
        yield _json({column: plain[column] for column in key}) if key else None, _json(plain)


def _encoded(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _spelled(of: pa.DataType) -> Callable[[Any], Any]:
    """Return the function that makes JSON of values of a type: a map becomes an object, and so does a struct."""
    if isinstance(of, pa.MapType):
        return _optional(_object_of(_spelled(of.key_type), _spelled(of.item_type)))
    if isinstance(of, pa.ListType):
        return _optional(_list_of(_spelled(of.value_type)))
    if isinstance(of, pa.StructType):
        return _optional(_struct_of({field.name: _spelled(field.type) for field in of}))
    return _plain


def _optional(spell: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else spell(value)


def _list_of(spell: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: [spell(value) for value in values]


def _struct_of(parts: Mapping[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    return lambda value: {name: spell(value[name]) for name, spell in parts.items()}


def _object_of(spell_key: Callable[[Any], Any], spell: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda pairs: {_name(spell_key(key)): spell(value) for key, value in pairs}


def _name(key: Any) -> str:
    """Return a key of a map as JSON has keys: its own text, or the text that it is as a value."""
    return key if isinstance(key, str) else _json(key).decode()


def _plain(value: Any) -> Any:
    """Return a value in JSON's types: decimals, times and what is no number as text, binary in Base64."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | str() | float():
            return value
        case bytes():
            return base64.b64encode(value).decode()
        case dt.date():
            return value.isoformat()
        case _:
            return str(value)
