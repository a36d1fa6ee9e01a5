"""Patterns and relative paths of file sources that find no file: Spark waits for one, without a word."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from glob import has_magic, iglob
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.core.location import local_path
from dagster_ckpt.spark.attempt.files_read import has_read_files
from dagster_ckpt.spark.attempt.query_sources import relations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["no_files_yet"]

_SOURCE = re.compile(r"FileSource\[(.*)\]")
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
        source = _SOURCE.fullmatch(name)
        path = local_path(source[1]) if source is not None else None
        if path is None or _ONLY_SPARKS.search(path):
            continue
        is_relative = not os.path.isabs(path)
        if (is_relative or has_magic(path)) and not _finds_one(os.path.abspath(path)):
            where = f"; relative paths are those of the process, {os.getcwd()}" if is_relative else ""
            yield f"{title}: no file matches {os.path.abspath(path)}, and there are no rows until one does{where}"


def _finds_one(path: str) -> bool:
    """Tell whether there is a file; a folder is listed up to the first one, because it may be large."""
    folder, wanted = (path, "*") if os.path.isdir(path) else os.path.split(path)
    folders = iglob(folder) if has_magic(folder) else [folder]
    return any(fnmatchcase(name, wanted) for one in folders for name in _names_in(one))


def _names_in(folder: str) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry.name for entry in entries if not entry.name.startswith((".", "_")))
    except OSError:
        return
