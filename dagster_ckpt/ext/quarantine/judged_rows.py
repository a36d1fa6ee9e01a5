"""Rows of a batch, judged and written once: apart by verdict, good ones for readers, others kept or dropped.

The verdict is the column by which the write is partitioned, so each kind of rows has files of its own, whose rows are
the counts. Everything is done before the batch's entry is in the channel log: what runs again
finds nothing of its first try.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.core.units import counted
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.quarantine.expectations import Action, Condition, Expectations
from dagster_ckpt.ext.quarantine.verdicts import VERDICT, action_on, broken_by, refuse_impossible, verdict_sql
from dagster_ckpt.spark.attempt.participant import ParticipantContext
from dagster_ckpt.spark.channel.sink import CODEC, write_staged
from dagster_ckpt.spark.exchange.mounts import exchange_of
from dagster_ckpt.spark.files import DataFile, remove_files, spark_uri
from dagster_ckpt.spark.sink.committables import committable_paths
from dagster_ckpt.spark.snapshot.row_counts import note, total_through

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Kinds = Mapping[int, Sequence[DataFile]]

_CONCURRENT_WRITERS = "spark.sql.maxConcurrentOutputFileWriters"
_WRITERS = "64"
"""Files that one task writes at a time: without them Spark sorts all rows by verdict first."""
_EXAMPLES = 3
_AS_JSON = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "ignoreNullFields": "false"}
"""Times to the microsecond, and every column."""


class JudgedRows:
    """Writer of the batches of a stage that has conditions."""

    def __init__(self, expectations: Expectations, context: ParticipantContext) -> None:
        self._expectations = expectations
        self._conditions = expectations.conditions
        self._uid, self._directory = context.stage.uid, context.directory
        self._schema = context.frame.schema
        refuse_impossible(f"stage {self._uid!r}", self._conditions, context.frame)
        self._refuse_remote()
        self._keep = None
        if expectations.table:
            nothing = context.frame.sparkSession.createDataFrame([], self._schema)
            self._keep = context.keep(self._kept(nothing.selectExpr("*", f"0L AS {VERDICT}"), BatchId(0)))

    def _refuse_remote(self) -> None:
        if exchange_of(self._directory.log) is not None:
            raise InvalidRequest(
                f"stage {self._uid!r} has conditions on its rows, which cannot be judged yet where work_dir is in an "
                "object store: give work_dir a folder that all machines mount"
            )

    def write(self, frame: DataFrame, folder: Path, root: Path, batch_id: BatchId) -> tuple[DataFile, ...]:
        """Write a batch apart by verdict; keep what is quarantined, and return the files of what goes on."""
        frame.sparkSession.conf.set(_CONCURRENT_WRITERS, _WRITERS)
        judged = frame.selectExpr("*", f"{verdict_sql(self._conditions)} AS {VERDICT}")
        kinds = _by_verdict(write_staged(judged, folder, root, partition_by=(VERDICT,), codec=CODEC))
        of_action = {verdict: action_on(broken_by(verdict, self._conditions)) for verdict in kinds}
        failed = {verdict: kinds[verdict] for verdict, action in of_action.items() if action is Action.FAIL}
        if failed:
            said = self._failed(failed, root, batch_id)
            shutil.rmtree(folder, ignore_errors=True)
            raise InvalidRequest(said)
        kept = [verdict for verdict, action in of_action.items() if action is Action.QUARANTINE]
        self._quarantine(frame, folder, kept, batch_id)
        self._count(kinds, batch_id)
        passed = [v for v, action in of_action.items() if action in (None, Action.WARN)]
        return _moved_up(((v, kinds[v]) for v in passed), folder, root)

    def _quarantine(self, frame: DataFrame, folder: Path, verdicts: Sequence[int], batch_id: BatchId) -> None:
        # Of a first try, whose entry never came into the log: rows of this one take its place.
        remove_files(committable_paths(self._directory.root, [batch_id]))
        if self._keep is None or not verdicts:
            return
        from pyspark.sql.types import LongType, StructField, StructType

        schema = StructType([*self._schema.fields, StructField(VERDICT, LongType())])
        places = [spark_uri(folder / f"{VERDICT}={verdict}") for verdict in verdicts]
        rows = frame.sparkSession.read.schema(schema).option("basePath", spark_uri(folder)).parquet(*places)
        self._keep(self._kept(rows, batch_id), batch_id)

    def _kept(self, rows: DataFrame, batch_id: BatchId) -> DataFrame:
        """Return the quarantine's rows of a stage's, which have their verdicts."""
        from pyspark.sql import functions as f

        columns = [f.col(f"`{name.replace('`', '``')}`") for name in self._schema.names]
        broken = [
            f.when(f.col(VERDICT).bitwiseAND(1 << bit) != 0, f.lit(one.sql))
            for bit, one in enumerate(self._conditions)
        ]
        led_here = [
            one for one, c in zip(broken, self._conditions, strict=True) if c.action is Action.QUARANTINE
        ]
        whole = f.struct(*columns)
        return rows.select(
            f.coalesce(*led_here).alias("condition"),
            f.array_compact(f.array(*broken)).alias("conditions"),
            f.to_json(whole, _AS_JSON).alias("row"),
            whole.alias("columns"),
            f.lit(str(self._uid)).alias("stage"),
            f.lit(int(batch_id)).cast("bigint").alias("batch"),
            f.current_timestamp().alias("at"),
        )

    def _count(self, kinds: Kinds, batch_id: BatchId) -> None:
        rows = {verdict: sum(file.rows for file in files) for verdict, files in kinds.items()}
        broken: Counter[str] = Counter({one.sql: 0 for one in self._conditions})
        for verdict, number in rows.items():
            for one in broken_by(verdict, self._conditions):
                broken[one.sql] += number
        before = total_through(self._directory, BatchId(batch_id - 1) if batch_id else None)
        limits = {"at_most": self._expectations.at_most, "fails": self._expectations.fails}
        totals = before.plus(sum(rows.values()), sum(n for verdict, n in rows.items() if verdict), broken)
        note(self._directory, batch_id, totals.model_copy(update=limits))

    def _failed(self, kinds: Kinds, root: Path, batch_id: BatchId) -> str:
        """Return which condition a batch breaks that it must not, in how many rows, with examples."""
        first, rows = _first_failed(kinds, self._conditions)
        files = [
            file for v, found in kinds.items() if first in broken_by(v, self._conditions) for file in found
        ]
        shown = ", ".join(json.dumps(row, default=str) for row in _rows_of(root, files, _EXAMPLES))
        return (
            f"stage {self._uid!r} returns {counted(rows, 'row')} in batch {batch_id} that must not be: {first.sql!r} "
            f"does not hold for {shown}. Mend the rows, or give the condition another action "
            "(quarantine): nothing of the batch is kept, and the next run begins with it again"
        )


def _first_failed(kinds: Kinds, conditions: Sequence[Condition]) -> tuple[Condition, int]:
    rows: Counter[Condition] = Counter()
    for verdict, files in kinds.items():
        for one in broken_by(verdict, conditions):
            if one.action is Action.FAIL:
                rows[one] += sum(file.rows for file in files)
    first = next(one for one in conditions if rows[one])
    return first, rows[first]


def _by_verdict(files: Iterable[DataFile]) -> dict[int, list[DataFile]]:
    found: dict[int, list[DataFile]] = {}
    for file in files:
        verdict = int(Path(file.name).parent.name.rpartition("=")[2])
        found.setdefault(verdict, []).append(file)
    return found


def _moved_up(
    kinds: Iterable[tuple[int, Sequence[DataFile]]], folder: Path, root: Path
) -> tuple[DataFile, ...]:
    """Move files of what goes on into the batch's own folder, where readers and cleaners look; remove all others."""
    moved = []
    for verdict, files in kinds:
        for file in files:
            path = folder / f"{verdict}-{Path(file.name).name}"
            (root / file.name).rename(path)
            moved.append(replace(file, name=path.relative_to(root).as_posix()))
    for rest in folder.glob(f"{VERDICT}=*"):
        shutil.rmtree(rest, ignore_errors=True)
    return tuple(sorted(moved, key=lambda file: file.name))


def _rows_of(root: Path, files: Sequence[DataFile], most: int) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    def rows() -> Iterable[dict[str, Any]]:
        for file in files:
            with pq.ParquetFile(root / file.name) as opened:
                for batch in opened.iter_batches(most):
                    yield from batch.to_pylist()

    return list(islice(rows(), most))
