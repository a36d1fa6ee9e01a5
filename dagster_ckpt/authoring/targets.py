"""Targets of sinks, ``@spark_sink(to=...)``: where the rows end, as data.

A target is opened for each attempt by the class it names; a sink of your own needs no other registration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any, ClassVar

from dagster_ckpt.errors import InvalidRequest, install_extra
from dagster_ckpt.extensions import TARGETS, extension, extension_names

META_FOLDER = "_dagster_ckpt"
"""Folder within a table that readers do not see."""


def listed(whose: str, setting: str, value: Any) -> tuple[str, ...]:
    """Return a setting that is a list of names, each once; one text would be taken for a list of letters."""
    if isinstance(value, str):
        raise InvalidRequest(f"{whose} has {setting}={value!r}: give a list, {setting}=[{value!r}]")
    names = tuple(value)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidRequest(f"{whose} has {setting}={list(names)!r}: name {twice[0]!r} once")
    return names


class TableMode(StrEnum):
    """Effect of a batch on a table."""

    APPEND = "append"
    """Rows are added."""
    UPSERT = "upsert"
    """A row replaces the earlier row with the same key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTarget:
    """The table that a sink writes."""

    name: str
    """Folder below the resource's ``table_dir``, or an absolute path."""
    mode: TableMode = TableMode.APPEND
    key: tuple[str, ...] = ()
    keep_days: int = 0
    """Days after which rows of a quarantine leave it, with a checkpoint that brings some; 0: they stay."""


class SinkTarget:
    """Base of all targets; a frozen dataclass, so that definitions can be compared and printed."""

    opened_by: ClassVar[str] = ""
    """``module:class`` of the sink; it is called with the target and a ``SinkContext``."""
    named_by: ClassVar[str] = ""
    """Field that names the table: with another name in it, readers find another table. Empty: none does."""

    @property
    def needs(self) -> tuple[str, str] | None:
        """Package that its sink imports, and the extra that installs it; None: none."""
        return None

    def open(self, context: Any) -> Any:
        """Return the ``Sink`` in a ``SinkContext``. Nothing outside is changed by opening it."""
        module, _, name = self.opened_by.partition(":")
        return getattr(import_module(module), name)(self, context)

    @classmethod
    def at(cls, place: str) -> SinkTarget | None:
        """Return the target of the table at a place; None: it takes more than that to open it."""
        return None

    def refuse_unless_whole(self) -> None:
        """Raise InvalidRequest where only a pipeline and its resource lead to the table."""

    def local_folder(self, name: str) -> str | None:
        """Return the folder on a disk that tasks write the rows of ``table=name`` to, below the resource's
        ``table_dir`` unless it is absolute; None: they write to the working directory alone.
        """
        return None


def target_at(place: str, kind: str = "delta") -> SinkTarget | None:
    """Return the target of a table that its place alone leads to; None: it takes more than that to open it."""
    if kind not in extension_names(TARGETS):
        return None
    found: SinkTarget | None = extension(TARGETS, kind).at(place)
    return found


def table_in_folder(**settings: Any) -> SinkTarget:
    """Return the target of a sink that names none: a Delta table in the resource's ``table_dir``."""
    found: SinkTarget = extension(TARGETS, "delta")(**settings)
    return found


@dataclass(frozen=True, slots=True)
class ForEachCheckpoint(SinkTarget):
    """A function that gets the rows of each checkpoint once the checkpoint is complete: at least once, in order."""

    opened_by: ClassVar[str] = "dagster_ckpt.spark.sink.for_each_checkpoint:FunctionSink"

    fn: Callable[[Any, Any], Any]
    """``fn(rows, token)``, called on the driver: ``rows`` is a ``pyarrow.RecordBatchReader``, ``token`` a
    ``CheckpointToken``. A process that ends during the call repeats it with the same token, and so with the same rows:
    give ``token.idempotency_key`` to what you call. An OSError (of which network errors are) repeats it too; any other
    error fails the run."""


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

    def group_told(self) -> str:
        """Return the group of readers that is told the offsets of completed checkpoints; empty: none."""
        return ""

    def is_strict(self) -> bool:
        """Tell whether a restore is refused where records are gone that a snapshot would read again."""
        return True

    def of_fork(self) -> SourceOrigin:
        """Return the origin as a fork of the pipeline reads it: nobody else is told how far that one has come."""
        return self
