"""Participants: of a stage, whose micro-batches they see on their way to its channel log; of publishes.

A participant is data, as a sink's target is: it is opened for each attempt by the class it names. The settings of
``@spark_stage`` that make one belong to the extension of that name (entry points ``dagster_ckpt.participants``).
Derived tables are no part of a checkpoint, because they are a function of tables that are: a restore makes them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Protocol

from dagster_ckpt.authoring.targets import SinkTarget, TableMode, TableTarget, table_in_folder
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.extensions import PARTICIPANTS, extension

QUARANTINE_SETTINGS = frozenset({"expect", "at_most", "beyond", "late", "on_error", "quarantine"})
"""Settings of a decorator that are the participant's."""


class StageParticipant:
    """Base of participants; a frozen dataclass, so that definitions can be compared and printed."""

    opened_by: ClassVar[str] = ""
    """``module:class`` of what writes the batches; called with the participant and a ``ParticipantContext``."""

    @property
    def judges(self) -> Sequence[str]:
        """Conditions that it asks of rows, as its counts name them."""
        return ()

    @property
    def limit(self) -> str:
        """Rows of one checkpoint that may break each, ``1 %`` or a number; empty: any."""
        return ""

    @property
    def table(self) -> str:
        """Table for the rows it keeps, named as a sink's is; empty: it keeps none."""
        return ""

    @property
    def key(self) -> tuple[str, ...]:
        """Columns of that table whose values a newer row replaces an older one by."""
        return ()

    @property
    def target(self) -> TableTarget | None:
        """Table for the rows it keeps, as a stage's definition has it; None: it keeps none."""
        mode = TableMode.UPSERT if self.key else TableMode.APPEND
        return TableTarget(name=self.table, mode=mode, key=self.key) if self.table else None

    @property
    def rereads(self) -> bool:
        """True where it reads the stage's input a second time, which has to be in a channel then."""
        return False

    def of_stage(self, uid: str) -> StageParticipant:
        """Return the same participant for a stage of this uid."""
        raise NotImplementedError

    def open(self, context: Any) -> Any:
        """Return the writer of the stage's batches. Nothing outside is changed by opening it."""
        module, _, name = self.opened_by.partition(":")
        return getattr(import_module(module), name)(self, context)


def take_participant(fn: Callable[..., Any], uid: str, settings: dict[str, Any]) -> StageParticipant | None:
    """Take a participant's settings out of a stage's, and return it; None: none is asked for.

    Raises InvalidRequest for impossible ones.
    """
    given = {name: settings.pop(name) for name in sorted(QUARANTINE_SETTINGS & settings.keys())}
    if given.get("on_error") == "fail":  # as without it
        del given["on_error"]
    if not given:
        return None
    make = extension(PARTICIPANTS, "quarantine")
    made: StageParticipant = make(fn, uid, settings.get("output_mode", "append"), given)
    return made


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
