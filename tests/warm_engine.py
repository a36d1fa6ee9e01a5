"""A warm engine for programs that tests start one after the other: the first starts a JVM, the others use it again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dagster_ckpt.ext.warm.keeper import EngineFiles


@contextmanager
def engine_in(folder: Path) -> Iterator[str]:
    """Yield what ``warm_engine`` is set to; afterwards the engine is ended, if one was started there."""
    try:
        yield str(folder)
    finally:
        address = EngineFiles(folder).read()
        if address is not None:
            with suppress(ProcessLookupError):
                os.kill(address.pid, signal.SIGKILL)
