"""Derived tables of a pipeline: computed from the published rows, written as one file that is replaced whole.

What one was computed from is written down behind the file. Whoever finds another state of what it reads computes it
again, so a process may die anywhere in between.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.authoring.derived import DerivedTable
from dagster_ckpt.authoring.targets import META_FOLDER
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import Corrupt, Fenced, InvalidRequest, NotFound
from dagster_ckpt.spark.files import flush_to_disk, move_whole, replace_whole, spark_path, spark_uri
from dagster_ckpt.spark.session import session_settings
from dagster_ckpt.spark.sink.port import AttemptId, Sink
from dagster_ckpt.spark.sink.rows import PublishedRows
from dagster_ckpt.spark.table.records import TablePaths

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DerivedFile", "DerivedRows", "Refreshed", "refresh"]

FILE = "part-00000.parquet"
_NOTE = "derived.json"


@dataclass(frozen=True, slots=True)
class Refreshed:
    """A derived table was computed."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class DerivedFile:
    """Where a derived table lies."""

    root: Path
    pipeline: str
    """Whose it is."""

    @property
    def file(self) -> Path:
        """Its rows."""
        return self.root / FILE

    @property
    def meta(self) -> Path:
        """What readers of the folder do not see."""
        return self.root / META_FOLDER

    def note(self) -> dict[str, Any]:
        """Return what the rows were computed from; empty: that is not known."""
        return self._noted() if self.file.is_file() else {}

    def _noted(self) -> dict[str, Any]:
        try:
            found = parse_json((self.meta / _NOTE).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def write_note(self, said: Mapping[str, Any]) -> None:
        """Write down what the rows are computed from; without a ``token``: that is not known."""
        replace_whole(self.meta / _NOTE, json.dumps({"pipeline": self.pipeline, **said}, indent=1).encode())

    def refuse_foreign(self) -> None:
        """Raise InvalidRequest where the folder is another pipeline's, or holds rows that were not computed."""
        owner = self._noted().get("pipeline", self.pipeline)
        if owner != self.pipeline:
            raise InvalidRequest(
                f"{self.root} is computed by pipeline {owner!r}: give {self.pipeline!r} a table_dir of its own"
            )
        computed = {FILE} if (self.meta / _NOTE).is_file() else set()
        others = sorted({path.name for path in self.root.glob("*.parquet")} - computed)
        logs = [
            place for place in (TablePaths(self.root).description, self.root / "_delta_log") if place.exists()
        ]
        if others or logs:
            found = f"Parquet file {others[0]}" if others else str(logs[0].relative_to(self.root))
            raise InvalidRequest(
                f"{self.root} is to hold the rows of {self.root.name!r}, which are computed, and holds those of a "
                f"table ({found}): move that folder away, or give one of the two another name"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other writers out. Raises InvalidRequest for a folder of somebody else's."""
        self.refuse_foreign()
        self.meta.mkdir(parents=True, exist_ok=True)
        with (self.meta / "lock").open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            self.refuse_foreign()
            yield


class DerivedRows(PublishedRows):
    """Rows of a derived table as they are now."""

    def __init__(self, place: DerivedFile) -> None:
        super().__init__(str(place.root))
        self._file = place.file
        if not self._file.is_file():
            raise NotFound(
                f"{place.root} has not been computed yet: its pipeline does that after a checkpoint"
            )

    def to_arrow(self) -> pa.Table:
        """Read the file."""
        import pyarrow.parquet as pq

        return pq.ParquetFile(self._file).read()

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """Let Spark's executors read the file."""
        return spark.read.parquet(spark_path(self._file))


def refresh(
    table: DerivedTable,
    *,
    place: DerivedFile,
    sinks: Mapping[StageUid, Sink],
    derived: Mapping[StageUid, DerivedFile],
    attempt: AttemptId,
    more: str,
    session: Callable[[], SparkSession],
) -> Refreshed | None:
    """Compute a table if what it reads has changed; None: it has not. ``more``: further reasons, as text.

    Raises Fenced where a newer attempt has computed it, and whatever its function raises.
    """
    token = _token(table, sinks, derived, attempt, more)
    with place.locked():
        note = place.note()
        if note.get("lineage") == attempt.lineage and int(note.get("epoch", 0)) > attempt.epoch:
            raise Fenced(
                f"attempt {note['epoch']} has computed {place.root}, and this is attempt {attempt.epoch}"
            )
        if note.get("token") == token:
            return None
        spark, said = session(), {"lineage": attempt.lineage, "epoch": attempt.epoch}
        with session_settings(spark, table.conf):
            frame = table.fn(spark, {uid: _rows(uid, sinks, derived, spark) for uid in table.reads})
            # Who dies once the file is replaced leaves rows that are not those of the token before: a restore may
            # bring that token's state back.
            place.write_note(said)
            written = _write(frame, place, str(attempt.epoch))
        place.write_note(said | {"token": token})
        return written


def _token(
    table: DerivedTable,
    sinks: Mapping[StageUid, Sink],
    derived: Mapping[StageUid, DerivedFile],
    attempt: AttemptId,
    more: str,
) -> str:
    """Return a text that is another one for other rows."""
    parts: list[Any] = [table.definition, more, [attempt.lineage, attempt.epoch] if table.each_run else None]
    for uid in table.reads:
        if uid in derived:
            parts.append([uid, derived[uid].note().get("token")])
        else:
            at = sinks[uid].position()
            shown = None if at is None or at.head is None else [at.lineage, at.head, at.through_batch]
            parts.append([uid, sinks[uid].place, shown])
    return json.dumps(parts)


def _rows(
    uid: StageUid,
    sinks: Mapping[StageUid, Sink],
    derived: Mapping[StageUid, DerivedFile],
    spark: SparkSession,
) -> DataFrame | None:
    if uid in derived:
        return spark.read.parquet(spark_path(derived[uid].file))
    return None if _shows_nothing(sinks[uid]) else sinks[uid].rows().to_spark(spark)


def _shows_nothing(sink: Sink) -> bool:
    """Tell whether a sink has no rows and, it may be, no columns either."""
    position = sink.position()
    if position is None or position.head is not None:
        return position is None
    return not sink.writes_through or sink.describe().rows == 0  # written at least once, it never has a head


def _write(frame: DataFrame, place: DerivedFile, attempt: str) -> Refreshed:
    import pyarrow.parquet as pq

    staged = place.meta / f"staged-{attempt}"
    shutil.rmtree(staged, ignore_errors=True)
    try:
        frame.coalesce(1).write.parquet(spark_uri(staged))
        files = list(staged.glob("part-*.parquet"))
        if len(files) != 1:
            raise Corrupt(f"Spark wrote {len(files)} files to {staged}, and one was asked for")
        rows, size = pq.read_metadata(files[0]).num_rows, files[0].stat().st_size
        flush_to_disk(files[0])
        move_whole(files[0], place.file)
        flush_to_disk(place.root)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return Refreshed(rows, size)
