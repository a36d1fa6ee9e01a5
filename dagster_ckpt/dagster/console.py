"""Failures as people read them: in events and on the console a refusal is its sentence, without traces."""

from __future__ import annotations

import logging
import re
from typing import Any

import dagster as dg
from dagster._core.errors import DagsterUserCodeProcessError
from dagster._core.log_manager import LOG_RECORD_METADATA_ATTR
from dagster._utils.error import (  # type: ignore[attr-defined]
    SerializableErrorInfo,
    serializable_error_info_from_exc_info,
)

from dagster_ckpt.errors import shows_traces

_NOT_EXECUTED = re.compile(r"Dependencies for step \S+ (failed|were not executed): .* Not executing\.")
"""Said of each step behind one that failed."""


class _Refused(dg.Failure, DagsterUserCodeProcessError):
    """Failure that says all in a sentence; Dagster takes what it is told of an error in another process as it is."""

    def __init__(self, description: str, cause: BaseException | None, *, allow_retries: bool) -> None:
        Exception.__init__(self, description)
        self.description = description
        self.metadata = {}
        self.allow_retries = allow_retries
        told = _Told(
            message=description,
            stack=[],
            cls_name="Failure",
            cause=None if cause is None else _info_of(cause),
        )
        self.user_code_process_error_infos = [told]


class _Told(SerializableErrorInfo):
    """Error of an event: the sentence, with its cause behind it for the UI; a console prints the sentence alone."""

    def to_string(self) -> str:
        """Return the sentence."""
        return str(self.message)


_Told.__name__ = SerializableErrorInfo.__name__  # by which Dagster stores it, and reads it back as its own


def _info_of(error: BaseException) -> SerializableErrorInfo:
    if error.__traceback__ is None:
        return SerializableErrorInfo(
            message=f"{type(error).__name__}: {error}\n", stack=[], cls_name=type(error).__name__
        )
    return serializable_error_info_from_exc_info((type(error), error, error.__traceback__))


def failure(sentence: str, cause: BaseException | None = None, *, allow_retries: bool = True) -> dg.Failure:
    """Return the failure of a step for which a sentence says all; with Dagster's trace where traces are asked for."""
    if shows_traces():
        return dg.Failure(description=sentence, allow_retries=allow_retries)
    return _Refused(sentence, cause, allow_retries=allow_retries)


def in_sentences(context: dg.InitResourceContext) -> None:
    """Leave Dagster's own lines of level DEBUG out of a run's console, where nobody has chosen a level.

    And what it says of each step behind one that has failed, and of the first one: a run ends with that sentence.
    """
    run, instance = context.run, context.instance
    if context.log is None or run is None or shows_traces():
        return
    is_chosen = "loggers" in run.run_config or (
        instance is not None and instance.python_log_level is not None
    )
    for handler in context.log.handlers:
        for logger in getattr(handler, "_loggers", ()):
            if not any(isinstance(one, _Few) for one in logger.filters):
                logger.addFilter(_Few(logging.NOTSET if is_chosen else logging.INFO))


class _Few(logging.Filter):
    """Filter of one console logger."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self._least = least
        self._has_failed = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a line is shown."""
        metadata: dict[str, Any] = getattr(record, LOG_RECORD_METADATA_ATTR, None) or {}
        said = str(metadata.get("orig_message", ""))
        event = metadata.get("dagster_event")
        if event is not None and event.is_step_failure and not self._has_failed:
            self._has_failed = True
            return False
        return record.levelno >= self._least and not _NOT_EXECUTED.fullmatch(said)
