"""Files that a query's file sources have read, and what became of them: Spark reads a path once, whatever lies there.

Of a folder that was moved it reads all files again. Without a pattern it refuses the new folder ("Wrong basePath"); of
``/old/*.json`` made ``/new/*.json`` it says nothing. A file that is written again, or gets rows, it passes over.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dagster_ckpt.core.json_text import parse_json

__all__ = ["why_moved", "written_again"]

LOOKED_AT = 200
"""Files that were read last, of each source: more would be asked of the file system for nothing."""
_TAIL = 256 * 1024
"""Bytes at the end of an entry: every tenth one has all files that were ever read, the newest last."""
_SOURCE = re.compile(r"FileSource\[(?:file:(?://)?)?(/.*)\]")
"""As plans name a source: its path as it is, ``#``, ``?`` and ``%`` included."""
_PATTERN = re.compile(r"[*?\[{]")


def why_moved(query_dir: Path, before: Sequence[str], now: Sequence[str]) -> str:
    """Return which file that was read lies where a changed source would read it again; empty: none is known."""
    for old, new in zip(before, now, strict=False):
        folders = _folder(old), _folder(new)
        if old == new or None in folders:
            continue
        was, is_now = map(str, folders)
        for path, modified in _read_files(query_dir):
            moved = is_now + path.removeprefix(was)
            if path.startswith(f"{was}/") and _time_of(moved) == modified and not Path(path).exists():
                return f"{path}, which was read, lies at {moved} now"
    return ""


def written_again(query_dir: Path) -> list[str]:
    """Return those of the files that were read last which are not as they were read."""
    times: dict[str, int] = {}
    for path, modified in _read_files(query_dir):
        times.setdefault(path, modified)  # the newest: one that was forgotten in between may be read again
    return sorted(path for path, then in times.items() if (now := _time_of(path)) is not None and now != then)


def _folder(source: str) -> str | None:
    """Return the folder of a file source up to the first part that is a pattern; None: it is none of this machine."""
    found = _SOURCE.fullmatch(source)
    if found is None:
        return None
    fixed = itertools.takewhile(lambda part: not _PATTERN.search(part), Path(found[1]).parts)
    return str(Path(*fixed))


def _time_of(path: str) -> int | None:
    """Return the millisecond at which a file was written, which one that was moved keeps; None: there is none."""
    try:
        return Path(path).stat().st_mtime_ns // 1_000_000
    except OSError:
        return None


def _read_files(query_dir: Path) -> Iterator[tuple[str, int]]:
    """Yield path and time of the files of this machine that were read last, as the logs of file sources have them."""
    for folder in sorted((query_dir / "sources").glob("*")):
        entries = sorted(
            (path for path in folder.glob("[0-9]*") if path.stem.isdecimal()),
            key=lambda path: -int(path.stem),
        )
        lines = itertools.chain.from_iterable(_lines(path) for path in entries)
        yield from ((path, modified) for path, modified in itertools.islice(lines, LOOKED_AT) if path)


def _lines(entry: Path) -> Iterator[tuple[str, int]]:
    """Yield path and time of an entry's files, the newest first; an empty path: it is in an object store."""
    with entry.open("rb") as file:
        file.seek(max(0, entry.stat().st_size - _TAIL))
        lines = file.read().decode(errors="replace").splitlines()[1:]  # a version, or a line that was cut
    for line in reversed(lines):
        try:
            record = parse_json(line)
            place, modified = urlsplit(record["path"]), int(record["timestamp"])
        except (ValueError, KeyError, TypeError):
            return  # of another source: a position
        yield unquote(place.path) if place.scheme in ("", "file") else "", modified
