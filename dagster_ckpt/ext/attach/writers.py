"""PySpark's ``DataStreamWriter`` as it says what it starts: its methods replaced in this process, and put back.

Nothing but what a query is called with passes here, and a ``checkpointLocation`` where it has none that lasts. What is
used of PySpark is the same from 3.5 to 4.3.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.wrapped import FILES, Wrap, wrapped
from dagster_ckpt.spark.versions import refuse_attached

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery


CHECKPOINT_LOCATION = "checkpointLocation"
_NOTES = "_dagster_ckpt_told"
"""Attribute of a writer that keeps what it was told."""


@dataclass
class WriterNotes:
    """Notes of a writer: all it was told before its query starts."""

    format: str = ""
    query_name: str = ""
    output_mode: str = "append"
    options: dict[str, str] = field(default_factory=dict)
    """By their names in lower case: Spark's options have no case."""
    path: str = ""
    table: str = ""
    """Of ``toTable``."""
    function: object = None
    """Of ``foreachBatch`` and ``foreach``."""

    def option(self, name: str) -> str:
        """Return an option; empty: it was not given."""
        return self.options.get(name.lower(), "")

    def note(self, key: str, value: object) -> None:
        """Note an option as it was given."""
        self.options[key.lower()] = str(value)


Begin = Callable[["DataFrame", WriterNotes], tuple[dict[str, str], Callable[["StreamingQuery | None"], None]]]
"""Called before a query starts: options to add, and what hears of the query once it runs; of None: it did not start."""


def refuse_connect() -> None:
    """Raise InvalidRequest where this process talks to a server of Spark Connect."""
    if os.environ.get("SPARK_REMOTE") or os.environ.get("SPARK_CONNECT_MODE_ENABLED"):
        raise InvalidRequest(
            "attach needs Spark in the program's own process, where its queries' directories are: start the session "
            "with master() instead of remote() (SPARK_REMOTE is set)"
        )


def speak() -> None:
    """Let a program that has set up no logging see what is said, on standard error."""
    ours = logging.getLogger("dagster_ckpt")
    if ours.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("dagster_ckpt: %(message)s"))
    ours.addHandler(handler)
    logging.getLogger("dagster_ckpt.attach").setLevel(logging.INFO)


class WriterPatch:
    """The replaced methods; ``begin`` hears of every query that is about to start."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._replaced = ExitStack()

    def install(self) -> None:
        """Replace the methods. Raises InvalidRequest for a PySpark that is too old."""
        import pyspark

        refuse_attached(pyspark.__version__)
        from pyspark.sql.streaming.readwriter import DataStreamWriter

        notes = [(DataStreamWriter, name, _noting(note)) for name, note in _NOTED.items()]
        starts = [(DataStreamWriter, name, self._starting) for name in ("start", "toTable")]
        self._replaced.enter_context(wrapped([*notes, *starts]))

    def send_readers(self, place_of: Callable[[str], str]) -> None:
        """Have streams read other folders than the program's text names: ``place_of`` returns the one for each."""
        from pyspark.sql.streaming.readwriter import DataStreamReader

        def reading(before: Any) -> Any:
            shape = signature(before)

            @wraps(before)
            def reads(*args: Any, **kwargs: Any) -> Any:
                given = shape.bind(*args, **kwargs)
                if path := given.arguments.get("path"):
                    given.arguments["path"] = place_of(str(path))
                return before(*given.args, **given.kwargs)

            return reads

        places = [(DataStreamReader, name, reading) for name in ("load", *FILES)]
        self._replaced.enter_context(wrapped(places))

    def remove(self) -> None:
        """Put PySpark's own methods back."""
        self._replaced.close()

    def _starting(self, before: Callable[..., Any]) -> Callable[..., Any]:
        shape = signature(before)

        @wraps(before)
        def starts(writer: Any, *args: Any, **kwargs: Any) -> Any:
            given = shape.bind(writer, *args, **kwargs)
            told = _settled(writer, given.arguments)
            added, heard = self._begin(writer._df, told)
            if path := added.pop("path", ""):
                given.arguments.pop("path", None)
                writer.option("path", path)
            try:
                query = before(*given.args, **{**given.kwargs, **added})
            except BaseException:
                heard(None)
                raise
            heard(query)
            return query

        return starts


def _told(writer: Any) -> WriterNotes:
    told = getattr(writer, _NOTES, None)
    if told is None:
        told = WriterNotes()
        setattr(writer, _NOTES, told)
    assert isinstance(told, WriterNotes)
    return told


def _settled(writer: Any, given: Mapping[str, Any]) -> WriterNotes:
    """Return the writer's notes with all that ``start`` itself is given, which comes last."""
    noted = _told(writer)
    told = WriterNotes(
        format=str(given.get("format") or noted.format),
        query_name=str(given.get("queryName") or noted.query_name),
        output_mode=str(given.get("outputMode") or noted.output_mode),
        options=dict(noted.options),
        table=str(given.get("tableName") or ""),
        function=noted.function,
    )
    _note_options(told, **given.get("options", {}))
    told.path = str(given.get("path") or told.option("path"))
    return told


def _noting(note: Callable[..., None]) -> Wrap:
    """Return a maker of methods that note their arguments, and do what they did."""

    def make(before: Any) -> Any:
        @wraps(before)
        def method(writer: Any, *args: Any, **kwargs: Any) -> Any:
            note(_told(writer), *args, **kwargs)
            return before(writer, *args, **kwargs)

        return method

    return make


def _only(name: str, kind: str = "") -> Callable[..., None]:
    """Return a note of the only argument, whatever PySpark calls it; ``kind``: the format that goes with it."""

    def note(told: WriterNotes, *given: object, **named: object) -> None:
        setattr(told, name, *given, *named.values())
        told.format = kind or told.format

    return note


def _note_options(told: WriterNotes, **options: object) -> None:
    for key, value in options.items():
        told.note(key, value)


_NOTED: dict[str, Callable[..., None]] = {
    "format": _only("format"),
    "queryName": _only("query_name"),
    "outputMode": _only("output_mode"),
    "option": WriterNotes.note,
    "options": _note_options,
    "foreachBatch": _only("function", "foreachBatch"),
    "foreach": _only("function", "foreach"),
}
"""How each method of a writer is noted."""
