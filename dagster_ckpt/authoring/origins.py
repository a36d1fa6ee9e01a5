"""Origins of sources, ``@spark_source(reads=...)``: where a source reads, as data.

Spark reads by what the source's function says. The origin is for what is asked beside it: is everything still there
that a snapshot would read again, how far behind is it, who is told how far it has come.
"""

from __future__ import annotations

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

    def group_told(self) -> str:
        """Return the group of readers that is told the offsets of completed checkpoints; empty: none."""
        return ""

    def is_strict(self) -> bool:
        """Tell whether a restore is refused where records are gone that a snapshot would read again."""
        return True

    def of_fork(self) -> SourceOrigin:
        """Return the origin as a fork of the pipeline reads it: nobody else is told how far that one has come."""
        return self
