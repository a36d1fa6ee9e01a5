"""Small file operations that the channel log and the table sink share: whole-or-nothing writes, exclusive
creation, Parquet footers.

All of them work on a local or shared POSIX file system. Standard library only, pyarrow where a footer is
read: Spark's Python workers import this module.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dagster_ckpt.errors import Corrupt, InvalidRequest, OutcomeUnknown, Unavailable

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
R = TypeVar("R")

AS_WRITTEN = {"datetimeRebaseMode": "CORRECTED", "parquet.filter.dictionary.enabled": "false"}
"""Options under which Spark finds in Parquet files what is there: dates before 1582 as they are, and by a condition
that is pushed down zeros of both signs. By a group's list of values it passes over one that has only the other sign.
"""
TEMPORARY_PREFIX = ".tmp-"
_BATCH_FOLDER = re.compile(r"batch-(\d{10})-[0-9a-f]{12}")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK, errno.ENOSYS)


def bounded_by_pyarrow(schema: pa.Schema) -> list[str]:
    """Return the columns whose bounds pyarrow may write into files: of others it leaves NaN out, and by them Spark,
    DuckDB and pyarrow itself pass over groups of rows that have it.
    """
    import pyarrow as pa

    return [column.name for column in schema if not pa.types.is_floating(column.type)]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file with rows in it: its name, the rows it holds and its size in bytes."""

    name: str
    """Relative to the folder its owner names, '/'-separated."""
    rows: int
    bytes: int


def create_exclusively(path: Path, content: bytes) -> bool:
    """Create ``path`` with all of ``content`` unless it exists; True when this call created it.

    Exactly one of several racing callers gets True, and no reader ever sees a part of the file.
    """
    temporary = _written_aside(path, content)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def replace_whole(path: Path, content: bytes, *, durably: bool = True) -> None:
    """Give ``path`` new content; a reader sees the old or the new one, ``durably`` also after a power failure."""
    with _aside(path) as temporary:
        temporary.write_bytes(content)
        if durably:
            flush_to_disk(temporary)
        os.replace(temporary, path)
    if durably:
        flush_to_disk(path.parent)


def link_or_copy(source: Path, target: Path) -> None:
    """Make ``target`` a second name of ``source``, or a whole copy where links are impossible; an existing
    target stays.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError as error:
        if not has_no_links(error):
            raise
        _copied_whole(source, target)


def has_no_links(error: OSError) -> bool:
    """Tell whether a hard link failed because none can be made there."""
    return error.errno in _NO_LINKS


def replace_by_link(source: Path, target: Path) -> None:
    """Make ``target`` show ``source``'s content in one step, whatever it showed before."""
    temporary = target.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
    link_or_copy(source, temporary)
    os.replace(temporary, target)
    # POSIX: renaming onto another name of the same file does nothing and leaves the source behind.
    temporary.unlink(missing_ok=True)


def flush_to_disk(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, survives a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def parquet_files(root: Path, folder: Path) -> tuple[DataFile, ...]:
    """Return the Parquet files below ``folder`` that hold rows, named relative to ``root``, sorted by name.

    Raises Corrupt when one of them has no readable footer.
    """
    found = (
        _footer(root, path)
        for path in sorted(folder.rglob("*.parquet"))
        if not path.name.startswith((".", "_"))
    )
    return tuple(file for file in found if file.rows)


def refresh_listing(folder: Path) -> None:
    """Let a network file system list a folder as it is now, and not as this machine has seen it last.

    An NFS client keeps a listing for up to a minute, unless a change of its own tells it that others have changed it.
    """
    mark = folder / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    with contextlib.suppress(OSError):
        mark.touch()
        mark.unlink()


def local_path(uri: str) -> Path:
    """Return the folder that ``uri`` names on a POSIX file system; raises InvalidRequest for an object store.

    An exclusive create and an atomic rename are what log and table stand on, and object stores lack one or
    both.
    """
    path = uri.removeprefix("file://")
    if "://" in path or not path.startswith("/"):
        raise InvalidRequest(
            f"{uri!r} is not an absolute path or file:// URI: channel logs and two-phase tables need a "
            "local or shared "
            "POSIX file system (atomic rename and exclusive link); give a folder that all machines mount"
        )
    return Path(path)


def spark_uri(path: Path) -> str:
    """Return how Spark is told of a local path: without the scheme it would be one of ``fs.defaultFS``.

    Not ``Path.as_uri()``: Hadoop takes what follows the scheme as it is, and decodes nothing.
    """
    return f"file://{path.absolute()}"


def spark_path(path: Path) -> str:
    """Return the same for Spark's readers, which take patterns: ``shop [1]`` would be read from ``shop 1``."""
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", spark_uri(path))


@contextlib.contextmanager
def classified(what: str) -> Iterator[None]:
    """Turn an OSError of ``what`` into the library's error: Unavailable for a full or refused disk, else
    OutcomeUnknown.
    """
    try:
        yield
    except (Unavailable, OutcomeUnknown):
        raise
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise _without_room(what, error) from error
        raise OutcomeUnknown(
            f"{what} failed and may have happened in part: {error}. Retry it: it is idempotent"
        ) from error


def batch_folder_name(batch_id: int) -> str:
    """Return a fresh folder name for the output of one try of a batch; ``batch_of`` reads the id back."""
    return f"batch-{batch_id:010d}-{uuid.uuid4().hex[:12]}"


def batch_of(name: str) -> int | None:
    """Return the batch id in a folder name that ``batch_folder_name`` made, or None for any other name."""
    found = _BATCH_FOLDER.fullmatch(name)
    return int(found[1]) if found else None


def remove_batch_files(root: Path, names: Iterable[str]) -> None:
    """Remove files named relative to ``root``, with the batch folders that held them (and Spark's side files
    there).
    """
    above = {folder for name in names for folder in Path(name).parents if batch_of(folder.name) is not None}
    for folder in above:
        shutil.rmtree(root / folder, ignore_errors=True)


def remove_files(paths: Iterable[Path]) -> int:
    """Remove exactly these files, missing ones are no error; return how many were there."""
    removed = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            removed += 1
    return removed


def _written_aside(path: Path, content: bytes) -> Path:
    with _aside(path) as temporary:
        temporary.write_bytes(content)
    return temporary


def _copied_whole(source: Path, target: Path) -> None:
    with _aside(target) as temporary:
        shutil.copyfile(source, temporary)
        os.replace(temporary, target)


@contextlib.contextmanager
def _aside(path: Path) -> Iterator[Path]:
    """Yield a new file beside ``path``; of a write that fails nothing is left. Raises Unavailable for a full disk."""
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
    try:
        yield temporary
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno in _NO_ROOM:
            raise _without_room(f"writing {path}", error) from error
        raise


def _without_room(what: str, error: OSError) -> Unavailable:
    return Unavailable(f"{what} failed: {error}. Make room or give access, then retry")


def _footer(root: Path, path: Path) -> DataFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_metadata(path).num_rows
    except pa.ArrowInvalid as error:
        raise Corrupt(
            f"{path} is not a whole Parquet file: {error}. Restart the query: it writes its batch again"
        ) from error
    return DataFile(path.relative_to(root).as_posix(), rows, path.stat().st_size)


# --- many files at once ---------------------------------------------------------------------------------------


def map_in_parallel(work: Callable[[T], R], items: Sequence[T], *, parallelism: int) -> list[R]:
    """Return the results of ``work`` on every item, in their order; failures are as ``run_in_parallel`` tells them."""
    results: dict[int, R] = {}

    def one(place: int) -> None:
        results[place] = work(items[place])

    run_in_parallel(one, range(len(items)), parallelism=parallelism)
    return [results[place] for place in range(len(items))]


def run_in_parallel(work: Callable[[T], None], items: Sequence[T], *, parallelism: int) -> None:
    """Do ``work`` on every item and return when all of it has ended.

    After the first failure no further item begins, and that failure is raised: nothing still runs then.
    """
    failed: list[BaseException] = []

    def one(item: T) -> None:
        if failed:
            return
        try:
            work(item)
        except BaseException as error:
            failed.append(error)

    threads = min(parallelism, len(items))
    if threads <= 1:
        for item in items:
            one(item)
    else:
        with ThreadPoolExecutor(threads, thread_name_prefix="ckpt-files") as pool:
            for item in items:
                pool.submit(one, item)
    if failed:
        raise failed[0]
