"""Rows of a batch, judged and written once: apart by verdict, good ones for readers, others kept or dropped.

The verdict is a column of the files, whose bounds tell that no row is bad. Where one is, it is the column by which the
write is partitioned: each kind of rows has files of its own, whose rows are the counts. Everything is done before the
batch's entry is in the channel log: what runs again finds nothing of its first try.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain, islice
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.authoring.stages import StageRole
from dagster_ckpt.core.checkpoint.tables import LATE
from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.core.units import counted
from dagster_ckpt.errors import InvalidRequest, first_line
from dagster_ckpt.ext.quarantine.expectations import HELD, PROCESSED, Action, Condition, Expectations
from dagster_ckpt.ext.quarantine.kept_rows import KeptRows
from dagster_ckpt.ext.quarantine.late_rows import LateRows
from dagster_ckpt.ext.quarantine.poisoned_rows import PoisonedRow, PoisonedRows
from dagster_ckpt.ext.quarantine.requeued_rows import RequeuedInput, RequeuedRows, Requeuing
from dagster_ckpt.ext.quarantine.verdicts import (
    UNPARSED,
    VERDICT,
    WarnedRows,
    action_on,
    are_good,
    broken_by,
    corrupt_column,
    read_apart,
    read_in_order,
    refuse_impossible,
    verdict_sql,
)
from dagster_ckpt.spark.attempt.participant import ParticipantContext, Requeue, RuleAhead
from dagster_ckpt.spark.channel.sink import CODEC, run_only, write_apart, write_staged
from dagster_ckpt.spark.exchange.mounts import bring_here, exchange_of, forget_remote, remove_folder
from dagster_ckpt.spark.files import DataFile, remove_files
from dagster_ckpt.spark.quoting import quoted
from dagster_ckpt.spark.sink.committables import committable_paths
from dagster_ckpt.spark.sink.phases import broken
from dagster_ckpt.spark.snapshot.batch_notes import RowCounts, note, total_through

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    Kinds = Mapping[int, Sequence[DataFile]]

_CONCURRENT_WRITERS = "spark.sql.maxConcurrentOutputFileWriters"
_WRITERS = "64"
"""Files that one task writes at a time: without them Spark sorts all rows by verdict first."""
_EXAMPLES = 3
_WHOLE, _APART = "whole", "apart"
_STAYS_APART = 16
"""Batches that are written apart at once behind one with a bad row: apart costs more, and less than twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """A batch that is written, and rows beside those that its stage returns."""

    number: BatchId
    folder: Path
    root: Path
    before: RowCounts
    """Totals before it."""
    pending: Requeue | None = None
    poisoned: Sequence[PoisonedRow] = ()
    tried: RequeuedInput = field(default_factory=RequeuedInput)
    taken: RequeuedRows = field(default_factory=RequeuedRows)
    late: Sequence[DataFile] = ()


class JudgedRows:
    """Writer of the batches of a stage that has conditions, or keeps rows that cannot be processed."""

    def __init__(self, expectations: Expectations, context: ParticipantContext) -> None:
        self._expectations = expectations
        self._conditions = expectations.conditions
        self._ahead: Sequence[RuleAhead] = ()
        self._poisoned: PoisonedRows | None = None
        self._corrupt = ""
        self._uid, self._directory = context.stage.uid, context.directory
        self.schema = context.frame.schema
        whose = f"{context.stage.role} {self._uid!r}"
        refuse_impossible(whose, self._conditions, context.frame)
        if expectations.keeps_errors:
            self._prepare_for_errors(whose, context)
        self._kept = None
        if expectations.table:
            self._kept = KeptRows(context, self.schema, self._conditions, self._ahead)
            self._keep = context.keep(self._kept.none(context.frame.sparkSession))
        self._late = LateRows.of(context) if expectations.keeps_late else None
        self._requeue, self._warn, self._processed = context.requeue, context.warn, context.processed
        struct = "" if self._kept is None else self._kept.struct
        self._requeuing = Requeuing(self._conditions, self._judged, self.schema, struct, context)

    def _prepare_for_errors(self, whose: str, context: ParticipantContext) -> None:
        """Rows of a stage are found in its input, which is read again; a source's reader tells its own."""
        frame, conditions = context.frame, [HELD]
        if context.stage.role is StageRole.SOURCE:
            self._corrupt = corrupt_column(whose, frame)
            frame, conditions = frame.drop(self._corrupt), [HELD, PROCESSED]
            self.schema = frame.schema
        self._ahead = context.rules_ahead(frame)
        self._conditions = (*self._conditions, *(Condition(one, Action.QUARANTINE) for one in conditions))
        if not self._corrupt:
            self._poisoned = PoisonedRows(context, self._judged)

    def write(self, frame: DataFrame, folder: Path, root: Path, batch_id: BatchId) -> tuple[DataFile, ...]:
        """Write a batch apart by verdict; keep what is quarantined, and return the files of what goes on."""
        frame.sparkSession.conf.set(_CONCURRENT_WRITERS, _WRITERS)
        before = total_through(self._directory, BatchId(batch_id - 1) if batch_id else None)
        batch = _Batch(number=batch_id, folder=folder, root=root, before=before, pending=self._requeue())
        if self._poisoned is None:
            return self._processed_and_written(frame, batch)
        again = self._directory.root / f"again-{batch_id}"
        shutil.rmtree(again, ignore_errors=True)
        tried = self._requeuing.inputs(frame.sparkSession, again, before, batch.pending)
        try:
            return self._without_poisoned(self._poisoned, frame, replace(batch, tried=tried))
        except InvalidRequest as error:
            if not tried.rows:
                raise
            rows = counted(tried.rows, "row")
            self._warn(f"{rows} that stage {self._uid} was to process again stay in its quarantine: {error}")
            remove_folder(folder)
            return self._without_poisoned(self._poisoned, frame, batch)
        finally:
            if tried.rows:
                remove_folder(again)

    def _without_poisoned(
        self, search: PoisonedRows, frame: DataFrame, batch: _Batch
    ) -> tuple[DataFile, ...]:
        def write(rows: DataFrame, poisoned: Sequence[PoisonedRow]) -> tuple[DataFile, ...]:
            if poisoned:  # a try has failed
                remove_folder(batch.folder)
            return self._processed_and_written(rows, replace(batch, poisoned=poisoned))

        return search.carry_out(write, frame, batch.number, batch.tried.files)

    def replay(self, frame: DataFrame) -> None:
        """Run a batch that is in the log, unless its rows leave no state: one of them may fail."""
        if self._poisoned is None:
            run_only(frame)

    def _judged(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        asked, no_text = self._expectations.conditions, f.lit(None).cast("string")
        if self._corrupt and self._corrupt not in frame.columns:  # what was kept as columns was parsed
            frame = frame.withColumn(self._corrupt, no_text)
        verdict = f.expr(verdict_sql(asked))
        if self._ahead:
            wrong = reduce(or_, (f.coalesce(broken(frame, one.rule), f.lit(False)) for one in self._ahead))
            verdict = verdict.bitwiseOR(f.when(wrong, 1 << len(asked)).otherwise(0).cast("bigint"))
        if not self._corrupt:
            return frame.select("*", verdict.alias(VERDICT))
        columns, text = [quoted(n) for n in frame.columns if n != self._corrupt], f.col(quoted(self._corrupt))
        # Of what is no row nothing else is asked.
        verdict = f.when(text.isNotNull(), f.lit(2 << len(asked)).cast("bigint")).otherwise(verdict)
        return frame.select(*columns, text.alias(UNPARSED), verdict.alias(VERDICT))

    def _processed_and_written(self, frame: DataFrame, batch: _Batch) -> tuple[DataFile, ...]:
        with self._processed(frame, batch.number) as rows:
            return self._write(rows, batch)

    def _write(self, frame: DataFrame, batch: _Batch) -> tuple[DataFile, ...]:
        folder, root = batch.folder, batch.root
        kinds, warned = self._written(self._judged(frame), batch)
        of_action = {verdict: action_on(broken_by(verdict, self._conditions)) for verdict in kinds}
        failed = {verdict: kinds[verdict] for verdict, action in of_action.items() if action is Action.FAIL}
        if failed:
            said = self._failed(failed, root, batch.number)
            remove_folder(folder)
            raise InvalidRequest(said)
        kept = [verdict for verdict, action in of_action.items() if action is Action.QUARANTINE]
        late = self._late.write(frame.sparkSession, folder, root, batch.number) if self._late else ()
        taken = self._requeuing.take(frame.sparkSession, folder, root, batch.before, batch.pending)
        batch = replace(batch, late=late, taken=taken)
        self._quarantine(frame, {verdict: kinds[verdict] for verdict in kept}, batch)
        self._count(kinds, warned, batch)
        bad = [files for verdict, files in kinds.items() if verdict]
        rest = [*chain.from_iterable([*bad, *taken.kinds.values()]), *late]
        return _moved_up([("", kinds.get(0, ())), ("again-", taken.passed)], rest, folder, root)

    def _written(self, judged: DataFrame, batch: _Batch) -> tuple[Kinds, tuple[int, Mapping[Condition, int]]]:
        """Write judged rows; return their files by verdict, and the counts of rows that were warned of."""
        folder, root, newest = batch.folder, batch.root, batch.before.bad_in
        # In an object store files have no bounds to look at, and tasks write apart as fast.
        if exchange_of(folder) is None and (newest is None or batch.number - newest > _STAYS_APART):
            whole = write_staged(judged, folder / _WHOLE, root, codec=CODEC)
            if are_good(root, whole):
                return {0: whole}, (0, {})
            judged = read_in_order(judged, root, whole)
        warned = WarnedRows(judged, self._conditions)
        kinds = write_apart(warned.frame, VERDICT, folder / _APART, root)
        return kinds, warned.counts(folder)

    def _quarantine(self, frame: DataFrame, kinds: Kinds, batch: _Batch) -> None:
        # Of a first try, whose entry never came into the log: rows of this one take its place.
        remove_files(committable_paths(self._directory.root, [batch.number]))
        if self._kept is None:
            return
        kept, spark, number = self._kept, frame.sparkSession, batch.number
        tried = batch.tried.among(spark, batch.poisoned)
        new = [one for one in batch.poisoned if one not in tried.values()]
        found = []
        if kinds:
            found.append(kept.refused(read_apart(spark, self._columns(), batch.root, kinds), number))
        if self._late is not None and batch.late:
            found.append(kept.late(self._late.rows(spark, batch.root, batch.late), number))
        if new:
            found.append(kept.poisoned(spark, new, number))
        if batch.taken.rows:
            found.append(kept.again(batch.taken, number))
        if batch.tried.rows:
            found.append(kept.tried(batch.tried.read(spark), tried, number))
        if found:  # all batches have the same columns, whatever is in them
            self._keep(reduce(lambda one, other: one.unionByName(other), found, kept.none(spark)), number)

    def _columns(self) -> StructType:
        """Return the columns that refused rows were written with."""
        from pyspark.sql.types import StringType, StructField, StructType

        unparsed = [StructField(UNPARSED, StringType())] if self._corrupt else []
        return StructType([*self.schema.fields, *unparsed])

    def _count(self, kinds: Kinds, warned: tuple[int, Mapping[Condition, int]], batch: _Batch) -> None:
        """Note the totals, with the orders to requeue that were taken, as long as the record has them."""
        before, taken, poisoned = batch.before, batch.taken, len(batch.poisoned)
        known = {one.order_id for one in batch.pending.orders} if batch.pending else set()
        again = taken.rows + batch.tried.rows
        rows = Counter({verdict: sum(file.rows for file in files) for verdict, files in kinds.items()})
        rows.update(taken.verdicts)
        found: Counter[str] = Counter(dict.fromkeys(self._expectations.judges, 0))
        for verdict, number in rows.items():
            for one in broken_by(verdict, self._conditions):
                found[one.sql] += number
        for one, number in warned[1].items():
            found[one.sql] += number
        late = sum(file.rows for file in batch.late)
        for name, number in ((PROCESSED, poisoned), (LATE, late)):
            if number:
                found[name] += number
        changes = {
            "late_kept": before.late_kept + late,
            "read": before.read + (self._late.rows_read(batch.number) if self._late else 0),
            "requeued": before.requeued + again,
            "orders": (*(one for one in before.orders if one in known), *taken.orders),
            "requeued_in": batch.number if again else before.requeued_in,
            "bad_in": batch.number if warned[0] or any(kinds) else before.bad_in,
        }
        judged = rows.total() + poisoned if self._conditions else 0
        totals = before.plus(judged, rows.total() - rows[0] + warned[0] + poisoned, found)
        note(self._directory, batch.number, totals.model_copy(update=changes))

    def _failed(self, kinds: Kinds, root: Path, batch_id: BatchId) -> str:
        """Return which condition a batch breaks that it must not, in how many rows, with examples."""
        first, rows = _first_failed(kinds, self._conditions)
        files = [
            file for v, found in kinds.items() if first in broken_by(v, self._conditions) for file in found
        ]
        found = _rows_of(root, files, _EXAMPLES)
        shown = ", ".join(first_line(json.dumps(row, default=str)) for row in found)
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


def _moved_up(
    kinds: Sequence[tuple[str, Sequence[DataFile]]], rest: Sequence[DataFile], folder: Path, root: Path
) -> tuple[DataFile, ...]:
    """Move files of what goes on into the batch's own folder, where readers and cleaners look; remove the rest.

    In an object store they stay where they are: readers and cleaners have their names.
    """
    if exchange_of(folder) is not None:
        forget_remote(root, [file.name for file in rest])
        return tuple(file for _, files in kinds for file in files)
    moved = []
    for kind, files in kinds:
        for file in files:
            path = folder / f"{kind}{Path(file.name).name}"
            (root / file.name).rename(path)
            moved.append(replace(file, name=path.relative_to(root).as_posix()))
    for below in [path for path in folder.iterdir() if path.is_dir()]:
        shutil.rmtree(below, ignore_errors=True)
    return tuple(sorted(moved, key=lambda file: file.name))


def _rows_of(root: Path, files: Sequence[DataFile], most: int) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    files = files[:most]  # none is empty
    bring_here(root, files)

    def rows() -> Iterable[dict[str, Any]]:
        for file in files:
            with pq.ParquetFile(root / file.name) as opened:
                for batch in opened.iter_batches(most):
                    yield from batch.to_pylist()

    return list(islice(rows(), most))
