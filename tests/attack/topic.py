"""A topic in a folder, where a broker would be too slow: the sink is the real one, its broker is played.

Each transaction is a file, messages and position in one, which is there whole or not at all. ``epoch`` is the producer
that may write, as a broker keeps it for a transactional id; ``id`` is another one in a topic that was made again.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from dagster_ckpt.errors import Fenced
from dagster_ckpt.ext.kafka.broker import Broker, Message, TopicSettings
from dagster_ckpt.ext.kafka.sink import KafkaSink
from dagster_ckpt.ext.kafka.topics import KafkaTopic
from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.spark.sink.port import SinkContext, SinkPosition


class PlayedTopic(KafkaTopic):
    """A topic whose bootstrap server is a folder."""

    opened_by: ClassVar[str] = "tests.attack.topic:PlayedKafkaSink"


class FolderBroker(Broker):
    """The half of a broker that answers for one topic."""

    @property
    def _folder(self) -> Path:
        return Path(self._client["bootstrap.servers"]) / self.topic

    def create_topics(self) -> None:
        """Make the topic, with an id of its own."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if not (self._folder / "id").exists():
            replace_whole(self._folder / "id", uuid.uuid4().hex.encode())

    def topic_settings(self) -> TopicSettings:
        """Return those of a topic that nobody has set up."""
        return TopicSettings(most_bytes=1_000_000, needs_key=False)

    def begin(self) -> Any:
        """Return a producer that fences all earlier ones."""
        number = self._epoch() + 1
        replace_whole(self._folder / "epoch", str(number).encode())
        return number

    def write(self, producer: Any, messages: Iterable[Message], position: SinkPosition) -> None:
        """Append one transaction."""
        if producer != self._epoch():
            raise Fenced(f"another process publishes to {self.place} as pipeline {self._pipeline!r}")
        sent = [[None if part is None else part.decode() for part in message] for message in messages]
        record = {**asdict(position), "sink": self._uid, "topic_id": self._topic_id()}
        entry = {"pipeline": self._pipeline, "messages": sent, "position": record}
        path = self._folder / f"{len(_transactions(self._folder)):06d}.json"
        replace_whole(path, json.dumps(entry).encode())

    def _records(self, *, is_fenced: bool) -> list[tuple[str, dict[str, Any]]]:
        return [(one["pipeline"], one["position"]) for one in _transactions(self._folder)]

    def _topic_id(self) -> str:
        path = self._folder / "id"
        return path.read_text() if path.exists() else ""

    def _epoch(self) -> int:
        path = self._folder / "epoch"
        return int(path.read_text()) if path.exists() else 0


class PlayedKafkaSink(KafkaSink):
    """The sink of a topic, at a played broker."""

    def __init__(self, target: PlayedTopic, context: SinkContext) -> None:
        super().__init__(target, context)
        topic = target.topic or context.name
        self.broker = FolderBroker(
            target.bootstrap_servers, target.options, topic, pipeline=context.pipeline, uid=context.uid
        )


def read_topic(folder: Path, *, newest: bool) -> list[tuple[int, int]]:
    """Return what a consumer of committed messages finds; ``newest``: of each key, as a compacted topic keeps it."""
    sent = [message for one in _transactions(folder) for message in one["messages"]]
    if newest:
        sent = [*{key: (key, value) for key, value in sent}.values()]
    rows = [json.loads(value) for _, value in sent]
    return [(row["k"], row["v"]) for row in rows]


def _transactions(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]*.json"))]
