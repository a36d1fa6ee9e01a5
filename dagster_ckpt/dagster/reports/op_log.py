"""The op that events are written to: one of this process, or one elsewhere that launched it."""

from __future__ import annotations

import logging
from typing import Protocol

import dagster as dg

from dagster_ckpt.dagster.names import LOCATION_TAG

AssetEvent = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation


class OpLog(Protocol):
    """Op that events are written to."""

    @property
    def location(self) -> str:
        """Code location of its run, for links; empty: of none."""
        ...

    def info(self, message: str) -> None:
        """Say something an operator may want to read."""
        ...

    def warn(self, message: str) -> None:
        """Say something an operator should read."""
        ...

    def event(self, event: AssetEvent) -> None:
        """Write an event."""
        ...

    def add_partition(self, definition: str, key: str) -> None:
        """Add a dynamic partition."""
        ...

    def remove_partition(self, definition: str, key: str) -> None:
        """Remove a dynamic partition."""
        ...


class OpOfRun:
    """Op that runs in this process."""

    def __init__(self, context: dg.OpExecutionContext | dg.AssetExecutionContext) -> None:
        without_locks(context.log)
        self._context = context

    @property
    def location(self) -> str:
        """Code location of its run."""
        return self._context.run.tags.get(LOCATION_TAG, "")

    def info(self, message: str) -> None:
        """Say something an operator may want to read."""
        self._context.log.info(message)

    def warn(self, message: str) -> None:
        """Say something an operator should read."""
        self._context.log.warning(message)

    def event(self, event: AssetEvent) -> None:
        """Write an event."""
        # Dagster takes check evaluations here too; its annotation does not say so.
        self._context.log_event(event)  # type: ignore[arg-type]

    def add_partition(self, definition: str, key: str) -> None:
        """Add a dynamic partition."""
        self._context.instance.add_dynamic_partitions(definition, [key])

    def remove_partition(self, definition: str, key: str) -> None:
        """Remove a dynamic partition."""
        self._context.instance.delete_dynamic_partition(definition, key)


class _NoLock:
    """A lock that holds nobody up; a forked process makes a new one for every handler, so it must be one."""

    def acquire(self) -> None: ...

    def release(self) -> None: ...

    def __enter__(self) -> bool:  # logging's own way from Python 3.13 on
        return True

    def __exit__(self, *_: object) -> None: ...

    def _at_fork_reinit(self) -> None: ...


_NO_LOCK = _NoLock()


def without_locks(log: logging.Logger) -> None:
    """Take the locks from the handlers that write a step's events; they keep nothing between two records.

    A run that starts configures logging: Dagster holds logging's own lock then, and asks for every handler's. A handler
    that writes an event holds its own, and the database driver asks for logging's. Two runs in one process would wait
    for each other for ever.
    """
    for handler in log.handlers:
        for held in (handler, *getattr(handler, "_handlers", ())):
            held.lock = _NO_LOCK
