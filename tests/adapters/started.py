"""A server that a test needs: where it is not installed, the test is skipped and says so, but not in CI."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import pytest

from tests.adapters.servers import ServerMissing

T = TypeVar("T")


@contextmanager
def started(server: AbstractContextManager[T]) -> Iterator[T]:
    """Start a server; where it cannot be had, skip the test, but not in CI."""
    try:
        with server as running:
            yield running
    except ServerMissing as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
