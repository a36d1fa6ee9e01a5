"""Values and names in messages are shown as they are, or refused before their checkpoint."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pytest

from dagster_ckpt.ext.kafka.sink import KafkaSink
from dagster_ckpt.ext.kafka.topics import KafkaTopic
from dagster_ckpt.spark.sink.port import Sink, SinkContext
from dagster_ckpt.testing import ValueContract
from dagster_ckpt.testing.sinks.values import BEYOND_YEARS, NO_UTF8, RARE_TYPES
from tests.contract.test_kafka_sink import committed


class TestKafkaValues(ValueContract):
    can_upsert = False
    refuses = NO_UTF8 | BEYOND_YEARS | RARE_TYPES

    @pytest.fixture(autouse=True)
    def _broker(self, kafka_servers: str) -> None:
        self._servers = kafka_servers

    def open(self, context: SinkContext) -> Sink:
        return KafkaSink(KafkaTopic(self._servers, f"values-{abs(hash(context.table_dir))}"), context)

    def shown_values(self, sink: Sink) -> dict[str, Any]:
        ((_, value),) = committed(self._servers, sink.place.rpartition("/")[2])
        row: dict[str, Any] = json.loads(value)
        return {name: [*part.items()] if part == {} else part for name, part in row.items()}

    def spelled(self, value: Any) -> Any:
        match value:
            case bytes():
                return base64.b64encode(value).decode()
            case dt.date():
                return value.isoformat()
            case [(_, _), *_]:
                return dict(value)
        is_text = isinstance(value, Decimal) or (isinstance(value, float) and not math.isfinite(value))
        return str(value) if is_text else value
