"""Values and names in messages are shown as they are, or refused before their checkpoint."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dagster_ckpt.core.ids import BatchId, CheckpointId
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.kafka.sink import KafkaSink
from dagster_ckpt.ext.kafka.topics import KafkaTopic
from dagster_ckpt.spark.sink.phases import Judge
from dagster_ckpt.spark.sink.port import Sink, SinkContext
from dagster_ckpt.testing import ValueContract
from dagster_ckpt.testing.sinks.base import FIRST
from dagster_ckpt.testing.sinks.run import context_in
from dagster_ckpt.testing.sinks.values import BEYOND_YEARS, NO_UTF8, RARE_TYPES
from tests.contract.test_kafka_sink import committed
from tests.progress import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TestKafkaValues(ValueContract):
    can_upsert = False
    refuses = NO_UTF8 | BEYOND_YEARS | RARE_TYPES

    @pytest.fixture(autouse=True)
    def _broker(self, kafka_servers: str) -> None:
        self._servers = kafka_servers

    def open(self, context: SinkContext) -> Sink:
        return KafkaSink(KafkaTopic(self._servers, f"values-{abs(hash(context.table_dir))}"), context)

    def shown_values(self, sink: Sink) -> dict[str, Any]:
        topic = sink.place.rpartition("/")[2]
        # A broker answers a commit before it has written its mark into every partition.
        ((_, value),) = wait_until(lambda: committed(self._servers, topic), "the message is shown")
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


class Compacted(NamedTuple):
    """A case of rows for a topic that is compacted, and takes messages of 4,096 bytes."""

    rows: str
    key: tuple[str, ...] = ()
    said: str = ""


LONG = "array_join(transform(sequence(1, 300), x -> cast(rand() * 100000 AS string)), ',')"
COMPACTED = {
    "keys": Compacted("SELECT 'a' AS key, 'b' AS value"),
    "json by key": Compacted("SELECT 1 AS k, 'b' AS v", ("k",)),
    "a tombstone": Compacted("SELECT 'a' AS key, CAST(NULL AS STRING) AS value"),
    "no key": Compacted("SELECT 1 AS k, 'b' AS v", said="takes no message without a key"),
    "no column key": Compacted("SELECT 'b' AS value", said="takes no message without a key"),
    "a key that is null": Compacted(
        "SELECT CAST(NULL AS STRING) AS key, 'b' AS value",
        said="column 'key' has no value in 1 of the 1 rows",
    ),
    "a long value": Compacted(f"SELECT 'a' AS key, {LONG} AS value", said="more than the 3840 bytes"),
    "a long column": Compacted(f"SELECT 1 AS k, 2.5D AS d, {LONG} AS v", ("k",), "more than the 3840 bytes"),
    "a long list": Compacted(f"SELECT 1 AS k, split({LONG}, ',') AS v", ("k",), "more than the 3840 bytes"),
    "a text of quotes": Compacted(
        "SELECT 1 AS k, repeat('\"', 2000) AS v", ("k",), "more than the 3840 bytes"
    ),
    "a text of letters": Compacted("SELECT 1 AS k, repeat('a', 2000) AS v", ("k",)),
}


@pytest.mark.parametrize("case", COMPACTED)
def test_messages_that_a_topic_refuses_are_refused_before_their_checkpoint(
    kafka_servers: str, spark: SparkSession, tmp_path: Path, case: str
) -> None:
    """The broker refused them at each publish, when they belonged to a checkpoint already."""
    rows, key, said = COMPACTED[case]
    context = context_in(tmp_path, FIRST, key=key)
    sink = KafkaSink(KafkaTopic(kafka_servers, name := f"compacted-{abs(hash(tmp_path))}"), context)
    settings = {"cleanup.policy": "compact", "max.message.bytes": "4096"}
    admin = AdminClient({"bootstrap.servers": kafka_servers})
    admin.create_topics([NewTopic(name, config=settings)])[name].result(60)
    sink.take_over()
    frame = spark.sql(rows)
    with pytest.raises(InvalidRequest, match=said) if said else nullcontext():
        sink.check(frame)
        batch = Judge.of(sink, frame).carry_out(sink.prepare, frame, BatchId(0))
    if said:
        return
    sink.publish(
        [batch], CommitPermit(context.pipeline, FIRST.epoch, CheckpointId(1), object(), lineage=FIRST.lineage)
    )
    assert len(committed(kafka_servers, name)) == 1
