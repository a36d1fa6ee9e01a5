"""Variables of a processor's state may come and go, but not turn into others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dagster_ckpt import spark_stage
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.plan.errors import ChangedQuery, understood
from dagster_ckpt.spark.plan.functions import refuse_renamed_variables
from dagster_ckpt.spark.plan.rules import check_plan
from dagster_ckpt.spark.snapshot.capture import latest_committed_batch


@spark_stage
def totals(rows: Any) -> Any:
    return rows


def arrives(folder: Path, number: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / f"{number}.json").write_text('{"k": 1, "v": 5}')


def run_with_fields(
    spark: SparkSession, folder: Path, kind: str, fields: str, *, key: str = "k", name: str = "kept"
) -> list[tuple[int, int]]:
    """Run a query whose processor keeps a count and a sum in one variable; return both."""
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

    places = [field.split()[0] for field in fields.split(", ")]

    class Keeping(StatefulProcessor):
        """Keeps two numbers by their places."""

        def init(self, handle: StatefulProcessorHandle) -> None:
            if kind == "map":
                self.kept: Any = handle.getMapState(name, "a long", fields)
            else:
                self.kept = (handle.getListState if kind == "list" else handle.getValueState)(name, fields)

        def read(self) -> Any:
            if kind == "map":
                return self.kept.getValue((1,)) if self.kept.containsKey((1,)) else None
            if kind == "list":
                return next(iter(self.kept.get()), None)
            return self.kept.get() if self.kept.exists() else None

        def write(self, new: tuple[int, ...]) -> None:
            if kind == "map":
                self.kept.updateValue((1,), new)
            elif kind == "list":
                self.kept.put([new])
            else:
                self.kept.update(new)

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            import pandas as pd

            found = dict(zip(places, self.read() or (0, 0), strict=True))
            for frame in rows:
                found["seen"] += len(frame)
                found["total"] += int(frame["v"].sum())
            self.write(tuple(found[place] for place in places))
            yield pd.DataFrame({"seen": [found["seen"]], "total": [found["total"]]})

        def close(self) -> None:
            return None

    told: list[tuple[int, int]] = []

    def write(batch: Any, number: int) -> None:
        told.extend((row["seen"], row["total"]) for row in batch.collect())

    rows = spark.readStream.schema("k long, v long").json(str(folder / "in"))
    kept = rows.groupBy(key).transformWithStateInPandas(Keeping(), "seen long, total long", "Update", "None")
    check_plan(StageUid("totals"), StageDirectory(folder), kept)
    writer = kept.writeStream.outputMode("update").option("checkpointLocation", str(folder / "query"))
    writer.foreachBatch(write).trigger(availableNow=True).start().awaitTermination()
    return told


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

    arrives(tmp_path, 0)
    assert run(spark, tmp_path, "seen") == [1]
    arrives(tmp_path, 1)
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


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_a_variable_with_its_fields_in_another_order_is_refused_before_the_query_starts(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """Spark compares their types: a count was taken for a sum, and the run succeeded."""
    fields = "seen long, total long"
    arrives(tmp_path, 0)
    assert run_with_fields(spark, tmp_path, kind, fields) == [(1, 5)]
    arrives(tmp_path, 1)
    with pytest.raises(
        ChangedQuery, match=r"variable kept were .*seen:.*total:.* and are .*total:.*seen:.* now, and"
    ):
        run_with_fields(spark, tmp_path, kind, "total long, seen long")
    with pytest.raises(
        ChangedQuery, match="was kept in kept, and its processor has other instead, which would begin"
    ):
        run_with_fields(spark, tmp_path, kind, fields, name="other")
    with pytest.raises(ChangedQuery, match=r"columns of state by k, the stage has state by v now"):
        run_with_fields(spark, tmp_path, kind, fields, key="v")
    assert run_with_fields(spark, tmp_path, kind, fields) == [(2, 10)]
