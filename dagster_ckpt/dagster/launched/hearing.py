"""A Pipes client whose custom messages are heard as they come; Pipes itself keeps them until the program has ended."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg
from dagster._core.pipes.context import PipesMessageHandler
from dagster_pipes import PipesMessage, PipesParams

Hear = Callable[[Any], bool]
"""Gets a custom message; returns whether it was meant for it."""


def hearing(client: dg.PipesClient, hear: Hear) -> dg.PipesClient:
    """Return the client with ``hear`` before Pipes' own handler; the one given is left as it is.

    A client that makes its reader when it runs, and so has none now, is returned as it is: its messages are there at
    its end (``get_custom_messages``).
    """
    readers = {
        name: value for name, value in vars(client).items() if isinstance(value, dg.PipesMessageReader)
    }
    if not readers:
        return client
    copied = copy.copy(client)
    for name, reader in readers.items():
        setattr(copied, name, _hearing_reader(reader, hear))
    return copied


def _hearing_reader(reader: dg.PipesMessageReader, hear: Hear) -> dg.PipesMessageReader:
    """Return a copy of a reader, of a class derived from its own: clients ask what kind of reader they have."""
    kind = type(reader)

    class Hearing(kind):  # type: ignore[misc, valid-type]
        @contextmanager
        def read_messages(self, handler: PipesMessageHandler) -> Iterator[PipesParams]:
            with super().read_messages(_hearing_handler(handler, hear)) as params:
                yield params

    Hearing.__name__, Hearing.__qualname__ = kind.__name__, kind.__qualname__
    copied = copy.copy(reader)
    copied.__class__ = Hearing
    return copied


class _HearingHandler(PipesMessageHandler):
    """The session's handler, whose state it shares, with somebody who hears first."""

    _hear: Hear

    def handle_message(self, message: PipesMessage) -> None:
        params = message.get("params") or {}
        if message["method"] == "report_custom_message" and self._hear(params.get("payload")):
            return
        super().handle_message(message)


def _hearing_handler(handler: PipesMessageHandler, hear: Hear) -> PipesMessageHandler:
    copied = object.__new__(_HearingHandler)
    # One dictionary for both: what one has counted (opened, closed) the other knows, and no number is copied.
    handler.__dict__["_hear"] = hear
    copied.__dict__ = handler.__dict__
    return copied
