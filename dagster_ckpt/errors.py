"""Every exception the library raises, grouped by what the caller does next.

    CheckpointError                    base; carries a stable, append-only ``kind``
    ├── InvalidRequest (ValueError)    fix the call or the configuration, then repeat it
    ├── NotFound (LookupError)         name something that exists
    ├── Fenced                         stop: a newer attempt owns this pipeline
    ├── Unavailable (OSError)          certainly did not happen: retry with back-off
    ├── OutcomeUnknown (OSError)       may have happened: read back before acting, delete nothing
    ├── Corrupt                        damaged data: restore from something else, as the message says
    └── Declined                       a checkpoint failed for a ``CheckpointFailureReason``; the pipeline may go on

Losing a race (a compare-and-set conflict, a late acknowledgement) is a return value, never an exception.
Messages say what happened, to what, and what to do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires

TRACEBACK = "DAGSTER_CKPT_TRACEBACK"
"""Environment variable that asks for traces."""
_SIGNATURE = re.compile(r"\b((?:sig|[\w-]*signature)=)[^&\s'\"]+", re.IGNORECASE)


def without_signatures(text: str) -> str:
    """Return a text without the signatures of URLs in it: whoever has one of Azure's SAS tokens may use the account."""
    return _SIGNATURE.sub(r"\1…", text)


def printable(text: str) -> str:
    """Return a text that a terminal only prints: control characters, and marks that turn text around, as ``\\x1b``.

    Names, notes and keys are whatever their author wrote; an escape sequence could empty the screen, or set a title.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode() for one in text
    )


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, what it was raised from or beside, and so on."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


def shows_traces() -> bool:
    """Tell whether traces are wanted beside sentences: ``--traceback``, or ``DAGSTER_CKPT_TRACEBACK=1``."""
    return os.environ.get(TRACEBACK, "") not in ("", "0")


def install_extra(extra: str) -> str:
    """Return the command that installs the packages of an extra, however this library was installed, and its name.

    The name alone would not do: the library is on no index.
    """
    try:
        required = requires("dagster-ckpt") or []
    except PackageNotFoundError:  # run from a checkout that is not installed
        required = []
    wanted = re.compile(rf"""extra\s*==\s*['"]{extra}['"]""")
    packages = [needed.partition(";")[0].strip() for needed in required if wanted.search(needed)]
    named = " ".join(f"'{package}'" for package in packages) or f"'.[{extra}]'"
    return f"pip install {named}  # dagster-ckpt[{extra}]"


class CheckpointError(Exception):
    """Base of all errors of this library; ``kind`` is a stable name that programs may test."""

    kind: str = "checkpoint_error"

    def __str__(self) -> str:
        return printable(without_signatures(super().__str__()))


class InvalidRequest(CheckpointError, ValueError):
    """The request or the configuration can never work as given: correct it and repeat."""

    kind = "invalid_request"


class NotFound(CheckpointError, LookupError):
    """The named checkpoint, pipeline, stage or stored object does not exist."""

    kind = "not_found"


class Fenced(CheckpointError):
    """A newer attempt has taken over the pipeline: this one must stop and write nothing more."""

    kind = "fenced"


class Unavailable(CheckpointError, OSError):
    """The store or the storage could not be reached, and the operation certainly had no effect (determinate)."""

    kind = "unavailable"


class OutcomeUnknown(CheckpointError, OSError):
    """The operation may or may not have taken effect (indeterminate): nothing may be deleted on its account."""

    kind = "outcome_unknown"


class Corrupt(CheckpointError):
    """Stored data is missing, damaged or of an unknown format; the message names the file and the way out."""

    kind = "corrupt"


class Declined(CheckpointError):
    """A stage could not take its part of a checkpoint; the failure manager decides what follows.

    ``reason``: the ``CheckpointFailureReason``, where whoever raises it knows better than whoever catches it.
    """

    kind = "declined"

    def __init__(self, message: str, *, reason: object = None) -> None:
        super().__init__(message)
        self.reason = reason


def first_line(cause: object) -> str:
    """Return the first line of an error or a text, at most 500 characters; the name of an error that says nothing."""
    said = str(cause).strip().partition("\n")[0][:500]
    return said or (type(cause).__name__ if isinstance(cause, BaseException) else "")


_NO_DISK = re.compile(
    r"disk is full|disk I/O error|unable to open database file|readonly database|No space left on device"
    r"|Disk quota exceeded|Mkdirs failed to create"
)
"""A disk without room, without inodes, or without the right to write, in the words of systems and databases."""
ROOM = "make room on its disk, or give access to it"


def is_of_disk(said: str) -> bool:
    """Tell whether a refusal is that of a disk that takes nothing more."""
    return _NO_DISK.search(said) is not None


def way_out(cause: str) -> str:
    """Return advice for a refusal that may pass."""
    return f"{ROOM}, then retry" if is_of_disk(cause) else "retry"


def with_room(said: str) -> str:
    """Return the sentence, with the way out where it is of a full disk."""
    return f"{said}; {ROOM}" if is_of_disk(said) else said


def in_words(error: BaseException) -> str:
    """Return the sentence of an error, and its class where it is not the library's."""
    return str(error) if isinstance(error, CheckpointError) else with_room(f"{type(error).__name__}: {error}")


def untraced(error: BaseException) -> BaseException:
    """Return the error, of the library's without its trace: what Python prints is the call, and the sentence."""
    if isinstance(error, CheckpointError) and not shows_traces():
        error.__cause__, error.__suppress_context__ = None, True
        return error.with_traceback(None)
    return error
