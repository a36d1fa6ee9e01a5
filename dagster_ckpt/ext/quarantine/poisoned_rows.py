"""Rows on which a batch fails: found by halving its input, put aside, and the others go on.

Spark fails a whole task for one row, and does not say which. So the stage's function is asked again, of half of the
batch's input, until each row that fails alone is known. It has to process each row by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dagster_ckpt.core.ids import BatchId, StageUid
from dagster_ckpt.core.units import counted
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.quarantine.verdicts import AS_JSON
from dagster_ckpt.spark.attempt.participant import ParticipantContext
from dagster_ckpt.spark.channel.batch_input import BatchInput
from dagster_ckpt.spark.plan.errors import GOES_ON, RowError, row_error
from dagster_ckpt.spark.plan.operators import other_than_row_by_row
from dagster_ckpt.spark.plan.tree import analyzed
from dagster_ckpt.spark.quoting import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_ROWS = 256
"""Rows of one batch that are found: more are no bad rows, but a function that does not fit any."""

T = TypeVar("T")
InputFile = tuple[StageUid, Path, int]
"""A channel, a file with its columns, and how many rows that has."""


@dataclass(frozen=True, slots=True)
class PoisonedRow:
    """A row of a stage's input that cannot be processed."""

    place: int
    """Among the rows of its batch."""
    channel: StageUid
    file: tuple[Path, int]
    """File that has it, and its number there."""
    row: str
    """The row as JSON."""
    error: RowError


class PoisonedRows:
    """Search for rows that cannot be processed, in the batches of one stage.

    Raises InvalidRequest for a stage whose rows cannot be found one by one, before there are any.
    """

    def __init__(self, context: ParticipantContext, judged: Callable[[DataFrame], DataFrame]) -> None:
        self._context, self._judged = context, judged
        self._whose = f"stage {context.stage.uid!r} has on_error='quarantine'"
        self._refuse_other_than_row_by_row()
        self._refuse_streams_only()

    def _refuse_other_than_row_by_row(self) -> None:
        plan = analyzed(self._context.frame)
        found = "a plan that Spark does not show" if plan is None else other_than_row_by_row(plan)
        if found:
            raise InvalidRequest(
                f"{self._whose} and {found}, where a row is not processed by itself: put what can fail into a stage of "
                "its own before it, with on_error there"
            )

    def _refuse_streams_only(self) -> None:
        frame, nothing = self._context.frame, self._context.input_of(None)
        made = self._context.function(frame.sparkSession, nothing.whole(frame.sparkSession))
        wanted = [(one.name, one.dataType) for one in frame.schema.fields]
        if made.isStreaming or [(one.name, one.dataType) for one in made.schema.fields] != wanted:
            raise InvalidRequest(
                f"{self._whose}, and its function returns other columns of inputs that are no streams, as those of a "
                "batch that is looked through are: let it read nothing but its inputs and tables"
            )

    def carry_out(
        self,
        write: Callable[[DataFrame, Sequence[PoisonedRow]], T],
        frame: DataFrame,
        batch: BatchId,
        behind: Sequence[InputFile] = (),
    ) -> T:
        """Return the result of ``write`` on a batch's rows, without those on which it fails, which it is told.

        ``behind``: files of input that is processed after the batch's own.
        """
        found: list[PoisonedRow] = []
        given: BatchInput | None = None
        if behind:
            given = self._context.input_of(batch).plus(behind)
            frame = self._context.function(frame.sparkSession, given.all_but(frame.sparkSession, ()))
        while True:
            try:
                return write(frame, found)
            except Exception as error:
                why = row_error(error)
                if why is None:
                    raise
                given = given or self._context.input_of(batch)
                more = self._found_in(given, frame, batch, found, why)
                if not more:  # no row fails alone
                    raise
                found = [*found, *more]
            left_out = {one.place for one in found}
            spark = frame.sparkSession
            frame = self._context.function(spark, given.all_but(spark, left_out))

    def _found_in(
        self,
        given: BatchInput,
        frame: DataFrame,
        batch: BatchId,
        before: Sequence[PoisonedRow],
        why: RowError,
    ) -> list[PoisonedRow]:
        whose = f"stage {self._context.stage.uid!r}, batch {batch}"
        self._context.warn(
            f"{whose} fails ({why.said}): {counted(given.rows, 'row')} to be halved until it is found where"
        )
        search = _Search(self._context, self._judged, given, frame, {one.place for one in before})
        search.look(0, given.rows, why)
        if search.is_over:
            raise InvalidRequest(
                f"{whose}: more than {MOST_ROWS} rows cannot be processed, which are no bad rows any more: {why.said}; "
                f"{GOES_ON}"
            )
        rows, jobs = counted(len(search.found), "row"), counted(search.jobs, "job")
        self._context.warn(f"{whose}: {rows} found in {jobs}, for the quarantine")
        return search.found


class _Search:
    """The rows of one batch on which it fails, each by itself."""

    def __init__(
        self,
        context: ParticipantContext,
        judged: Callable[[DataFrame], DataFrame],
        given: BatchInput,
        frame: DataFrame,
        without: set[int],
    ) -> None:
        self._context, self._judged, self._given = context, judged, given
        self._spark, self._without = frame.sparkSession, without
        self.found: list[PoisonedRow] = []
        self.jobs = 0

    @property
    def is_over(self) -> bool:
        """Whether more rows than are looked for were found."""
        return len(self.found) > MOST_ROWS

    def look(self, start: int, stop: int, why: RowError | None) -> bool:
        """Look for rows of a range, and tell whether there are any; ``why`` it fails, where that was tried."""
        if start == stop:
            return False
        why = why or self._why_fails(start, stop)
        if why is None or self.is_over:
            return False
        if stop - start == 1:
            self.found.append(self._poisoned(start, why))
            return True
        middle = (start + stop) // 2
        left = self.look(start, middle, None)
        is_known = not left and stop - middle > 1  # of one row the error itself is wanted
        right = self.look(middle, stop, why if is_known else None)
        return left or right

    def _why_fails(self, start: int, stop: int) -> RowError | None:
        self.jobs += 1
        rows = self._context.function(self._spark, self._given.some(self._spark, start, stop, self._without))
        try:
            self._judged(rows).write.format("noop").mode("overwrite").save()
        except Exception as error:
            why = row_error(error)
            if why is None:
                raise
            return why
        return None

    def _poisoned(self, place: int, why: RowError) -> PoisonedRow:
        from pyspark.sql import functions as f

        channel, row = self._given.channel_at(place), self._given.row(self._spark, place)
        text = row.select(f.to_json(f.struct(*map(quoted, row.columns)), AS_JSON).alias("row")).first()
        return PoisonedRow(
            place, channel, self._given.file_at(place), "" if text is None else text["row"], why
        )
