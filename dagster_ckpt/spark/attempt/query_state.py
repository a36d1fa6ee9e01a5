"""State of a stage's query: where it is, and what its source is told of a batch."""

from __future__ import annotations

import glob
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from dagster_ckpt.authoring.stage_settings import SourceBatch
from dagster_ckpt.core.ids import BatchId, StageUid
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import Corrupt, Declined, InvalidRequest, NotFound
from dagster_ckpt.spark.exchange.mounts import exchange_of
from dagster_ckpt.spark.exchange.task_files import is_there, location, move_there, prove_connector
from dagster_ckpt.spark.files import replace_whole, spark_uri
from dagster_ckpt.spark.java.sessions import is_local
from dagster_ckpt.spark.plan.operators import operators_in
from dagster_ckpt.spark.plan.tree import Tree, analyzed, is_streaming, kind_of, walk
from dagster_ckpt.spark.snapshot.capture import read_offsets, shared_logs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_LIMITS = frozenset({"GlobalLimit", "LocalLimit", "Limit"})
"""Operators that count the rows they have let through: state that nobody groups by."""
_NAMES_ITS_FOLDER = "TransformWithState"


def checkpoint_location(
    spark: SparkSession, uid: StageUid, query: Path, frame: DataFrame
) -> tuple[str, dict[str, str]]:
    """Return the checkpointLocation of a query that is about to start, and the settings it takes.

    Tasks write state below it. Where ``work_dir`` is in an object store, and tasks are not of the driver's own process,
    the state goes there. Raises InvalidRequest where it cannot: executors would keep it on their own disks.
    """
    exchange = exchange_of(query)
    if exchange is None:
        return spark_uri(query), {}
    if not is_there(query.parent):
        plan = analyzed(frame)
        if is_local(spark) or (plan is not None and not has_state(plan)):
            return spark_uri(query), {}
        if plan is None or any(kind_of(node).startswith(_NAMES_ITS_FOLDER) for node in walk(plan)):
            raise InvalidRequest(
                f"the state of stage {uid!r} (transformWithState) names the folder it lies in, and work_dir "
                f"{exchange.remote.uri} cannot hold such state yet: give work_dir a folder that all machines mount, or "
                "let one machine run the pipeline (spark.master local[*])"
            )
        prove_connector(spark, uid, query, exchange)
        move_there(query, exchange)
        _write_query_id(query)
    return location(query, exchange)


def _write_query_id(query: Path) -> None:
    """Name a new query before Spark does: it would look into a folder that is no folder of one file system."""
    query.mkdir(parents=True, exist_ok=True)
    if not (query / "metadata").exists():
        replace_whole(
            query / "metadata", json.dumps({"id": str(uuid.uuid4())}, separators=(",", ":")).encode()
        )


def has_state(plan: Tree) -> bool:
    """Tell whether a query keeps state between micro-batches."""
    return bool(operators_in(plan)) or any(map(_is_limit, walk(plan)))


def _is_limit(node: Tree) -> bool:
    return kind_of(node) in _LIMITS and is_streaming(node)


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
