"""Keys on any other fsspec file system: object stores (S3, GCS, ABFS, …) and remote folders (SFTP, HDFS, …).

An object store shows an object only when its upload is complete, so a put is atomic. A remote folder is not:
there the content goes to a temporary name, which is then moved. Listings are never cached.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any

import fsspec

from dagster_ckpt.adapters import conditional_put
from dagster_ckpt.adapters.conditional_put import ConditionalPut, has_no_answer, is_refusal
from dagster_ckpt.adapters.local_keys import PARTIAL_PREFIX, partial_name
from dagster_ckpt.core.paths import AlreadyExists, Digest, StoredObject
from dagster_ckpt.digests import digest_bytes, digest_file
from dagster_ckpt.errors import InvalidRequest, OutcomeUnknown, Unavailable, install_extra

_MAY_HAVE = ("abfs", "abfss", "az")
_MARKS = ("hdi_isfolder", "Hdi_isfolder")
"""In the metadata of a folder that is there by itself."""


def with_client(protocol: str, fs: Any, root: str) -> RealFolders | None:
    """Return the folders below ``root`` as fsspec's client sees them; None: the protocol has none."""
    return RealFolders(fs, root) if protocol in _MAY_HAVE else None


class RealFolders:
    """Folders below ``root`` of an Azure account with a hierarchical namespace; ``fs`` is adlfs.

    There they stay when they are empty, and every listing would go through the folders of all checkpoints and batches
    that ever were: so they are removed behind the last object in them. Whether an account has them is proved at first
    use: a file is put into a folder that nobody has made.
    """

    def __init__(self, fs: Any, root: str) -> None:
        self._fs, self._root = fs, root
        self._are_real: bool | None = None
        self._asking = Lock()

    def are_real(self) -> bool:
        """Tell whether folders are there by themselves; asked once, and again where the account was not reached."""
        with self._asking:
            if self._are_real is None:
                try:
                    self._are_real = self._is_made_by_a_file()
                except Exception as error:
                    self._are_real = None if has_no_answer(error) else False
            return bool(self._are_real)

    def remove_empty(self, folder: str) -> None:
        """Remove a folder, and those it is in, as far as they are empty: one that is not refuses."""
        while folder not in ("", "."):
            try:
                self._fs.rm_file(f"{self._root}/{folder}")
            except FileNotFoundError:
                pass  # another deletion was faster
            except Exception:  # not empty, or it may not be removed: nothing depends on it
                return
            folder = str(PurePosixPath(folder).parent)

    def is_one(self, path: str) -> bool:
        """Tell whether a path is a folder: reading one gives nothing, and no error."""
        return bool(self._fs.info(path, refresh=True)["type"] == "directory")

    def _is_made_by_a_file(self) -> bool:
        folder = f"{self._root}/{partial_name()}"
        file = f"{folder}/{partial_name()}"
        self._fs.pipe_file(file, b"")
        try:
            metadata = self._fs.info(folder, refresh=True).get("metadata") or {}
        finally:
            for path in (file, folder):
                with suppress(Exception):
                    self._fs.rm_file(path)
        return any(mark in metadata for mark in _MARKS)


_FLAT = frozenset(
    {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "r2", "tos", "memory"}
)
"""Protocols without folders, whose put shows all bytes or none."""

_S3 = ("s3", "s3a")
EXTRAS = {
    **dict.fromkeys(_S3, "s3"),
    **dict.fromkeys(("abfs", "abfss", "az"), "azure"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
}
"""What of this package installs the client of a protocol."""
_CLIENTS = {"s3": "s3fs", "azure": "adlfs", "gcs": "gcsfs"}
"""What of an extra is imported."""


def client_of(uri: str) -> tuple[str, str] | None:
    """Return the package that reaches a URI, and the extra that installs it; None: for a path, or another protocol."""
    extra = EXTRAS.get(uri.partition("://")[0]) if "://" in uri else None
    return None if extra is None else (_CLIENTS[extra], extra)


_READ_WHOLE = 8 * 1024 * 1024
"""Bytes of a file that is read into memory before it is sent."""
_ONE_PUT = 64 * 1024 * 1024
"""Bytes that go to a store in one request; whether a store honors the condition of an upload in parts is not proved."""
_FOLDER_TRIES = 5
_PARALLEL_DELETIONS = 16


TRIES, ROUNDS = 4, 2
"""Of one call to S3: botocore's, with growing pauses, in each of s3fs's, which also reads a broken answer again."""
_TRIES_OF_AWS = ("AWS_MAX_ATTEMPTS", "AWS_RETRY_MODE")


class RemoteKeys:
    """Raw operations below ``uri``; failures are the fsspec client's own."""

    def __init__(self, uri: str, options: dict[str, Any]) -> None:
        self._uri = uri
        self._protocol = uri.partition("://")[0]
        self._options = options
        self._is_flat = self._protocol in _FLAT
        self._root = ""
        self._lock = Lock()
        self._pid = 0
        self._fs: Any = None
        self._exclusive: ConditionalPut | None = None
        self._folders: RealFolders | None = None

    @property
    def fs(self) -> Any:
        """The fsspec client, made at first use in each process: clients do not survive a fork."""
        with self._lock:
            if self._fs is None or self._pid != os.getpid():
                self._fs, self._root = self._connect()
                self._exclusive = conditional_put.with_client(self._protocol, self._fs, self._root)
                self._folders = with_client(self._protocol, self._fs, self._root)
                self._pid = os.getpid()
            return self._fs

    def _connect(self) -> tuple[Any, str]:
        bounded = with_bounded_tries(self._protocol, self._options)
        try:
            fs, root = fsspec.core.url_to_fs(
                self._uri, skip_instance_cache=True, use_listings_cache=False, **bounded
            )
        except ImportError as error:
            extra = EXTRAS.get(self._protocol)
            hint = f": {install_extra(extra)}" if extra else ""
            raise InvalidRequest(f"{self._protocol}:// needs another package ({error}){hint}") from error
        except (TypeError, ValueError) as error:
            raise InvalidRequest(
                f"{self._uri!r} cannot be opened by fsspec ({_said(error)}): check the URI and the storage's options"
            ) from error
        if bounded is not self._options:
            fs.retries = ROUNDS
        return fs, str(root).rstrip("/")

    def create(self, key: str, source: bytes | Path) -> Digest | AlreadyExists:
        """Store the content; a missing source raises FileNotFoundError with the source's name."""
        if isinstance(source, Path) and source.stat().st_size <= _READ_WHOLE:
            source = source.read_bytes()  # once: what is stored is what the digest is of
        digest = digest_file(source) if isinstance(source, Path) else digest_bytes(source)
        exclusive = self._exclusive_for(digest.size)
        if exclusive is None and self.fs.exists(self._path(key)):
            return AlreadyExists(key)
        try:
            if exclusive is None:
                self._put(key, source)
            elif not exclusive.put(self._path(key), source):
                return AlreadyExists(key)
            size = digest.size if exclusive and isinstance(source, bytes) else self._size(key)
        except Exception as error:
            if is_refusal(error):
                raise
            return self._read_back(key, digest, error)
        if size != digest.size:
            with suppress(Exception):
                self.fs.rm_file(self._path(key))
            raise Unavailable(
                f"{size} of {digest.size} bytes of {key!r} arrived; it was removed again: retry"
            )
        return digest

    def read(self, key: str) -> bytes:
        """Return the whole content."""
        content: bytes = self.fs.cat_file(self._path(key))
        if not content:
            self._refuse_folder(key)
        return content

    def fetch(self, key: str, target: Path, expected: Digest) -> Digest:
        """Bring the content to ``target`` if it is as expected; return the digest of what was found."""
        beside = target.with_name(partial_name())
        try:
            self.fs.get_file(self._path(key), str(beside))
            if not beside.stat().st_size:
                self._refuse_folder(key)
            digest = digest_file(beside)
            if digest == expected:
                os.replace(beside, target)
        finally:
            beside.unlink(missing_ok=True)
        return digest

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield every key below ``prefix``."""
        fs = self.fs
        folder, below = (self._path(prefix) if prefix else self._root), {}
        if prefix and self._protocol in _S3:  # else two requests more, for an object of the folder's own name
            folder, below = self._root, {"prefix": f"{prefix}/"}
        try:
            found = fs.find(folder, detail=True, withdirs=False, **below)
        except FileNotFoundError:
            return
        if not isinstance(found, dict):  # adlfs names an object itself; below it there is none
            return
        for path, info in found.items():
            if info["type"] == "directory":
                continue
            key = path.removeprefix(f"{self._root}/")
            # An object store may report an object whose name is the prefix itself.
            is_below = not prefix or key.startswith(f"{prefix}/")
            if is_below and not PurePosixPath(key).name.startswith(PARTIAL_PREFIX):
                yield StoredObject(key, info["size"])

    def delete(self, keys: Sequence[str]) -> None:
        """Remove these objects one by one (a bulk call would expand '*' in a key), then empty folders."""
        with ThreadPoolExecutor(min(_PARALLEL_DELETIONS, max(1, len(keys)))) as pool:
            list(pool.map(self._remove, keys))
            folders = {str(PurePosixPath(key).parent) for key in keys}
            if self._folders is not None and self._folders.are_real():
                list(pool.map(self._folders.remove_empty, folders))
        if not self._is_flat:
            for folder in folders:
                self._prune(folder)

    # --- parts ----------------------------------------------------------------------------------------------

    def _exclusive_for(self, size: int) -> ConditionalPut | None:
        """Return the put that creates an object of that size exclusively; None: the name is looked up first."""
        _ = self.fs  # connected
        if self._exclusive is None or size > _ONE_PUT or not self._exclusive.is_honored():
            return None
        return self._exclusive

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _refuse_folder(self, key: str) -> None:
        if self._folders is not None and self._folders.is_one(self._path(key)):
            raise IsADirectoryError(errno.EISDIR, "this is a folder", key)

    def _size(self, key: str) -> int:
        return int(self.fs.info(self._path(key))["size"])

    def _put(self, key: str, source: bytes | Path) -> None:
        path = self._path(key)
        if self._is_flat:
            self._upload(source, path)
            return
        for remaining in reversed(range(_FOLDER_TRIES)):
            try:
                self._put_aside(source, path)
            except (FileNotFoundError, FileExistsError):
                if not remaining:
                    raise
                # A deletion beside it took the folder away, because it was empty at that moment (to makedirs it
                # existed, and then it did not).
                continue
            return

    def _put_aside(self, source: bytes | Path, path: str) -> None:
        folder = str(PurePosixPath(path).parent)
        self.fs.makedirs(folder, exist_ok=True)
        partial = f"{folder}/{partial_name()}"
        try:
            self._upload(source, partial)
            self.fs.mv(partial, path)
        finally:
            with suppress(Exception):
                self.fs.rm_file(partial)

    def _upload(self, source: bytes | Path, path: str) -> None:
        if isinstance(source, Path):
            self.fs.put_file(str(source), path)
        else:
            self.fs.pipe_file(path, source)

    def _read_back(self, key: str, expected: Digest, error: Exception) -> Digest | AlreadyExists:
        """Read back a put that failed: its answer may have been lost on the way."""
        try:
            if not self.fs.exists(self._path(key)):
                raise FileNotFoundError(key)
            with tempfile.TemporaryDirectory() as folder:
                found = self.fetch(key, Path(folder) / "found", expected)
        except FileNotFoundError:
            raise Unavailable(
                f"{key!r} was not stored in checkpoint storage {self._uri} ({_said(error)}): retry, and check that "
                "the bucket or folder exists"
            ) from error
        except Exception as second:
            raise OutcomeUnknown(
                f"whether {key!r} was stored in checkpoint storage {self._uri} could not be found out "
                f"({_said(error)}; then {_said(second)})"
            ) from error
        return expected if found == expected else AlreadyExists(key)

    def _remove(self, key: str) -> None:
        with suppress(FileNotFoundError):
            self.fs.rm_file(self._path(key))

    def _prune(self, folder: str) -> None:
        while folder not in (".", ""):
            try:
                if self.fs.ls(self._path(folder), detail=False):
                    return
                self.fs.rmdir(self._path(folder))
            except FileNotFoundError:
                pass
            except OSError:
                return
            folder = str(PurePosixPath(folder).parent)


def with_bounded_tries(protocol: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with few tries for S3, unless they or the environment say how many.

    s3fs tries five times what botocore tries five times: up to fifty requests, to a store that asks for fewer.
    """
    said = "config_kwargs" in options or any(name in os.environ for name in _TRIES_OF_AWS)
    if protocol not in _S3 or said:
        return options
    return {**options, "config_kwargs": {"retries": {"mode": "standard", "total_max_attempts": TRIES}}}


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().replace("\n", " ")[:300]
