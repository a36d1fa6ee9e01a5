"""Files that a query's file sources have read, and what became of them: Spark reads a path once, whatever lies there.

Of a folder that was moved, copied, or is reached by another path (a link) it reads all files again. Without a pattern
it refuses the new folder ("Wrong basePath"); of ``/old/*.json`` made ``/new/*.json`` it says nothing. A file that is
written again, or gets rows, it passes over.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from glob import has_magic, iglob
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.paths import SAME_STORES, local_path
from dagster_ckpt.spark.plan.sources import relations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


LOOKED_AT = 200
"""Files that were read last, of each source: more would be asked of the file system for nothing."""
FIRST_ROWS = 20
"""Rows of a file of JSON that are asked for its columns: one leaves out what is null in it."""
SHOWN_COLUMNS = 6
_PARSED_OTHERWISE = {"multiline", "mode", "encoding", "charset", "linesep", "columnnameofcorruptrecord"}
_CORRUPT = "_corrupt_record"
_MORE_THAN_JSON = re.compile(rb"'|NaN|Infinity|INF")
"""What Spark parses beside JSON."""
_HEAD = 64 * 1024
_TAIL = 256 * 1024
"""Bytes at the end of an entry: every tenth one has all files that were ever read, the newest last."""
_SOURCE = re.compile(r"FileSource\[(?:([a-z][a-z0-9+.-]*):(?://([^/]*))?)?(/.*)\]")
"""As plans name a source: its path as it is, ``#``, ``?`` and ``%`` included."""
_PATTERN = re.compile(r"[*?\[{]")


def why_moved(query_dir: Path, before: Sequence[str], now: Sequence[str]) -> str:
    """Return which file that was read lies where a changed source would read it again; empty: none is known."""
    for old, new in zip(before, now, strict=False):
        if read := _by_another_scheme(query_dir, old, new):
            return read
        folders = _folder(old), _folder(new)
        if folders[0] == folders[1] or None in folders:
            continue
        was, is_now = map(str, folders)
        for path, modified in _read_files(query_dir):
            moved = is_now + path.removeprefix(was)
            if path.startswith(f"{was}/") and _time_of(moved) == modified and _may_be_the_same(path, moved):
                return f"{path}, which was read, lies at {moved} now"
    return ""


class _ReadPlace(NamedTuple):
    """Where a source reads, or a file lies."""

    scheme: str
    store: str
    path: str

    @property
    def is_here(self) -> bool:
        """True on this machine's file system."""
        return self.scheme in ("", "file")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.store}{self.path}"


def _by_another_scheme(query_dir: Path, old: str, new: str) -> str:
    """Return which file of a bucket was read where only the scheme of its URI differs: Spark knows files by URIs."""
    was, now = _source(old), _source(new)
    if was is None or now is None or was.scheme == now.scheme:
        return ""
    same = [(SAME_STORES.get(at.scheme, at.scheme), at.store, _fixed(at.path)) for at in (was, now)]
    read = next((place for place, _ in _read_places(query_dir)), None)
    if read is None or same[0] != same[1]:
        return ""
    return f"{read}, which was read, is {read._replace(scheme=now.scheme)} now"


def has_read_files(query_dir: Path) -> bool:
    """Tell whether any file source of the query has read a file."""
    return next(_read_places(query_dir), None) is not None


def written_again(query_dir: Path) -> list[str]:
    """Return the files that were read last and are not as they were read."""
    times: dict[str, int] = {}
    for path, modified in _read_files(query_dir):
        times.setdefault(path, modified)  # the newest: one that was forgotten in between may be read again
    return sorted(path for path, then in times.items() if (now := _time_of(path)) is not None and now != then)


def _folder(source: str) -> str | None:
    """Return the folder of a file source up to the first part that is a pattern; None: it is none of this machine."""
    place = _source(source)
    return None if place is None or not place.is_here else _fixed(place.path)


def _source(source: str) -> _ReadPlace | None:
    found = _SOURCE.fullmatch(source)
    return None if found is None else _ReadPlace(*(part or "" for part in found.groups()))


def _fixed(path: str) -> str:
    fixed = itertools.takewhile(lambda part: not _PATTERN.search(part), Path(path).parts)
    return normpath(Path(*fixed))


def _time_of(path: str) -> int | None:
    """Return the millisecond at which a file was written, which one that was moved keeps; None: there is none."""
    try:
        return Path(path).stat().st_mtime_ns // 1_000_000
    except OSError:
        return None


def _may_be_the_same(path: str, moved: str) -> bool:
    """Tell whether a file of that time is gone from where it was, or is there as well: under two names, or copied."""
    try:
        return Path(path).stat().st_size == Path(moved).stat().st_size
    except OSError:
        return True


def _read_files(query_dir: Path) -> Iterator[tuple[str, int]]:
    """Yield path and time of the files of this machine that were read last, as the logs of file sources have them."""
    return ((place.path, modified) for place, modified in _read_places(query_dir) if place.is_here)


def _read_places(query_dir: Path) -> Iterator[tuple[_ReadPlace, int]]:
    for folder in sorted((query_dir / "sources").glob("*")):
        entries = sorted(
            (path for path in folder.glob("[0-9]*") if path.stem.isdecimal()),
            key=lambda path: -int(path.stem),
        )
        yield from itertools.islice(itertools.chain.from_iterable(map(_lines, entries)), LOOKED_AT)


def _lines(entry: Path) -> Iterator[tuple[_ReadPlace, int]]:
    """Yield place and time of an entry's files, the newest first."""
    with entry.open("rb") as file:
        file.seek(max(0, entry.stat().st_size - _TAIL))
        lines = file.read().decode(errors="replace").splitlines()[1:]  # a version, or a line that was cut
    for line in reversed(lines):
        try:
            record = parse_json(line)
            parts, modified = urlsplit(record["path"]), int(record["timestamp"])
        except (ValueError, KeyError, TypeError):
            return  # of another source: a position
        yield _ReadPlace(parts.scheme, parts.netloc, unquote(parts.path)), modified


# --- no file, or none of its columns --------------------------------------------------------------------------

# Spark says no word of a pattern or a relative path that finds no file, nor of declared columns that no file has.

_FILE_SOURCE = re.compile(r"FileSource\[(.*)\]")
_ONLY_SPARKS = re.compile(r"[{\\]|\[\^")
"""What means something else in Hadoop's patterns than in Python's."""


def no_files_yet(title: str, frame: DataFrame, query_dir: Path) -> Iterator[str]:
    """Yield a warning for each file source that finds nothing, of a query that has not read a file yet.

    ``title``: how people are told of whose rows ``frame`` is. A whole path without a pattern needs no warning: it is
    there, or Spark refuses it.
    """
    if has_read_files(query_dir):
        return
    for name in dict.fromkeys(str(one.sourceName()) for one in relations(frame)):
        source = _FILE_SOURCE.fullmatch(name)
        path = local_path(source[1]) if source is not None else None
        if path is None or _ONLY_SPARKS.search(path):
            continue
        is_relative = not os.path.isabs(path)
        if (is_relative or has_magic(path)) and not _finds_one(os.path.abspath(path)):
            where = f"; relative paths are those of the process, {os.getcwd()}" if is_relative else ""
            yield f"{title}: no file matches {os.path.abspath(path)}, and there are no rows until one does{where}"


def no_such_columns(title: str, frame: DataFrame) -> Iterator[str]:
    """Yield a warning for each file source of JSON or Parquet that makes nulls of its first file: rows, or all columns.

    One file is looked at, on this machine alone: the footer, or the first rows. ``title``: as ``no_files_yet`` has it.
    """
    for one in relations(frame):
        source = _FILE_SOURCE.fullmatch(str(one.sourceName()))
        path = local_path(source[1]) if source is not None else None
        if path is None or _ONLY_SPARKS.search(path):
            continue
        file = _first_file(os.path.abspath(path))
        kind = str(one.dataSource().className()).lower()
        if file and kind == "json" and (row := _no_json(file, one)):
            yield (
                f"{title}: row {row} of {file} is no JSON, and of such a row Spark makes nulls: mend the file (a row "
                'is a line without .option("multiLine", True)), or refuse such rows with .option("mode", "FAILFAST")'
            )
        has = _columns_of(file, kind) if file else []
        declared = [str(name) for name in one.schema().fieldNames() if f"/{name}=" not in str(file)]
        if has and declared and not {name.lower() for name in has} & {name.lower() for name in declared}:
            yield (
                f"{title}: {file} has none of the columns that its source declares ({_few(declared)}), so that they "
                f"are null: its own are {_few(has)}"
            )


def _columns_of(file: str, kind: str) -> list[str]:
    """Return the columns of a file, of JSON those of its first rows; empty: they are not known."""
    try:
        if kind == "parquet":
            from pyarrow import parquet

            return list(parquet.read_schema(file).names)
        if kind != "json":
            return []
        found = [parse_json(line) for line in _first_rows(file) if line.strip()]
        return list(dict.fromkeys(name for row in found if isinstance(row, dict) for name in row))
    except (OSError, ValueError):  # not readable as such: Spark says so, or reads it by an option
        return []


def _no_json(file: str, source: Any) -> int:
    """Return which of a file's first rows Spark cannot parse, counted from 1; 0: none, or an option says what it does.

    Spark takes more than JSON, such as single quotes; what is not sure to be refused is not told.
    """
    options = source.dataSource().options()
    names = {str(name).lower() for name in re.findall(r"(\w+) ->", options.toString())}
    if names & _PARSED_OTHERWISE or any(name.startswith("allow") for name in names):
        return 0
    if any(str(name) == _CORRUPT for name in source.schema().fieldNames()):
        return 0
    try:
        rows = list(_first_rows(file))
        for number, row in enumerate(rows, 1):
            if row.strip() and not _MORE_THAN_JSON.search(row) and not _is_json(row.decode()):
                return number
    except (OSError, UnicodeDecodeError):  # compressed, or of another encoding
        return 0
    return 0


def _is_json(text: str) -> bool:
    try:
        parse_json(text)
    except ValueError:
        return False
    return True


def _first_rows(file: str) -> list[bytes]:
    with open(file, "rb") as rows:
        head = rows.read(_HEAD)
    whole = head if len(head) < _HEAD else head.rpartition(b"\n")[0]
    return whole.splitlines()[:FIRST_ROWS]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names if len(names) <= SHOWN_COLUMNS else [*names[:SHOWN_COLUMNS], "..."])


def _finds_one(path: str) -> bool:
    """Tell whether there is a file; a folder is listed up to the first one, because it may be large."""
    return next(_found(path), None) is not None


def _first_file(path: str) -> str | None:
    """Return a file of a path or pattern, also one below folders of partitions; None: there is none so far."""
    for found in itertools.islice(_found(path), LOOKED_AT):
        if os.path.isfile(found):
            return found
        if (has_magic(path) or "=" in os.path.basename(found)) and (below := _first_file(found)):
            return below
    return None


def _found(path: str) -> Iterator[str]:
    folder, wanted = (path, "*") if os.path.isdir(path) else os.path.split(path)
    folders = iglob(folder) if has_magic(folder) else [folder]
    return (
        os.path.join(one, name) for one in folders for name in _names_in(one) if fnmatchcase(name, wanted)
    )


def _names_in(folder: str) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry.name for entry in entries if not entry.name.startswith((".", "_")))
    except OSError:
        return
