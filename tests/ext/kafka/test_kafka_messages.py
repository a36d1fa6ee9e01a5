"""What becomes of a row in a topic."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from typing import Any

import pytest

from dagster_ckpt.authoring.targets import KafkaTopic
from dagster_ckpt.core.ids import CoordinatorEpoch
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.kafka.messages import message, refuse_unfit
from dagster_ckpt.ext.kafka.sink import KafkaSink
from dagster_ckpt.spark.channel.schema import parsed_schema
from dagster_ckpt.spark.sink.port import AttemptId
from dagster_ckpt.testing.sinks.run import context_in


def schema(**types: str) -> Any:
    fields = [{"name": name, "type": of, "nullable": True, "metadata": {}} for name, of in types.items()]
    return parsed_schema(json.dumps({"type": "struct", "fields": fields}))


def test_columns_key_and_value_are_the_message() -> None:
    assert message({"key": "k", "value": b"\x00"}, ()) == (b"k", b"\x00")
    assert message({"value": "ü"}, ()) == (None, "ü".encode())
    assert message({"key": "k", "value": None}, ()) == (b"k", None)  # a tombstone


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
