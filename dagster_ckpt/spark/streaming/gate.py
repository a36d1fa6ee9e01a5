"""Lets a query's micro-batches in one by one, so that it can be held and stopped exactly between two of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BatchWriter = Callable[["DataFrame", int], None]


class StoppedAtBatchBoundary(Exception):
    """Ends a query that is being stopped, before its next batch has done anything.

    The text is what Spark itself reports when it interrupts Python, so it logs a stopped query and not a failed one.
    """

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling the batch of a stopped query: "
            "java.lang.InterruptedException"
        )


class _NotAnError(logging.Filter):
    """Keeps py4j from logging the stop of a query as an exception of the batch writer."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.exc_info is None or not isinstance(record.exc_info[1], StoppedAtBatchBoundary)


_NOT_AN_ERROR = _NotAnError()


class _Door(StrEnum):
    OPEN = "open"
    HELD = "held"
    STOPPED = "stopped"


class BatchGate:
    """Stands before a stage's batch writer. Thread-safe; batches of one query come one at a time."""

    def __init__(self) -> None:
        logging.getLogger("py4j.clientserver").addFilter(_NOT_AN_ERROR)
        self._changed = threading.Condition()
        self._door = _Door.OPEN
        self._inside: int | None = None

    def guard(self, write: BatchWriter) -> BatchWriter:
        """Return ``write`` behind this gate."""

        def guarded(frame: DataFrame, batch_id: int) -> None:
            self._enter(batch_id)
            try:
                write(frame, batch_id)
            finally:
                self._leave()

        return guarded

    def hold(self) -> None:
        """Let no further batch in; the one that is inside may finish."""
        self._set(_Door.HELD)

    def open(self) -> None:
        """Let batches in again."""
        self._set(_Door.OPEN)

    def stop(self) -> None:
        """End the query at its next batch, also one that is waiting at the gate."""
        self._set(_Door.STOPPED)

    @property
    def is_held(self) -> bool:
        """True while no batch is let in."""
        return self._door is not _Door.OPEN

    @property
    def inside(self) -> int | None:
        """The batch that is being written; None between two batches."""
        return self._inside

    def _set(self, door: _Door) -> None:
        with self._changed:
            if self._door is not _Door.STOPPED:
                self._door = door
            self._changed.notify_all()

    def _enter(self, batch_id: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._door is not _Door.HELD)
            if self._door is _Door.STOPPED:
                raise StoppedAtBatchBoundary
            self._inside = batch_id

    def _leave(self) -> None:
        with self._changed:
            self._inside = None
            self._changed.notify_all()
