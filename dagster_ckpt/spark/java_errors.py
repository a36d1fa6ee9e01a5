"""Text of an error of Spark's, which Java is asked for when it is printed: kept for when Java is gone.

And what it says where Java has ended under its session: what its process was killed for is in no error of py4j's.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dagster_ckpt.errors import causes

JAVA_GONE = (
    "the JVM of the Spark session has ended, and no longer answers: it was killed, perhaps for its memory (dmesg, the "
    "container's events), or has crashed (hs_err_pid*.log). Run again in a new process, which goes on from the latest "
    "checkpoint"
)
_UNANSWERED = re.compile(r"An error occurred while calling [\w.$]+")
"""What py4j says of a call that got no answer; one that failed in Java has its exception behind that."""


class JavaErrors:
    """Keeps what errors say while there is a session, and notes it on those that cannot say it any more.

    A session on a warm engine takes its connection to Java with it: a traceback that is printed later would end with
    ``<exception str() failed>``.
    """

    def __init__(self) -> None:
        self._said: list[tuple[BaseException, str]] = []

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Around what uses the session."""
        try:
            yield
        except Exception as error:
            for one in causes(error):
                with suppress(Exception):  # it may be gone already
                    self._said.append((one, str(one)))
            raise

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Around the life of the session."""
        try:
            yield
        except Exception:
            for one, text in self._said:
                try:
                    str(one)
                except Exception:
                    one.add_note(text)
            raise


def is_java_gone(error: BaseException) -> bool:
    """Tell whether an error says only that no JVM is there to ask."""
    return any(map(_says_so, causes(error)))


def _says_so(error: BaseException) -> bool:
    match type(error).__name__:
        case "Py4JNetworkError":
            return True
        case "Py4JError":
            return _UNANSWERED.fullmatch(str(error)) is not None
        case _:
            return isinstance(error, ConnectionError) and _comes_from_py4j(error)


def _comes_from_py4j(error: BaseException) -> bool:
    """Tell the JVM's socket from that of a database or a broker."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and "py4j" in frames[-1].filename


MAX_START_ATTEMPTS = 6
"""How often one query of an attempt is started, the first time included."""
_SAYS = "Python worker failed to connect back"


def is_retryable_start(error: BaseException | None) -> bool:
    """Tell whether a query failed for this alone. Starting it later would then have been the same."""
    return error is not None and _SAYS in str(error)
