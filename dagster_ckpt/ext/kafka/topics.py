"""Topics of Kafka, as data: where a source reads, and where the rows of a sink end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from dagster_ckpt.authoring.targets import SinkTarget, SourceOrigin


@dataclass(frozen=True, slots=True)
class KafkaTopics(SourceOrigin):
    """Topics of a Kafka cluster that a source reads with Spark's own connector. Needs the extra ``kafka``.

    Which topics and partitions is in the snapshots. How: docs/extensions/kafka.md.
    """

    opened_by: ClassVar[str] = "dagster_ckpt.ext.kafka.topic_log:KafkaLog"

    bootstrap_servers: str
    options: dict[str, str] = field(default_factory=dict, repr=False, hash=False)
    """Further settings of librdkafka (Spark's own are Java's); ``"env:NAME"`` for secrets."""
    group: str = ""
    """Consumer group that is told the offsets of completed checkpoints, for lag tools; empty: none."""
    fail_on_data_loss: bool = True
    """Where records are gone that a snapshot would read again its restore is refused; False: it warns."""

    def of_fork(self) -> KafkaTopics:
        """Return the same without the group, which is told of the pipeline that is forked."""
        return replace(self, group="")

    def group_told(self) -> str:
        """Return the group of readers that is told the offsets of completed checkpoints; empty: none."""
        return self.group

    def is_strict(self) -> bool:
        """Tell whether a restore is refused where records are gone that a snapshot would read again."""
        return self.fail_on_data_loss


@dataclass(frozen=True, slots=True)
class KafkaTopic(SinkTarget):
    """A topic of Kafka: the rows of a checkpoint and the position in one transaction. Needs the extra ``kafka``.

    Readers see each row once with ``isolation.level=read_committed``. Rows with a column ``value`` (and ``key``), as
    text or binary, are the messages; all other rows are written as JSON, with the sink's key columns as key.
    """

    opened_by: ClassVar[str] = "dagster_ckpt.ext.kafka.sink:KafkaSink"

    bootstrap_servers: str
    topic: str = ""
    """Default: the sink's uid. Created when it is missing; ``<topic>.dagster_ckpt`` beside it holds the position."""
    options: dict[str, str] = field(default_factory=dict, repr=False, hash=False)
    """Further settings of librdkafka, for producers and consumers; ``"env:NAME"`` for secrets."""
    shared_with: tuple[str, ...] = ()
    """Other pipelines that write to it with sinks of theirs: their rows are no reason to refuse it."""

    @property
    def needs(self) -> tuple[str, str]:
        """The client of Kafka."""
        return "confluent_kafka", "kafka"
