"""A topic of Kafka as a sink: exactly once for consumers that read committed messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from dagster_ckpt.errors import Fenced, InvalidRequest, NotFound, OutcomeUnknown
from dagster_ckpt.ext.kafka.broker import Broker, Message, TopicSettings
from dagster_ckpt.ext.kafka.messages import KEY, VALUE, messages, most_bytes, refuse_unfit
from dagster_ckpt.ext.kafka.topics import KafkaTopic
from dagster_ckpt.spark.sink.accepts import NESTED, PLAIN, UTF8, YEARS, Accepts, no_null
from dagster_ckpt.spark.sink.port import SinkContext, SinkCut, SinkDescription, SinkPosition
from dagster_ckpt.spark.sink.positions import refuse_fenced
from dagster_ckpt.spark.sink.staged_rows import StagedRows
from dagster_ckpt.spark.sink.staged_sink import StagedSink, StepTarget

if TYPE_CHECKING:
    from confluent_kafka import Producer
    from pyspark.sql import DataFrame


class KafkaSink(StagedSink):
    """One topic, written by one pipeline, whose transactional id is the sink's."""

    kind: ClassVar[str] = "kafka"

    def __init__(self, target: KafkaTopic, context: SinkContext) -> None:
        super().__init__(context)
        topic = target.topic or context.name
        self.broker = Broker(
            target.bootstrap_servers,
            target.options,
            topic,
            pipeline=context.pipeline,
            uid=context.uid,
            previous=context.previous_pipelines,
            shared_with=target.shared_with,
        )

    @property
    def place(self) -> str:
        """The cluster and the topic."""
        return self.broker.place

    def position(self) -> SinkPosition | None:
        """Read the newest record of the position topic."""
        return self.broker.position()

    @property
    def accepts(self) -> Accepts:
        """Values that JSON has, in messages that the topic takes; a compacted one keeps none without a key."""
        return accepted(self.broker.topic_settings(), self.context.key)

    def check(self, frame: DataFrame) -> None:
        """Refuse rows that are no messages, and output mode *complete*."""
        super().check(frame)
        if self.context.is_complete:
            raise InvalidRequest(
                f"{self.place} cannot take messages back, so output mode 'complete' has no meaning: use 'update'"
            )
        refuse_unfit(frame.schema, self.context.key, self.place)
        settings = self.broker.topic_settings()
        if settings.forgets_positions:
            raise InvalidRequest(
                f"{self.broker.positions}, which holds the position of {self.place}, deletes its records after a while "
                "(cleanup.policy): make it a compacted topic"
            )
        has_key = self.context.key or {KEY, VALUE} <= set(frame.columns)
        if not has_key and settings.needs_key:
            raise InvalidRequest(
                f"{self.place} is compacted, which takes no message without a key: name the sink's key, "
                "@spark_sink(key=[...]), or give the rows columns 'key' and 'value'"
            )

    def why_other_rows(self, before: SinkPosition | None, cut: SinkCut | None) -> str:
        """Say so where readers find another pipeline's rows, too."""
        return self.broker.why_foreign() if before is None else super().why_other_rows(before, cut)

    @contextmanager
    def exclusively(self) -> Iterator[StepTarget]:
        """Fence the producers of other attempts, unless they are the newer ones."""
        attempt = self.context.attempt()
        refuse_fenced(
            self.place, self.broker.position(attempt), attempt
        )  # an old attempt must not fence a newer one
        self.broker.create_topics()
        producer = self.broker.begin()
        try:
            yield KafkaTransaction(self, producer, self.broker.position(attempt, is_fenced=True))
        except Fenced as error:
            refuse_fenced(self.place, self.position(), attempt)
            raise OutcomeUnknown(f"{error}, and this attempt is the newest: repeat it") from error

    def commit(self, rows: StagedRows, position: SinkPosition) -> str:
        """Carry out one step in a transaction of its own."""
        with self.exclusively() as outside:
            return outside.commit(rows, position)

    def describe(self) -> SinkDescription:
        """Say where the messages are."""
        position = self.position()
        if position is None:
            raise NotFound(f"nothing was published to {self.place} yet")
        details = {"readers need": "isolation.level=read_committed", "positions": self.broker.positions}
        return SinkDescription(place=self.place, details=details)


def accepted(settings: TopicSettings, key: Sequence[str] = ()) -> Accepts:
    """Return the values that messages of a topic can hold, whose key is of these columns."""
    return Accepts(
        types=PLAIN | NESTED,
        values=(UTF8, *YEARS),
        columns=no_null((KEY,)) if settings.needs_key and not key else (),
        rows=(most_bytes(settings.most_bytes, key),),
    )


class KafkaTransaction:
    """One producer of the sink, which every later one fences."""

    def __init__(self, sink: KafkaSink, producer: Producer, position: SinkPosition | None) -> None:
        self._sink, self._producer, self._position = sink, producer, position

    def position(self) -> SinkPosition | None:
        """Return the position that was found once others were fenced."""
        return self._position

    def commit(self, rows: StagedRows, position: SinkPosition) -> str:
        """Send rows and position in one transaction."""
        if rows.replaces:
            raise InvalidRequest(f"{self._sink.place} cannot replace messages: use output mode 'update'")
        self._sink.broker.write(self._producer, self._messages(rows), position)
        return ""

    def why_no_way(self, before: SinkPosition | None, cut: SinkCut | None) -> str:
        """Say that messages never leave."""
        return self._sink.why_no_way(before, cut)

    def go_to(self, before: SinkPosition, head: int | None) -> SinkPosition:
        """Never asked for."""
        return self._sink.go_to(before, head)

    def _messages(self, rows: StagedRows) -> Iterator[Message]:
        for batch in rows.reader():
            yield from messages(batch, self._sink.context.key)
