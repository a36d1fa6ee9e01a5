"""Digest of what an attempt left in its working directory: the small files that decide where everything goes on.

A log entry, a committable or a query's note that is lost or put back is not missed by anybody who lists a folder: its
rows would be left out. State files are not in it: Spark tidies them up by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dagster_ckpt.spark.directories import AttemptDirectory, StageDirectory


def digest_of(directory: AttemptDirectory) -> str:
    """Return a digest over names and contents, in order. Raises OSError where one cannot be read."""
    found = hashlib.blake2b(digest_size=16)
    for stage in sorted(
        path for path in directory.root.iterdir() if path.is_dir() and path.name[0] not in "._"
    ):
        for path in _files(StageDirectory(stage)):
            content = path.read_bytes()
            found.update(f"{path.relative_to(directory.root)} {len(content)}\n".encode())
            found.update(content)
    return found.hexdigest()


def _files(stage: StageDirectory) -> Iterator[Path]:
    """Yield positions of the query, entries of the channel log, committables, and the note of what was published."""
    for folder in (stage.query / "offsets", stage.query / "commits", stage.log, stage.prepared):
        with suppress(FileNotFoundError):
            yield from sorted(path for path in folder.iterdir() if path.is_file() and path.name[0] != ".")
    yield from (path for path in (stage.query / "metadata", stage.published) if path.exists())
