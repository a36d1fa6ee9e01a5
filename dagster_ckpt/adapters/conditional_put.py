"""Exclusive creation in S3 with one request, where the store honors ``If-None-Match: *``: proved, then relied on.

A store that passes over the header would replace what is there; one that does not know it refuses. So a name is created
twice at first use. Each object carries a mark of the call that made it: a request that is repeated because its answer
was lost finds its own object, and knows it.
"""

from __future__ import annotations

import inspect
import uuid
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from dagster_ckpt.adapters.local_keys import partial_name

PROTOCOLS = frozenset({"s3", "s3a"})
_MARK = "dagster-ckpt-write"
_PRECONDITION_FAILED = 412
_NO_ANSWER = (0, 429, 500, 502, 503, 504)
"""The store was not reached, or is busy: what it can is not known."""


class ConditionalPut:
    """Exclusive puts with one client; ``fs`` is fsspec's file system for S3."""

    def __init__(self, fs: Any, root: str) -> None:
        self._fs, self._root = fs, root
        self._is_honored: bool | None = None
        self._asking = Lock()

    def put(self, path: str, source: bytes | Path) -> bool:
        """Create ``path``; False: it is another object's. Raises what the client raises where neither is known."""
        mark = uuid.uuid4().hex
        try:
            self._create(path, source, mark)
        except Exception as error:
            if self._found_mark(path) == mark:
                return True  # the answer to an earlier try was lost
            if _is_taken(error):
                return False
            raise
        return True

    def is_honored(self) -> bool:
        """Tell whether the store refuses a second creation; asked once, and again where it could not be reached."""
        with self._asking:
            if self._is_honored is None:
                try:
                    self._is_honored = self._knows_mode() and self._refuses_a_second()
                except Exception as error:
                    self._is_honored = None if _status(error) in _NO_ANSWER else False
            return bool(self._is_honored)

    def _create(self, path: str, source: bytes | Path, mark: str) -> None:
        settings = {"mode": "create", "Metadata": {_MARK: mark}}
        if isinstance(source, Path):
            self._fs.put_file(str(source), path, **settings)
        else:
            self._fs.pipe_file(path, source, **settings)

    def _found_mark(self, path: str) -> str:
        with suppress(Exception):
            return str(self._fs.metadata(path, refresh=True).get(_MARK, ""))
        return ""

    def _knows_mode(self) -> bool:
        return "mode" in inspect.signature(self._fs._pipe_file).parameters

    def _refuses_a_second(self) -> bool:
        path = f"{self._root}/{partial_name()}"
        self._fs.pipe_file(path, b"first", mode="create")
        try:
            self._fs.pipe_file(path, b"second", mode="create")
        except Exception as error:
            if not _is_taken(error):
                raise
            return True
        finally:
            with suppress(Exception):
                self._fs.rm_file(path)
        return False


def _is_taken(error: BaseException) -> bool:
    return isinstance(error, FileExistsError) or _status(error) == _PRECONDITION_FAILED


def _status(error: BaseException) -> int:
    """Return the HTTP status of the answer that a client's error tells of; 0: there was none."""
    answer = getattr(error.__cause__ or error, "response", None)
    found = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) if isinstance(answer, dict) else 0
    return int(found)
