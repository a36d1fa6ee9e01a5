"""Checkpoint storage at any fsspec URI: checks keys, chooses how to store, and says what failures mean."""

from __future__ import annotations

import builtins
import errno
import hashlib
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from os.path import abspath, expanduser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec

from dagster_ckpt.adapters.conditional_put import is_refusal, lacks_credentials
from dagster_ckpt.adapters.local_keys import PARTIAL_PREFIX, Durability, LocalKeys
from dagster_ckpt.adapters.remote_keys import RemoteKeys
from dagster_ckpt.core.paths import (
    AlreadyExists,
    Digest,
    StoredObject,
    checked_relative,
    is_in_store,
    local_path,
    scheme_of,
)
from dagster_ckpt.errors import CheckpointError, Corrupt, InvalidRequest, NotFound, Unavailable

__all__ = ["Durability", "FsspecCheckpointStorage", "open_storage"]

_LOCAL = "file://"
_OPTIONS = re.compile(r"[?;][^/]*=")
"""Of a URL: a signature, a token, a key."""


class FsspecCheckpointStorage:
    """A CheckpointStorage below ``uri``: a local path, or any URI that fsspec and its installed clients know.

    ``options`` (credentials, ``endpoint_url``, …) go to the fsspec client and are stored nowhere; what is not
    given, the client reads from the environment. Local folders take their own, faster way, with hard links;
    there ``durability`` says whether content is synced to disk before it becomes visible. Constructing one does
    no I/O.
    """

    def __init__(self, uri: str, *, durability: Durability = Durability.POWER_LOSS, **options: Any) -> None:
        self.base_uri = _normalised(uri)
        self._keys: LocalKeys | RemoteKeys = (
            LocalKeys(Path(self.base_uri.removeprefix(_LOCAL) or "/"), durability)
            if self.base_uri.startswith(_LOCAL)
            else RemoteKeys(self.base_uri, options)
        )

    def __repr__(self) -> str:
        return f"FsspecCheckpointStorage({self.base_uri!r})"

    def create(self, key: str, source: bytes | Path) -> Digest | AlreadyExists:
        """Store bytes, or a local file's content, under a new key.

        Raises FileNotFoundError where the local file itself is gone: that is the caller's to judge.
        """
        _checked(key)
        try:
            with self._classifying("store", key):
                return self._keys.create(key, source)
        except (NotFound, Unavailable) as error:
            if isinstance(source, Path) and not source.exists():
                raise FileNotFoundError(errno.ENOENT, "the file to store is gone", str(source)) from error
            if isinstance(error, NotFound):
                raise Unavailable(f"{error}; does the bucket or the base folder exist?") from error
            raise

    def read(self, key: str) -> bytes:
        """Return the whole content. Raises NotFound, Unavailable."""
        with self._classifying("read", _checked(key)):
            return self._keys.read(key)

    def fetch(self, key: str, target: Path, expected: Digest) -> None:
        """Bring the content to a local file, verified; a hard link where that is the same file system.

        Raises NotFound, Unavailable, or Corrupt when size or checksum differ; then ``target`` is not written.
        """
        with self._classifying("fetch", _checked(key)):
            found = self._keys.fetch(key, target, expected)
        if found != expected:
            raise Corrupt(
                f"{key!r} in checkpoint storage {self.base_uri} is damaged: {expected.size} bytes with "
                f"{expected.checksum} were stored, {found.size} bytes with {found.checksum} are there; "
                "restore from another checkpoint or savepoint"
            )

    def list(self, prefix: str) -> Iterable[StoredObject]:
        """Yield every object below ``prefix`` (``""``: every object), in no particular order."""
        return self._listed(_checked(prefix) if prefix else "")

    def delete(self, keys: Sequence[str]) -> None:
        """Remove exactly these keys and the folders they leave empty; missing keys are no error."""
        checked = [_checked(key) for key in keys]
        if checked:
            with self._classifying("delete", checked[0]):
                self._keys.delete(checked)

    def check_writable(self) -> None:
        """Store, read back and remove a small object; raises Unavailable, one sentence, where that fails."""
        key = f"dagster-ckpt-check-{uuid.uuid4().hex}"
        content = key.encode()
        try:
            self.create(key, content)
            found = self.read(key)
            self.delete([key])
        except CheckpointError as error:
            raise Unavailable(f"checkpoint storage {self.base_uri} cannot be used: {error}") from error
        if found != content:
            raise Unavailable(f"checkpoint storage {self.base_uri} does not return what was written to it")

    def _listed(self, prefix: str) -> Iterator[StoredObject]:
        with self._classifying("list", prefix):
            found: builtins.list[StoredObject] = [*self._keys.list(prefix)]
        yield from found

    @contextmanager
    def _classifying(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:
            raise _classified(error, verb, key, self.base_uri) from error


def open_storage(uri: str, **options: Any) -> FsspecCheckpointStorage:
    """Return the checkpoint storage at ``uri``; options as in FsspecCheckpointStorage. Does no I/O."""
    return FsspecCheckpointStorage(uri, **options)


def _normalised(uri: str) -> str:
    """Return the URI without a trailing slash, a local path as an absolute ``file://`` URI."""
    if is_in_store(uri):
        raise InvalidRequest(
            f"{uri!r} is in a coordinator store: open it through that, as CheckpointCoordinatorResource.open_storage "
            "and SqlCoordinatorStore.checkpoint_storage do"
        )
    if "::" in uri:
        raise InvalidRequest("chained URIs (with ::) cannot hold checkpoints: name the storage itself")
    path = local_path(uri)
    if path is not None and scheme_of(path):
        raise InvalidRequest(
            f"the storage URI begins with {scheme_of(path)}:/ and one slash: write {scheme_of(path)}://"
        )
    if path == "":
        raise InvalidRequest("the storage URI is empty: name a folder or a bucket")
    if path is not None:
        return f"{_LOCAL}{abspath(expanduser(path))}".rstrip("/")
    protocol, _, rest = uri.partition("://")
    if not rest.strip("/"):
        raise InvalidRequest(f"{uri!r} names no bucket or folder to hold checkpoints")
    if _names_a_secret(protocol, uri):
        raise InvalidRequest(
            f"the {protocol}:// URI contains a password, and URIs are recorded with checkpoints: "
            "pass it as an option or through the environment"
        )
    if _OPTIONS.search(rest):
        raise InvalidRequest(
            f"the {protocol}:// URI contains options (a signature, a token), and URIs are recorded with checkpoints: "
            "pass them as options of the storage (sas_token, token, secret, …) or through the environment"
        )
    return uri.rstrip("/")


def _names_a_secret(protocol: str, uri: str) -> bool:
    """Tell whether a password stands before the host; a token may stand there alone, a user or a container may not."""
    if "@" not in uri:
        return False
    parts = urlsplit(uri)
    return bool(parts.password) or (protocol.startswith("http") and parts.username is not None)


def _checked(key: str) -> str:
    if key.rpartition("/")[2].startswith(PARTIAL_PREFIX):
        raise InvalidRequest(
            f"{key!r}: names that begin with {PARTIAL_PREFIX!r} are kept for unfinished files"
        )
    return checked_relative(key)


def _classified(error: Exception, verb: str, key: str, base_uri: str) -> CheckpointError:
    """Return the error that a client's failure means: NotFound, or Unavailable with the way out."""
    what = f"could not {verb} {key!r} in checkpoint storage {base_uri}"
    cause = f"{type(error).__name__}: {error}".replace("\n", " ")
    match error:
        case FileNotFoundError() | IsADirectoryError():
            return NotFound(f"{key!r} does not exist in checkpoint storage {base_uri}")
        case NotADirectoryError():
            return InvalidRequest(f"{what}: a part of that key is itself an object")
        case _ if is_refusal(error):
            advice = "check the permissions or credentials"
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            advice = "free some space"
        case _ if lacks_credentials(error):
            advice = "give credentials as options or through the environment"
        case _:
            advice = "retry, and check that the storage is reachable"
    return Unavailable(f"{what} ({cause}); {advice}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Files at some places at one moment."""

    count: int
    newest: float
    """When the newest was written, in seconds since the Unix epoch; 0: there is none, or the storage does not say."""
    digest: str
    """Of their names and sizes and times."""


def look_at(paths: Sequence[str], options: Mapping[str, Any]) -> Arrivals:
    """Return the files at some globs; names with ``.`` or ``_`` first do not count, as Spark skips them.

    Raises Unavailable: the storage cannot be asked now.
    """
    found: list[tuple[str, float, int]] = []
    for path in paths:
        try:
            own = options if "://" in path else {}
            system, pattern = fsspec.core.url_to_fs(path, **own)
            system.invalidate_cache()
            listed = system.glob(pattern, detail=True)
        except Exception as error:  # each file system raises errors of its own
            raise Unavailable(f"the files at {path} cannot be listed: {error}") from error
        for name, info in listed.items():
            if info.get("type") == "file" and not name.rpartition("/")[2].startswith((".", "_")):
                found.append((name, _written(info), int(info.get("size") or 0)))
    digest = hashlib.sha256(repr(sorted(found)).encode()).hexdigest()[:16]
    return Arrivals(count=len(found), newest=max((when for _, when, _ in found), default=0.0), digest=digest)


def _written(info: Mapping[str, Any]) -> float:
    when = info.get("mtime") or info.get("LastModified") or info.get("updated") or 0.0
    if isinstance(when, datetime):
        return when.timestamp()
    return float(when) if isinstance(when, int | float) else 0.0
