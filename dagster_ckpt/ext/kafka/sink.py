"""A topic of Kafka as a sink: exactly once for consumers that read committed messages."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from dagster_ckpt.errors import Fenced, InvalidRequest, NotFound, OutcomeUnknown
from dagster_ckpt.ext.kafka.broker import Broker, Message, TopicSettings
from dagster_ckpt.ext.kafka.topics import KafkaTopic
from dagster_ckpt.spark.quoting import quoted
from dagster_ckpt.spark.sink.accepts import NESTED, PLAIN, UTF8, YEARS, Accepts, RowRule, no_null
from dagster_ckpt.spark.sink.port import SinkContext, SinkCut, SinkDescription, SinkPosition
from dagster_ckpt.spark.sink.positions import refuse_fenced
from dagster_ckpt.spark.sink.staged_rows import StagedRows
from dagster_ckpt.spark.sink.staged_sink import StagedSink, StepTarget

if TYPE_CHECKING:
    from confluent_kafka import Producer
    from pyspark.sql import DataFrame
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
