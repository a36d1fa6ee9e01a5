"""Methods of PySpark with another end for a while, and readers of streams whose loads are somebody else's to say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Gets a method, returns what is called in its place."""

FILES = ("csv", "json", "orc", "parquet", "text")
_ASK = ("format", "option", "options", "schema")
_NOTE = "_dagster_ckpt_asked"


@contextmanager
def wrapped(places: Sequence[tuple[type, str, Wrap]]) -> Iterator[None]:
    """Replace methods, given by class and name, and put them back at the end."""
    before = [(owner, name, owner.__dict__[name]) for owner, name, _ in places]
    for owner, name, wrap in places:
        setattr(owner, name, wrap(owner.__dict__[name]))
    try:
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)


def readers(
    loading: Callable[[str, Callable[..., Any]], Callable[..., Any]],
) -> AbstractContextManager[None]:
    """Have every reader of streams in this process note what it is asked, and load in another way.

    ``loading``: takes the name of a method that loads, and the method; returns what is called in its place.
    """
    from pyspark.sql.streaming.readwriter import DataStreamReader

    return wrapped(
        [
            *((DataStreamReader, name, partial(_noting, name)) for name in _ASK),
            *((DataStreamReader, name, partial(loading, name)) for name in ("load", *FILES)),
        ]
    )


def _noting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def noted(reader: Any, *given: Any, **options: Any) -> Any:
        asked = options_asked(reader)
        if name == "option":
            key, value = (*given, *(options[one] for one in ("key", "value")[len(given) :]))
            asked[str(key)] = value
        elif name == "options":
            asked.update(options)
        else:
            asked[name] = given[0] if given else next(iter(options.values()))
        return method(reader, *given, **options)

    return noted


def options_asked(reader: Any) -> dict[str, Any]:
    """Return the options that a reader was given so far."""
    asked: dict[str, Any] = vars(reader).setdefault(_NOTE, {})
    return asked
