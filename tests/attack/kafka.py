"""Topics of a played pipeline at a real broker, as a consumer of committed messages finds them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dagster_ckpt.authoring.targets import SinkTarget
from dagster_ckpt.ext.kafka.topics import KafkaTopic
from tests.attack import deployment, outsides, played
from tests.attack.outsides import Kind, Row
from tests.contract.test_kafka_sink import committed
from tests.progress import wait_until


@dataclass
class Topics:
    """Topics of one test."""

    servers: str
    prefix: str
    spelled: str = field(init=False)
    """The broker's address as the pipeline has it now."""

    def __post_init__(self) -> None:
        self.spelled = self.servers
        self._admin = AdminClient({"bootstrap.servers": self.servers})

    def make(self, name: str, partitions: int = 1, **config: str) -> None:
        """Make a topic, as others do."""
        new = NewTopic(self.prefix + name, num_partitions=partitions, config=config)
        self._admin.create_topics([new])[new.topic].result(60)

    def delete(self, name: str) -> None:
        """Delete a topic, and wait until it is gone."""
        topic = self.prefix + name
        self._admin.delete_topics([topic])[topic].result(60)
        wait_until(lambda: not self._has(topic), "the topic is gone")

    def _has(self, topic: str) -> bool:
        return topic in self._admin.list_topics(timeout=300).topics

    # --- in place of the played ones -------------------------------------------------------------------------------

    def target_of(self, kind: Kind, table: str, folder: Path, *given: Any) -> SinkTarget:
        if kind is not Kind.KAFKA:
            return outsides.target_of(kind, table, folder, *given)
        return KafkaTopic(self.spelled, self.prefix + table)

    def rows_of(self, kind: Kind, place: Path) -> list[Row]:
        if kind is not Kind.KAFKA:
            return outsides.rows_of(kind, place)
        topic = self.prefix + place.name
        sent = committed(self.servers, topic) if self._has(topic) else []
        if place.name.startswith("newest"):  # as a compacted topic keeps them
            sent = [*{key: (key, value) for key, value in sent}.values()]
        return sorted((row["k"], row["v"]) for row in (json.loads(value) for _, value in sent))


@contextmanager
def at_broker(servers: str, prefix: str) -> Iterator[Topics]:
    """Let the topics of played pipelines be those of a broker."""
    topics = Topics(servers, prefix)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(played, "target_of", topics.target_of)
        patch.setattr(deployment, "rows_of", topics.rows_of)
        yield topics
