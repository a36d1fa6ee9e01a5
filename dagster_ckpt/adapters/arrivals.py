"""Files that have arrived somewhere: how many, how new, and which, in one look."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import fsspec

from dagster_ckpt.errors import Unavailable


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
