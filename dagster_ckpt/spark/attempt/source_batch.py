"""Reads what a source is told about a micro-batch when it decides whether a barrier may follow it."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dagster_ckpt.authoring.stage_settings import SourceBatch
from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import Corrupt, Declined, InvalidRequest, NotFound
from dagster_ckpt.spark.snapshot.capture import read_offsets, shared_logs

_PATTERN = frozenset("{}[]*?\\")
"""Characters that make a path a pattern (SparkHadoopUtil.isGlobPath)."""


def read_source_batch(query_dir: Path, batch_id: BatchId) -> SourceBatch:
    """Read what Spark noted of a batch. Raises Corrupt when the note is gone or damaged, InvalidRequest where a stream
    of files is read twice: which log an offset is of would be guessed.
    """
    try:
        texts = read_offsets(query_dir, batch_id)
        if shared_logs(query_dir / "sources", texts):
            raise InvalidRequest(
                f"the query of {query_dir.parent.name!r} reads a stream of files twice, and Spark keeps one log of "
                f"both. Batch {batch_id} was not written: read it once more with a spark.readStream of its own, or "
                "twice in a stage behind this one"
            )
        before = read_offsets(query_dir, BatchId(batch_id - 1)) if batch_id > 0 else {}
        offsets = {name: parse_json(text) for name, text in texts.items()}
        read = tuple(
            path
            for name, text in texts.items()
            for entry in range(_log_offset(before.get(name, "")) + 1, _log_offset(text) + 1)
            for path in _files_of(query_dir / "sources" / name, entry)
        )
    except InvalidRequest:
        raise
    except (NotFound, Declined, ValueError, OSError) as error:
        raise Corrupt(
            f"batch {batch_id} of {query_dir} cannot be read to find a place for a barrier: {error}"
        ) from error
    return SourceBatch(batch_id=batch_id, offsets=offsets, files=read)


def refuse_names_that_are_patterns(whose: str, query_dir: Path, batch_id: BatchId) -> None:
    """Raise InvalidRequest for a file of a batch whose name Spark would read as a pattern, of whatever fits it.

    Spark lists files by their names and reads them by patterns (DataSource.checkAndGlobPathIfNecessary): rows of files
    that fit would be there twice, and those of this one might be missing.
    """
    if not (query_dir / "sources").is_dir():
        return
    files = read_source_batch(query_dir, batch_id).files
    wrong = [path for path in files if not is_read_as_itself(path)]
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise InvalidRequest(
            f"{whose} would read the file {wrong[0]!r}{more}, and Spark takes the characters {{}}[]*?\\ in it for a "
            "pattern: rows of other files would be read twice. Nothing of the batch was written: rename the file, or "
            "the folder it lies in, and run again"
        )


def is_read_as_itself(path: str) -> bool:
    """Tell whether a path that Spark reads as a pattern is of this file alone: ``?`` and ``*`` fit themselves.

    In the name of a folder: a file that fits may arrive at any moment, another folder with the same file hardly.
    """
    folder, _, name = path.rpartition("/")
    if not _PATTERN.isdisjoint(name):
        return False
    special = _PATTERN.intersection(folder)
    return not special or (special <= set("?*") and glob.glob(path, include_hidden=True) == [path])


def _log_offset(text: str) -> int:
    value = parse_json(text) if text else {}
    return int(value.get("logOffset", -1)) if isinstance(value, dict) else -1


def _files_of(folder: Path, entry: int) -> Iterator[str]:
    """Yield the files of one entry of a file source's log; every tenth is a compaction of all before it."""
    single, compacted = folder / str(entry), folder / f"{entry}.compact"
    path = single if single.exists() else compacted
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        record = parse_json(line)
        if record.get("batchId") == entry:
            yield unquote(urlsplit(record["path"]).path)
