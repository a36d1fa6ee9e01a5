"""State of a stage's query: where it is, objects of the stage's own, what its source is told of a batch.

A batch that Spark repeats begins as it did; where its rows are settled, the state of the try that settled them counts.
"""

from __future__ import annotations

import glob
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from dagster_ckpt.authoring.stage_settings import SourceBatch
from dagster_ckpt.core.ids import BatchId, StageUid
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.metadata_text import decode_state, encode_state
from dagster_ckpt.errors import CheckpointError, Corrupt, Declined, InvalidRequest, NotFound
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.exchange.mounts import exchange_of
from dagster_ckpt.spark.exchange.state import is_there, location, move_there, prove_connector
from dagster_ckpt.spark.files import replace_whole, spark_uri
from dagster_ckpt.spark.java.sessions import is_local
from dagster_ckpt.spark.plan.operators import operators_in
from dagster_ckpt.spark.plan.tree import Tree, analyzed, is_streaming, kind_of, walk
from dagster_ckpt.spark.snapshot.batch_notes import note_states, path_through, read_states
from dagster_ckpt.spark.snapshot.capture import latest_committed_batch, read_offsets, shared_logs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline

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


@dataclass
class OwnObjects:
    """The objects of the stages that run in a query; empty where none declares one."""

    uid: StageUid
    directory: StageDirectory
    objects: dict[StageUid, Any]
    _names: dict[StageUid, tuple[StageUid, ...]]
    _at: Path | None = None
    """Note whose state the objects have; None: they began without."""
    _is_settled: bool = field(default=False)
    """The batch in hand was written before: its rows are not written again."""

    @classmethod
    def of(cls, pipeline: CheckpointedPipeline, uid: StageUid, directory: StageDirectory) -> OwnObjects:
        """Return the objects, each with its state behind the last committed batch.

        Raises InvalidRequest for a saved state whose stage declares none any more, or that its class refuses; Corrupt.
        """
        stages = {one: pipeline.authored.stages[one] for one in pipeline.members(uid)}
        at = path_through(directory, latest_committed_batch(directory.query))
        for name in read_states(at):
            gone = next(
                (s for s in pipeline.authored.stages.values() if name in s.names and s.state is None), None
            )
            if gone is not None:
                raise InvalidRequest(
                    f"stage {gone.uid!r} has a saved state of an object of its own, and declares none (state=): put "
                    "the class back; for the state to go, let its snapshot_state return None for a run"
                )
        made = {one: stage.state() for one, stage in stages.items() if stage.state is not None}
        objects = cls(uid, directory, made, {one: stages[one].names for one in made})
        objects._begin_at(at)
        return objects

    def writer(
        self, write: Callable[[DataFrame, int], None], *, is_settled: Callable[[BatchId], bool]
    ) -> Callable[[DataFrame, int], None]:
        """Return ``write`` with every batch's rows handed to the objects first; ``write`` calls ``note``."""
        if not self.objects:
            return write

        def written(rows: DataFrame, number: int) -> None:
            batch = BatchId(number)
            self._is_settled = is_settled(batch)
            self._go_to(BatchId(number - 1))
            with self._processed(rows, batch) as made:
                write(made, number)
            if self._is_settled:
                self.note(batch)
                self._go_to(batch)

        return written

    def note(self, batch: BatchId) -> None:
        """Write the states down, unless the try that wrote the batch's rows has. Raises InvalidRequest for no JSON."""
        if not self.objects or (self._is_settled and self._is_noted(batch)):
            return
        states: dict[str, str] = {}
        for uid in self.objects:
            state = self._call(uid, "snapshot_state")
            if state is not None:
                states[uid] = encode_state(f"stage {uid!r}", state)
        note_states(self.directory, batch, states)
        self._at = path_through(self.directory, batch)

    def _is_noted(self, batch: BatchId) -> bool:
        path = path_through(self.directory, batch)
        return path is not None and path.stem == str(batch)

    def _go_to(self, batch: BatchId) -> None:
        wanted = path_through(self.directory, batch)
        if wanted != self._at:
            self._begin_at(wanted)

    def _begin_at(self, path: Path | None) -> None:
        saved = read_states(path)
        for uid in self.objects:
            text = next((saved[name] for name in self._names[uid] if name in saved), None)
            self._call(
                uid, "initialize_state", None if text is None else decode_state(f"stage {uid!r}", text)
            )
        self._at = path

    @contextmanager
    def _processed(self, rows: DataFrame, batch: BatchId) -> Iterator[DataFrame]:
        """Yield rows of a batch as the last stage's object returns them; computed once, however often it looks."""
        process = getattr(self.objects.get(self.uid), "process", None)
        if process is None or self._is_settled:
            yield rows
            return
        kept = rows.persist()
        try:
            made = self._call(self.uid, "process", kept, batch)
            made = kept if made is None else made
            if columns_of(made) != columns_of(rows):
                raise InvalidRequest(
                    f"stage {self.uid!r}: process returned the columns {columns_of(made)}, and the stage has "
                    f"{columns_of(rows)}: return these, or None for the rows as they came"
                )
            self.note(batch)  # before the rows are written: a sink's are settled then
            yield made
        finally:
            kept.unpersist()

    def _call(self, uid: StageUid, method: str, *args: Any) -> Any:
        try:
            return getattr(self.objects[uid], method)(*args)
        except CheckpointError:
            raise
        except Exception as error:
            kind = type(self.objects[uid]).__name__
            raise InvalidRequest(
                f"stage {uid!r}: {kind}.{method} failed: {type(error).__name__}: {error}"
            ) from error


def columns_of(rows: Any) -> dict[str, str]:
    """Return the columns of rows, and their types."""
    return {one.name: one.dataType.simpleString() for one in rows.schema.fields}


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
