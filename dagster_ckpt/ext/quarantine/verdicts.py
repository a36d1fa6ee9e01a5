"""Verdicts on rows: a number with a bit for each condition that the row breaks, 0 for a good one.

Each condition is evaluated once a row. What it says of a row that makes it NULL is no: nobody has said that it holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.errors import InvalidRequest, first_line
from dagster_ckpt.ext.quarantine.expectations import Action, Condition
from dagster_ckpt.spark.channel.batch_input import read_rows
from dagster_ckpt.spark.cluster.counted import numbers_of
from dagster_ckpt.spark.files import AS_WRITTEN, DataFile, spark_path

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.types import StructType

VERDICT = "_dagster_ckpt_verdict"
"""Column of verdicts while a batch is written: the folders that its rows lie in are called by it."""

_ROWS = "rows"
"""Name of the count of all rows that were warned of, beside those of single conditions."""

UNPARSED = "_dagster_ckpt_unparsed"
"""Column of the text of a source's record that Spark's reader cannot parse, while a batch is written."""

AS_JSON = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}
"""Form of rows that are kept as text: times to the microsecond, in no session's zone, and every column."""


def verdict_sql(conditions: Sequence[Condition]) -> str:
    """Return the verdict on a row as an SQL expression of type BIGINT."""
    parts = [f"IF(({one.sql}\n) IS TRUE, 0L, {1 << bit}L)" for bit, one in enumerate(conditions)]
    return " | ".join(parts) or "0L"


def broken_by(verdict: int, conditions: Sequence[Condition]) -> list[Condition]:
    """Return the conditions that rows of a verdict break, in the order they were given."""
    return [one for bit, one in enumerate(conditions) if verdict >> bit & 1]


class WarnedRows:
    """Rows that go on though they break conditions: in one file with the good ones, whose order is theirs, and counted.

    Rows of one key in two files would have no order, and the table could keep the older one.
    """

    def __init__(self, judged: DataFrame, conditions: Sequence[Condition]) -> None:
        self.frame = judged
        self._seen: Observation | None = None
        self._bits = {bit: one for bit, one in enumerate(conditions) if one.action is Action.WARN}
        if self._bits:
            self._observe(judged)

    def _observe(self, judged: DataFrame) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        self._seen, verdict = Observation(), f.col(VERDICT)
        goes_on = verdict.bitwiseAND(f.lit(~sum(1 << bit for bit in self._bits))) == 0
        counts = {_ROWS: verdict != 0} | {
            str(bit): verdict.bitwiseAND(f.lit(1 << bit)) != 0 for bit in self._bits
        }
        observed = judged.observe(
            self._seen, *(f.count_if(goes_on & broken).alias(name) for name, broken in counts.items())
        )
        self.frame = observed.withColumn(VERDICT, f.when(goes_on, 0).otherwise(verdict))

    def counts(self, folder: Path) -> tuple[int, dict[Condition, int]]:
        """Return how many rows were warned of, and how many broke each condition, once ``folder`` has them."""
        if self._seen is None:
            return 0, {}
        numbers = numbers_of(self._seen, folder)
        return numbers[_ROWS], {one: numbers[str(bit)] for bit, one in self._bits.items()}


def corrupt_column(whose: str, frame: DataFrame) -> str:
    """Return the column in which Spark's reader has what it cannot parse. Raises InvalidRequest where there is none."""
    name = frame.sparkSession.conf.get("spark.sql.columnNameOfCorruptRecord") or ""
    if name not in frame.columns or frame.schema[name].dataType.simpleString() != "string":
        raise InvalidRequest(
            f"{whose} has on_error='quarantine' and returns no column {name!r}, by which Spark tells the records that "
            f"it cannot parse: add '{name} STRING' to the schema of its reader, or let it return text, and put "
            "on_error on the stage that parses it"
        )
    return name


def are_good(root: Path, files: Iterable[DataFile]) -> bool:
    """Tell whether no row of these files breaks a condition, by the bounds of their verdicts; False: who knows."""
    import pyarrow.parquet as pq

    return all(_is_good(pq.read_metadata(root / file.name)) for file in files)


def _is_good(footer: pq.FileMetaData) -> bool:
    place = footer.schema.names.index(VERDICT)
    bounds = (footer.row_group(number).column(place).statistics for number in range(footer.num_row_groups))
    return all(one is not None and one.has_min_max and one.max == 0 for one in bounds)


def read_in_order(written: DataFrame, root: Path, files: Iterable[DataFile]) -> DataFrame:
    """Return rows that were written to these files, in their order: a reader of all begins with the greatest."""
    reader = written.sparkSession.read.schema(written.schema).options(**AS_WRITTEN)
    return reduce(
        lambda one, other: one.union(other), (reader.parquet(spark_path(root / f.name)) for f in files)
    )


def read_apart(
    spark: SparkSession, schema: StructType, root: Path, kinds: Mapping[int, Sequence[DataFile]]
) -> DataFrame:
    """Return rows that were written apart by verdict, with these columns and their verdicts."""
    from pyspark.sql import functions as f

    return reduce(
        lambda one, other: one.union(other),
        (
            read_rows(spark, [root / file.name for file in files], schema).withColumn(
                VERDICT, f.lit(verdict).cast("bigint")
            )
            for verdict, files in kinds.items()
        ),
    )


def action_on(broken: Sequence[Condition]) -> Action | None:
    """Return the action on a row that breaks these conditions, the hardest of all; None: it breaks none."""
    hardest = [*Action]
    return max((one.action for one in broken), key=hardest.index, default=None)


def refuse_impossible(whose: str, conditions: Sequence[Condition], frame: DataFrame) -> None:
    """Raise InvalidRequest for a condition that Spark cannot ask of these rows, before there are any."""
    from pyspark.errors import PySparkException

    taken = next((name for name in frame.columns if name.lower() in (VERDICT, UNPARSED)), "")
    if taken:
        raise InvalidRequest(
            f"{whose} returns a column {taken!r}, which its verdicts have: give it another name"
        )
    # Of its columns alone: those that a source hides, as `_metadata`, are not among the rows of a batch.
    rows = frame.sparkSession.createDataFrame([], frame.schema) if conditions else frame
    for one in conditions:
        try:
            rows.where(one.sql).where(f"({one.sql}\n)")  # alone, too: brackets may be of two conditions
        except PySparkException as error:
            condition, message = error.getCondition(), first_line(error)
            said = message.removeprefix(f"[{condition}] ").partition(" SQLSTATE")[0].rstrip(". ;")
            raise InvalidRequest(
                f"{whose} expects {one.sql!r}, which Spark cannot ask of its rows: {said}"
            ) from None
