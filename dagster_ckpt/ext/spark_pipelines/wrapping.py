"""Methods of Spark's classes that are replaced while a block runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Gets a method, returns what is called in its place."""


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
