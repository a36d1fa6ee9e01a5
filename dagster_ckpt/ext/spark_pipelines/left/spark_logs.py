"""Logs of files that Spark keeps: those a file source has read, those a table's file sink has written.

One file of JSON lines a batch; every tenth or so (``<n>.compact``) holds all before it as well.
Source: CompactibleFileStreamLog.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import Declined

_SCHEME = re.compile(r"file:/+")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLog:
    """A log as it stood after one batch."""

    newest: int | None
    """Its newest batch; None: it has none."""
    files: frozenset[str]
    """Local paths, or URIs of another file system."""


def read_file_log(folder: Path, *, through: int | None = None) -> FileLog:
    """Return the files of a log, those of batches up to ``through``. Raises Declined for one that is damaged."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    compacted = [int(name.removesuffix(".compact")) for name in names if re.fullmatch(r"\d+\.compact", name)]
    single = [int(name) for name in names if name.isdecimal()]
    newest = max([*single, *compacted], default=None)
    last = newest if through is None else through
    if last is None:
        return FileLog(newest=None, files=frozenset())
    base = max((number for number in compacted if number <= last), default=-1)
    missing = [number for number in range(base + 1, last + 1) if number not in single]
    if missing:
        raise Declined(
            f"{folder} has lost its batch {missing[0]}: its table or source cannot be told any more"
        )
    paths = [folder / f"{base}.compact"] if base >= 0 else []
    paths += [folder / str(number) for number in range(base + 1, last + 1)]
    found: set[str] = set()
    for path in paths:
        for entry in _entries(path):
            name = local_part(str(entry["path"]))
            found.discard(name) if entry.get("action") == "delete" else found.add(name)
    return FileLog(newest=newest, files=frozenset(found))


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    version, *lines = path.read_text(encoding="utf-8").split("\n")
    if version != "v1":
        raise Declined(f"{path} has format {version[:20]!r}, and v1 is known")
    for line in lines:
        if not line:
            continue
        try:
            entry = parse_json(line)
        except ValueError as error:
            raise Declined(f"{path} is damaged: {error}") from error
        if not isinstance(entry, dict) or "path" not in entry:
            raise Declined(f"{path} is damaged: {line[:80]!r} names no file")
        yield entry


def local_part(uri: str) -> str:
    """Return the local path of a URI as Spark writes it; of another file system the URI."""
    return unquote(_SCHEME.sub("/", uri, count=1)) if _SCHEME.match(uri) else uri
