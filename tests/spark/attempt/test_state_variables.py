"""Variables of a processor's state may come and go, but not turn into others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt import spark_stage
from dagster_ckpt.spark.attempt.changed_query import ChangedQuery
from dagster_ckpt.spark.attempt.query_errors import understood
from dagster_ckpt.spark.attempt.state_variables import refuse_renamed_variables
from dagster_ckpt.spark.snapshot.capture import latest_committed_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: SparkSession, folder: Path, *names: str) -> list[int]:
    """Run a query whose processor counts rows in variables of these names; return what the first one counts."""
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

    class Counting(StatefulProcessor):
        """Counts in all of its variables."""

        def init(self, handle: StatefulProcessorHandle) -> None:
            self.counts = [handle.getValueState(name, "n long") for name in names]

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            import pandas as pd

            new = sum(len(frame) for frame in rows)
            told = []
            for count in self.counts:
                before = count.get()[0] if count.exists() else 0
                count.update((before + new,))
                told.append(before + new)
            yield pd.DataFrame({"n": told[:1]})

        def close(self) -> None:
            return None

    found: list[int] = []

    def write(batch: Any, number: int) -> None:
        refuse_renamed_variables(folder / "query", number)
        found.extend(row["n"] for row in batch.collect())

    rows = spark.readStream.schema("k long").json(str(folder / "in"))
    counted = rows.groupBy("k").transformWithStateInPandas(Counting(), "n long", "Update", "None")
    writer = counted.writeStream.outputMode("update").option("checkpointLocation", str(folder / "query"))
    writer.foreachBatch(write).trigger(availableNow=True).start().awaitTermination()
    return found


def test_a_variable_of_state_that_is_renamed_is_refused_before_a_row_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It began empty, and the run succeeded."""

    @spark_stage
    def totals(rows: Any) -> Any:
        return rows

    def arrives(number: int) -> None:
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{number}.json").write_text('{"k": 1}')

    arrives(0)
    assert run(spark, tmp_path, "seen") == [1]
    arrives(1)
    for _ in range(2):
        with pytest.raises(Exception, match="would begin empty") as failed:
            run(spark, tmp_path, "known")
    told = understood(totals, failed.value)
    assert isinstance(told, ChangedQuery), "no restart of a stream would change that"
    assert re.search(
        r"^stage 'totals' cannot go on .*: it was kept in seen, and its processor has known instead",
        str(told),
    )
    assert latest_committed_batch(tmp_path / "query") == 0
    assert run(spark, tmp_path, "seen") == [2], (
        "changed back, it goes on: Spark had written the other names down"
    )
