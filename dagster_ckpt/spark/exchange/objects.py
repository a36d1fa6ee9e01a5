"""A folder of an object store, as tasks reach it: with pyarrow alone, which every executor has for Spark's sake.

Whatever is written has a name that nobody else chooses and is never written again, so no store needs to refuse a second
creation here; a put shows all bytes or none.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import Corrupt, InvalidRequest, Unavailable, without_signatures
from dagster_ckpt.spark.files import TEMPORARY_PREFIX

if TYPE_CHECKING:
    import pyarrow.parquet as pq

T = TypeVar("T")

READ_WHOLE = 32 * 1024 * 1024
"""Bytes of a file that is read with one request."""
READ_AHEAD = 4
"""Files that are on their way while the rows of another are used."""
_TRIES = 5
_PAUSES = (0.1, 0.3, 1.0)
"""Seconds before a read is tried again."""
_PIECE = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RemoteFolder:
    """A folder by its URI (``s3://``, ``gs://``, ``abfss://``, ``file://``), and how to reach it."""

    uri: str
    """Without a slash at the end."""
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Arguments of pyarrow's file system; secrets may be among them."""

    @property
    def text(self) -> str:
        """All of it as text, secrets too."""
        return json.dumps([self.uri, dict(self.settings)])

    @classmethod
    def parse(cls, text: str) -> RemoteFolder:
        """Return the folder that ``text`` was made of."""
        uri, settings = parse_json(text)
        return cls(uri, tuple(settings.items()))

    def below(self, key: str) -> RemoteFolder:
        """Return a folder in this one."""
        return RemoteFolder(f"{self.uri}/{key}", self.settings)

    @contextmanager
    def write(self, key: str) -> Iterator[Any]:
        """Open a new object for writing; it is whole once it is closed."""
        store, path = self._at(key)
        with _discreet(), store.open_output_stream(path) as stream:
            yield stream

    def read(self, key: str) -> bytes:
        """Return an object's content. Raises FileNotFoundError."""
        store, path = self._at(key)

        def read() -> bytes:
            with store.open_input_file(path) as handle:
                return bytes(handle.readall())

        return _patiently(read)

    def upload(self, source: Path, key: str) -> None:
        """Store a local file's content."""
        with _told(f"writing {self.uri}/{key}"), source.open("rb") as file, self.write(key) as target:
            shutil.copyfileobj(file, target, _PIECE)

    def download(self, key: str, target: Path, *, size: int) -> None:
        """Bring an object to a local file. Raises Corrupt where it is gone, or has another size."""
        aside = target.with_name(f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}")
        store, path = self._at(key)

        def copy() -> None:
            with store.open_input_file(path) as source, aside.open("wb") as file:
                shutil.copyfileobj(source, file, _PIECE)

        try:
            with _told(f"reading {self.uri}/{key}"):
                _patiently(copy)
            if aside.stat().st_size != size:
                raise Corrupt(
                    f"{self.uri}/{key} has {aside.stat().st_size} bytes, and {size} were written to it"
                )
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)

    def parquet_files(self, keys: Sequence[str]) -> Iterator[pq.ParquetFile]:
        """Yield these files in order, opened; the next are on their way meanwhile. Raises Corrupt for a lost one."""
        with ThreadPoolExecutor(READ_AHEAD) as pool:
            todo = iter(keys)
            waiting = deque(pool.submit(self._opened, key) for key in islice(todo, READ_AHEAD))
            while waiting:
                file = waiting.popleft().result()
                waiting.extend(pool.submit(self._opened, key) for key in islice(todo, 1))
                with file:
                    yield file

    def _opened(self, key: str) -> pq.ParquetFile:
        import pyarrow as pa
        import pyarrow.parquet as pq

        store, path = self._at(key)

        def opened() -> pq.ParquetFile:
            handle = store.open_input_file(path)
            if handle.size() > READ_WHOLE:
                return pq.ParquetFile(handle, pre_buffer=True)
            with handle:
                return pq.ParquetFile(pa.BufferReader(handle.read_buffer()))

        with _told(f"reading {self.uri}/{key}"):
            return _patiently(opened)

    def connected(self) -> tuple[Any, str]:
        """Return pyarrow's file system, and the path of this folder in it."""
        scheme, _, rest = self.uri.partition("://")
        bucket, _, folder = rest.partition("/")
        store, top = _connected(scheme, bucket, self.settings, os.getpid())
        return store, f"{top}/{folder}"

    def _at(self, key: str) -> tuple[Any, str]:
        store, path = self.connected()
        return store, f"{path}/{key}"


def s3_client(**settings: Any) -> Any:
    """Return pyarrow's client of S3. Small files go up with one request, not in parts, which are three."""
    import pyarrow.fs as pafs

    try:
        return pafs.S3FileSystem(**settings, allow_delayed_open=True)
    except TypeError:  # an older pyarrow
        return pafs.S3FileSystem(**settings)


@lru_cache(maxsize=64)
def _connected(
    scheme: str, bucket: str, settings: tuple[tuple[str, str], ...], _process: int
) -> tuple[Any, str]:
    """Return a bucket's file system and its path there, made once in a process: connections do not survive a fork."""
    import pyarrow as pa
    import pyarrow.fs as pafs

    try:
        if scheme in ("s3", "s3a"):
            tries = pafs.AwsStandardS3RetryStrategy(max_attempts=_TRIES)
            given: dict[str, Any] = {**dict(settings), "retry_strategy": tries}
            if "anonymous" in given:
                given["anonymous"] = given["anonymous"] == "true"
            return s3_client(**given), bucket
        if scheme == "file":
            return _Folders(), bucket
        if scheme in ("abfs", "abfss"):
            return pafs.AzureFileSystem(**dict(settings)), bucket.partition("@")[0]
        given = dict(settings)
        return pafs.GcsFileSystem(**{**given, "anonymous": given.get("anonymous") == "true"}), bucket
    except (AttributeError, TypeError) as error:  # built without that store, or before it took such a setting
        raise InvalidRequest(
            f"pyarrow {pa.__version__} cannot reach {scheme}://{bucket} ({error}): install a newer pyarrow on "
            "driver and executors"
        ) from error
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise InvalidRequest(f"pyarrow cannot reach {scheme}://{bucket}: {error}") from error


class _Folders:
    """A local folder that looks like an object store: a name may be written without its folder being made."""

    def open_input_file(self, path: str) -> Any:
        import pyarrow as pa

        return pa.OSFile(path, "rb")

    @contextmanager
    def open_output_stream(self, path: str) -> Iterator[Any]:
        import pyarrow as pa

        Path(path).parent.mkdir(parents=True, exist_ok=True)
        aside = f"{path}.{os.urandom(8).hex()}"
        with pa.OSFile(aside, "wb") as stream:
            yield stream
        Path(aside).replace(path)


def _patiently(read: Callable[[], T]) -> T:
    """Return the bytes of a read, asked for again where it fails.

    Amazon's client does not repeat every answer *503 SlowDown*: one that is longer than what was asked for ends it.
    """
    with _discreet():
        for pause in _PAUSES:
            try:
                return read()
            except FileNotFoundError:
                raise
            except OSError:
                time.sleep(pause)
        return read()


@contextmanager
def _discreet() -> Iterator[None]:
    """Let no error of a client repeat a signature: at Azure, pyarrow's tell the whole URL."""
    try:
        yield
    except OSError as error:
        said = tuple(without_signatures(word) if isinstance(word, str) else word for word in error.args)
        if said == error.args:
            raise
        raise type(error)(*said) from None


@contextmanager
def _told(what: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError as error:
        raise Corrupt(
            f"{what} failed: it is gone. Restore the pipeline from its latest checkpoint"
        ) from error
    except pa.ArrowInvalid as error:
        raise Corrupt(f"{what} failed: {error}. Restore the pipeline from its latest checkpoint") from error
    except OSError as error:
        raise Unavailable(
            f"{what} failed: {error}. Retry, and check that the object store is reachable"
        ) from error
