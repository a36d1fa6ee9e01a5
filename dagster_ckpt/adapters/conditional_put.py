"""Exclusive creation with one request, where the store honors its condition: proved, then relied on.

``If-None-Match: *`` in S3 and Azure, ``ifGenerationMatch=0`` at Google's. A store that passes over the condition would
replace what is there; one that does not know it refuses. So a name is created twice at first use. Each object carries
a mark of the call that made it: a request that is repeated because its answer was lost finds its own object.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from dagster_ckpt.adapters.local_keys import partial_name

_NO_CREDENTIALS = frozenset(
    {
        *("NoCredentialsError", "PartialCredentialsError"),  # Amazon
        "CredentialUnavailableError",  # Microsoft
        *("DefaultCredentialsError", "RefreshError"),  # Google
    }
)
_UNAUTHORIZED, _FORBIDDEN = 401, 403
_NO_ANSWER = (0, 429, 500, 502, 503, 504)


def status_of(error: BaseException) -> int:
    """Return the HTTP status of the answer that a client's error tells of; 0: there was none."""
    for one in (error.__cause__, error):
        answer = getattr(one, "response", None)
        if isinstance(answer, dict):  # botocore
            return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        for name in ("status_code", "code"):  # azure.core; gcsfs
            found = getattr(one, name, None)
            if isinstance(found, int) or (isinstance(found, str) and found.isdecimal()):
                return int(found)
    return 0


def has_no_answer(error: BaseException) -> bool:
    """Tell whether the storage was not reached, or is busy: what it can is not known then."""
    return status_of(error) in _NO_ANSWER


def lacks_credentials(error: BaseException) -> bool:
    """Tell whether a client has found no credentials to send."""
    return type(error).__name__ in _NO_CREDENTIALS


def is_refusal(error: BaseException) -> bool:
    """Tell whether the storage has refused who asks: wrong credentials, or no permission."""
    return (
        isinstance(error, PermissionError)
        or status_of(error) in (_UNAUTHORIZED, _FORBIDDEN)
        or str(error).startswith("Forbidden:")  # gcsfs, an OSError without a number
    )


_MARK = "dagster-ckpt-write"
_TYPE = "application/octet-stream"
_PRECONDITION_FAILED = 412


@dataclass(frozen=True, slots=True)
class _Marks:
    """How a client keeps a word beside an object."""

    settings: Callable[[str], dict[str, Any]]
    """Of the call that creates the object."""
    beside: Callable[[Any, str], str]
    """What was kept there, with the word in it."""


_S3 = _Marks(
    lambda mark: {"Metadata": {_MARK: mark}},
    lambda fs, path: str(fs.metadata(path, refresh=True).get(_MARK, "")),
)
_AZURE = _Marks(  # adlfs keeps the metadata of an object to itself
    lambda mark: {"content_settings": {"content_type": f"{_TYPE}; {_MARK}={mark}"}},
    lambda fs, path: str(fs.info(path, refresh=True)["content_settings"]["content_type"]).rpartition("=")[2],
)
_GOOGLE = _Marks(
    lambda mark: {"metadata": {_MARK: mark}},
    lambda fs, path: str(fs.info(path)["metadata"].get(_MARK, "")),
)
_MARKS = {
    **dict.fromkeys(("s3", "s3a"), _S3),
    **dict.fromkeys(("abfs", "abfss", "az"), _AZURE),
    **dict.fromkeys(("gs", "gcs"), _GOOGLE),
}


def with_client(protocol: str, fs: Any, root: str) -> ConditionalPut | None:
    """Return exclusive puts with fsspec's client of a protocol; None: it has no words for them."""
    return ConditionalPut(fs, root, _MARKS[protocol]) if protocol in _MARKS else None


class ConditionalPut:
    """Exclusive puts with one client; ``fs`` is fsspec's file system."""

    def __init__(self, fs: Any, root: str, marks: _Marks) -> None:
        self._fs, self._root, self._marks = fs, root, marks
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
                    self._is_honored = None if has_no_answer(error) else False
            return bool(self._is_honored)

    def _create(self, path: str, source: bytes | Path, mark: str) -> None:
        settings = {"mode": "create", **self._marks.settings(mark)}
        if isinstance(source, Path):
            self._fs.put_file(str(source), path, **settings)
        else:
            self._fs.pipe_file(path, source, **settings)

    def _found_mark(self, path: str) -> str:
        with suppress(Exception):
            return self._marks.beside(self._fs, path)
        return ""

    def _knows_mode(self) -> bool:
        known = inspect.signature(self._fs._pipe_file).parameters
        return "mode" in known or "overwrite" in known  # adlfs takes the mode among others

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
    return isinstance(error, FileExistsError) or status_of(error) == _PRECONDITION_FAILED
