"""What an error of Spark's says is asked of Java when it is printed: kept for when Java is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dagster_ckpt.errors import causes

__all__ = ["JavaErrors"]


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
