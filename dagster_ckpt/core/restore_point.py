"""Restore points: what a person may write in ``restore_from``, parsed once, where it is written.

Accepted: ``latest``, ``none``, a key (``chk-31``, ``chk-000031``, ``savepoint-7``, or just ``31``), the
name of a known savepoint's folder, and the path or URI of any snapshot's folder or of the ``_metadata``
file in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from dagster_ckpt.core import paths
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.settings import nearest
from dagster_ckpt.errors import InvalidRequest

_KEY = re.compile(r"(?:(chk|savepoint)-)?([0-9]{1,18})", re.IGNORECASE)
_FORMS = (
    "use 'latest', 'none', a key such as 'chk-31' or 'savepoint-7', or the path or URI of a snapshot's "
    "folder or its _metadata file"
)


class Wanted(StrEnum):
    """Kind of snapshot that a key names."""

    CHECKPOINT = "chk"
    SAVEPOINT = "savepoint"
    EITHER = "snapshot"
    """A bare number: ids are never used twice, so it names one snapshot at most."""


@dataclass(frozen=True, slots=True)
class Latest:
    """Go on from where the pipeline stopped."""

    def __str__(self) -> str:
        return "latest"


@dataclass(frozen=True, slots=True)
class Nothing:
    """Begin without any state."""

    def __str__(self) -> str:
        return "none"


@dataclass(frozen=True, slots=True)
class Key:
    """A snapshot the coordinator knows, by number."""

    wanted: Wanted
    checkpoint_id: CheckpointId

    def __str__(self) -> str:
        kind = "" if self.wanted is Wanted.EITHER else f"{self.wanted}-"
        return f"{kind}{self.checkpoint_id}"


@dataclass(frozen=True, slots=True)
class At:
    """A snapshot at a place: any one by its folder's path or URI, a savepoint the coordinator knows by that's name."""

    uri: str
    """Without a trailing slash."""

    @property
    def is_name(self) -> bool:
        """True for the last part of a savepoint's URI alone."""
        return "/" not in self.uri

    def __str__(self) -> str:
        return self.uri


RestorePoint = Latest | Nothing | Key | At
"""What a run starts from; its text is what a person may write."""


def restore_point(given: object) -> RestorePoint:
    """Return the restore point in ``given``, text or point. Raises InvalidRequest with the ways to write one."""
    if isinstance(given, (Latest, Nothing, Key, At)):
        return given
    if not isinstance(given, str):
        raise InvalidRequest(f"restore_from {given!r} is not a restore point: {_FORMS}")
    return _parsed(given)


def _parsed(text: str) -> RestorePoint:
    given = text.strip()
    if given.lower() == "latest":
        return Latest()
    if given.lower() == "none":
        return Nothing()
    if key := _KEY.fullmatch(given):
        number = int(key[2])
        if number < 1:
            raise InvalidRequest(f"restore_from {text!r} names no snapshot: ids start at 1")
        return Key(Wanted(key[1].lower()) if key[1] else Wanted.EITHER, CheckpointId(number))
    if "/" in given:
        return At(_folder_uri(text))
    if given.startswith("savepoint-"):
        return At(given)
    meant = nearest(given.lower(), ("latest", "none"))
    if meant:
        raise InvalidRequest(f"restore_from {text!r}: did you mean {meant!r}?")
    raise InvalidRequest(f"restore_from {text!r} is not a restore point: {_FORMS}")


def _folder_uri(text: str) -> str:
    uri = text.strip().rstrip("/").removesuffix(f"/{paths.METADATA_FILE}").rstrip("/")
    if not uri or uri.endswith(":"):
        raise InvalidRequest(f"restore_from {text!r} does not name a snapshot's folder: {_FORMS}")
    return uri
