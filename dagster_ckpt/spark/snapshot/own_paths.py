"""Absolute paths of its own directory that Spark writes into a checkpoint, put right where it is restored elsewhere.

Spark 4.1 to 4.3 does so in one kind of file: the operator metadata of ``transformWithState``
(``state/<operator>/_metadata/v2/<batch>``, OperatorStateMetadataV2) names its schema files by full path. What they name
lies in the snapshot too, so the part below the directory says which file is meant, wherever it was written.
Any other captured text that names the directory declines the capture: restored, it would lead back to a directory that
may be gone, or that another attempt writes to.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from dagster_ckpt.core.ids import relative_path
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.model import FileEntry, FileKind
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.snapshot.checkpoint_files import Unreadable
from dagster_ckpt.spark.snapshot.state_files import PlannedFile

MAX_TEXT = 256 * 1024
"""Bytes up to which a captured text is searched; those of Spark that could name the directory have a few hundred."""

_TEXTS = frozenset({FileKind.QUERY, FileKind.SOURCE_LOG, FileKind.STATE_SCHEMA})
_OPERATOR_METADATA = re.compile(r"query/(state/\d+)/_metadata/v2/(\d+)")


def refuse_own_paths(root: Path, files: Iterable[PlannedFile]) -> None:
    """Raise Unreadable when a captured text that a restore cannot rewrite names the query's directory."""
    query = str(StageDirectory(root).query)
    names = frozenset({f"{query}/", f"{os.path.realpath(query)}/"})
    for file in files:
        if file.kind not in _TEXTS or file.size > MAX_TEXT or _OPERATOR_METADATA.fullmatch(file.path):
            continue
        if _names(f"{root}/{file.path}", file.stamp, names):
            raise Unreadable(
                f"{file.path} names the directory it lies in, which a restore elsewhere does not have, and this "
                "library does not know how to rewrite it: keep the stage's files outside its working directory"
            )


@lru_cache(maxsize=4096)
def _names(path: str, _stamp: tuple[int, int] | None, names: frozenset[str]) -> bool:
    content = Path(path).read_bytes()
    return any(name.encode() in content for name in names)


def name_directory(built: Path, entries: Sequence[FileEntry], directory: Path) -> None:
    """Let the operator metadata below ``built`` name ``directory``, where it will lie.

    Raises Corrupt when one is damaged, or when the latest of an operator names a schema that the snapshot has not.
    """
    found = [(m[1], int(m[2]), e) for e in entries if (m := _OPERATOR_METADATA.fullmatch(e.path))]
    latest = {operator: max(b for o, b, _ in found if o == operator) for operator, _, _ in found}
    stored = {entry.path for entry in entries}
    for operator, batch, entry in found:
        path = built / entry.path
        needed = stored if batch == latest[operator] else None
        content = _renamed(
            path.read_text(encoding="utf-8", errors="replace"), operator, directory, needed, entry.path
        )
        # Replaced, never edited: the file may be a hard link to the one in checkpoint storage.
        path.unlink()
        path.write_text(content, encoding="utf-8")


def _renamed(text: str, operator: str, directory: Path, stored: Collection[str] | None, name: str) -> str:
    version, _, body = text.partition("\n")
    try:
        content: dict[str, Any] = parse_json(body)
        stores = content["stateStoreInfo"]
        schemas = [_below(path, operator) for store in stores for path in store["stateSchemaFilePaths"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"{name} is no operator metadata of Spark: restore from another checkpoint") from error
    gone = [schema for schema in schemas if stored is not None and f"query/{schema}" not in stored]
    if gone:
        raise Corrupt(
            f"{name} needs the state schema {gone[0]}, which the snapshot does not have: restore from another "
            "checkpoint"
        )
    left = iter(schemas)
    for store in stores:
        store["stateSchemaFilePaths"] = [
            f"file:{StageDirectory(directory.absolute()).query}/{next(left)}"
            for _ in store["stateSchemaFilePaths"]
        ]
    return f"{version}\n{json.dumps(content, separators=(',', ':'), ensure_ascii=False)}"


def _below(path: str, operator: str) -> str:
    """Return a schema file's path below the query's directory; raises ValueError for one of another operator."""
    _, found, rest = path.rpartition(f"/{operator}/_stateSchema/")
    if not found:
        raise ValueError(path)
    return f"{operator}/_stateSchema/{relative_path(rest)}"
