"""Origins of sources, ``@spark_source(reads=...)``: where a source reads, as data.

Spark reads by what the source's function says. The origin is for what is asked beside it: is everything still there
that a snapshot would read again, how far behind is it, who is told how far it has come.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, ClassVar

from dagster_ckpt.errors import InvalidRequest, install_extra


class SourceOrigin:
    """Base of all origins; a frozen dataclass, so that definitions can be compared and printed."""

    opened_by: ClassVar[str] = ""
    """``module:class`` of the log that is asked; it is called with the origin."""

    def open(self) -> Any:
        """Return the log that can be asked. Nothing outside is changed by opening it.

        Raises InvalidRequest: a package it needs is not installed, or a setting is not there.
        """
        module, _, name = self.opened_by.partition(":")
        try:
            return getattr(import_module(module), name)(self)
        except ModuleNotFoundError as error:
            raise InvalidRequest(
                f"{self!r} needs the package {error.name}: {install_extra('kafka')}"
            ) from error

    def of_fork(self) -> SourceOrigin:
        """Return the origin as a fork of the pipeline reads it: nobody else is told how far that one has come."""
        return self


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
    """Consumer group that is told the offsets of completed checkpoints, so that lag tools see the pipeline; empty:
    none. Spark reads by its own offsets whatever the group holds."""
    fail_on_data_loss: bool = True
    """As the source's own option ``failOnDataLoss``: where records are gone that a snapshot would read again, its
    restore is refused; False: it warns."""

    def of_fork(self) -> KafkaTopics:
        """Return the same without the group, which is told of the pipeline that is forked."""
        return replace(self, group="")
