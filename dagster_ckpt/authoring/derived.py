"""Derived tables, and the participants in publishes that make them of the tables that sinks have published.

They are no part of a checkpoint, because they are a function of tables that are: a restore makes them again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from dagster_ckpt.authoring.targets import SinkTarget, table_in_folder
from dagster_ckpt.core.ids import StageUid


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedTable:
    """A table whose rows are replaced whole, in one commit."""

    uid: StageUid
    reads: tuple[StageUid, ...]
    """Sinks, and derived tables before it."""
    description: str = ""


class PublishParticipant(Protocol):
    """Participant in publishes: it makes what follows from tables that have changed. An extension's."""

    @property
    def is_forked(self) -> bool:
        """Whether a fork of the pipeline has it too."""

    def open(self, tables: Any) -> Any:
        """Return, for one attempt, a function ``(checkpoint, reporter, *, only_existing)`` called after each publish.

        ``tables`` are the attempt's (``spark.attempt.sinks.PipelineSinks``); ``only_existing``: nothing begins with it.
        """


def derived_target() -> SinkTarget:
    """Return the target of derived tables, in folders of their uids.

    Rows of before are kept for readers that are at work, and no restore needs them.
    """
    return table_in_folder(properties={"delta.deletedFileRetentionDuration": "interval 1 hour"})
