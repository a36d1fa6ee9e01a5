"""What becomes of a row in a topic."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from typing import Any

import pyarrow as pa
import pytest

from dagster_ckpt.core.ids import CoordinatorEpoch
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.kafka.sink import KafkaSink, messages, refuse_unfit
from dagster_ckpt.ext.kafka.topics import KafkaTopic
from dagster_ckpt.spark.channel.schema import parsed_schema
from dagster_ckpt.spark.sink.port import AttemptId
from dagster_ckpt.testing.sinks.run import context_in


def schema(**types: str) -> Any:
    fields = [{"name": name, "type": of, "nullable": True, "metadata": {}} for name, of in types.items()]
    return parsed_schema(json.dumps({"type": "struct", "fields": fields}))


def message(row: dict[str, Any], key: list[str], types: dict[str, pa.DataType] | None = None) -> Any:
    """The message of one row; Arrow finds out the types that are not given."""
    given = types or {}
    arrays = [pa.array([value], given.get(name)) for name, value in row.items()]
    (found,) = messages(pa.RecordBatch.from_arrays(arrays, names=list(row)), key)
    return found


def test_columns_key_and_value_are_the_message() -> None:
    assert message({"key": "k", "value": b"\x00"}, []) == (b"k", b"\x00")
    assert message({"value": "ü"}, []) == (None, "ü".encode())
    assert message({"key": "k", "value": None}, []) == (b"k", None)  # a tombstone


def test_other_rows_are_json_with_the_sinks_key() -> None:
    row = {
        "id": 1,
        "price": decimal.Decimal("1.50"),
        "at": dt.datetime(2026, 11, 22, 1, 2, 3, tzinfo=dt.UTC),
        "raw": b"\xff",
        "share": float("nan"),
        "tags": ["a", None],
        "place": {"zip": 1.5},
    }
    key, value = message(row, ["id"])
    assert key == b'{"id":1}'
    assert json.loads(value or b"") == {
        "id": 1,
        "price": "1.50",
        "at": "2026-11-22T01:02:03+00:00",
        "raw": "/w==",
        "share": "nan",
        "tags": ["a", None],
        "place": {"zip": 1.5},
    }


def test_maps_are_objects_at_every_depth_with_the_text_of_their_keys() -> None:
    """They were arrays of pairs, which no consumer of `to_json` reads."""
    counts = pa.map_(pa.string(), pa.int64())
    keyed = {
        pa.int32(): (7, "7"),
        pa.bool_(): (True, "true"),
        pa.float64(): (1.5, "1.5"),
        pa.date32(): (dt.date(2026, 11, 22), "2026-11-22"),
        pa.binary(): (b"\xff", "/w=="),
        pa.decimal128(5, 2): (decimal.Decimal("1.50"), "1.50"),
        pa.list_(pa.int64()): ([1, None], "[1,null]"),
        pa.struct({"a": pa.string()}): ({"a": "ü"}, '{"a":"ü"}'),
    }
    values: dict[str, tuple[pa.DataType, Any, Any]] = {
        "m": (counts, [("a", 1), ("b", None)], {"a": 1, "b": None}),
        "empty": (counts, [], {}),
        "none": (counts, None, None),
        "struct": (pa.struct({"m": counts}), {"m": [("a", 1)]}, {"m": {"a": 1}}),
        "list": (pa.list_(counts), [[("a", 1)], None], [{"a": 1}, None]),
        "deep": (pa.map_(pa.string(), counts), [("x", [("a", 1)])], {"x": {"a": 1}}),
    }
    values |= {str(of): (pa.map_(of, pa.int64()), [(key, 1)], {text: 1}) for of, (key, text) in keyed.items()}
    row = {name: value for name, (_, value, _) in values.items()}
    key, value = message(row, ["m"], {name: of for name, (of, _, _) in values.items()})
    assert key == b'{"m":{"a":1,"b":null}}'
    assert json.loads(value) == {name: right for name, (_, _, right) in values.items()}


def test_rows_that_are_half_a_message_are_refused() -> None:
    refuse_unfit(schema(id="long", name="string"), ["id"], "kafka://b/t")
    refuse_unfit(schema(key="binary", value="string"), [], "kafka://b/t")
    for wrong, key in (
        (schema(value="long"), []),
        (schema(value="string", id="long"), []),
        (schema(value="string"), ["value"]),
    ):
        with pytest.raises(InvalidRequest, match="rename"):
            refuse_unfit(wrong, key, "kafka://b/t")


def test_settings_are_not_shown_and_may_be_named_by_a_variable(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = context_in(tmp_path, AttemptId("first", CoordinatorEpoch(1)))
    target = KafkaTopic("broker:9092", options={"sasl.password": "env:KAFKA_PASSWORD"})
    with pytest.raises(InvalidRequest, match="KAFKA_PASSWORD"):
        KafkaSink(target, context)
    monkeypatch.setenv("KAFKA_PASSWORD", "secret")
    assert KafkaSink(target, context).place == "kafka://broker:9092/orders"
    assert "sasl" not in repr(target)
