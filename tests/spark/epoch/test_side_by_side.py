"""Stages of an epoch that need nothing of one another run at once, each told in its own turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    CheckpointedPipeline,
    load_table,
    run_epoch,
)
from tests.lab.lab import Lab, failure_text
from tests.lab.pipelines import sink, source, wired
from tests.progress import wait_until


def other_has_begun(mine: str, others: str) -> Any:
    """Return a function for rows that leaves a mark and waits until the other stage's rows have left theirs."""
    return f.udf(lambda value: value if meet(mine, others) else None, "int")


def meet(mine: str, others: str) -> bool:
    Path(mine).touch()
    wait_until(Path(others).exists, "the stage beside this one has begun")
    return True


def breaks(value: int, after: str = "") -> int:
    if after:
        wait_until(Path(after).exists, "the stage beside this one has begun")
    raise ValueError(f"cannot take {value}")


def two_tables(folder: Path, *, left: Any = None, right: Any = None) -> CheckpointedPipeline:
    """Two sources, each with a table of its own; ``left`` and ``right`` are put on the rows."""

    return wired(
        "beside",
        source("lefts", lambda spark: read(spark, folder / "left", left)),
        sink("left_table", lambda lefts: lefts),
        source("rights", lambda spark: read(spark, folder / "right", right)),
        sink("right_table", lambda rights: rights),
    )


def read(spark: SparkSession, folder: Path, passed: Any) -> DataFrame:
    rows = spark.readStream.schema("v int").json(str(folder))
    return rows if passed is None else rows.select(passed(f.col("v")).alias("v"))


def arrive(folder: Path, name: str, *values: int) -> None:
    for side in ("left", "right"):
        (folder / side).mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps({"v": value}) + "\n" for value in values)
        (folder / side / f"{name}.json").write_text(lines)


def rows_of(lab: Lab, pipeline: CheckpointedPipeline, sink: str) -> list[int]:
    return sorted(load_table(pipeline, sink, coordinator=lab.coordinator).to_arrow()["v"].to_pylist())


def waiting_for_each_other(folder: Path) -> CheckpointedPipeline:
    marks = [str(folder / name) for name in ("left-began", "right-began")]
    return two_tables(
        folder, left=other_has_begun(marks[0], marks[1]), right=other_has_begun(marks[1], marks[0])
    )


@pytest.mark.nightly
def test_in_a_dagster_run_neither_waits_for_the_others_end(lab: Lab, tmp_path: Path) -> None:
    arrive(tmp_path, "first", 1, 2)
    pipeline = waiting_for_each_other(tmp_path)
    lab.succeeds(pipeline)
    assert rows_of(lab, pipeline, "left_table") == rows_of(lab, pipeline, "right_table") == [1, 2]
    arrive(tmp_path, "second", 3)
    lab.succeeds(pipeline)
    assert rows_of(lab, pipeline, "left_table") == rows_of(lab, pipeline, "right_table") == [1, 2, 3]


@pytest.mark.parametrize("lab", [{"operator_chaining": False}], indirect=True)
def test_in_a_plain_program_with_a_query_for_each_stage(
    lab: Lab, tmp_path: Path, spark: SparkSession
) -> None:
    arrive(tmp_path, "first", 1, 2)
    pipeline = waiting_for_each_other(tmp_path)
    assert run_epoch(pipeline, coordinator=lab.coordinator, spark=spark).checkpoint is not None
    assert rows_of(lab, pipeline, "left_table") == rows_of(lab, pipeline, "right_table") == [1, 2]


@pytest.mark.parametrize("broken", ["left", "right"])
def test_one_that_fails_fails_the_run_and_the_next_run_is_exact(
    lab: Lab, tmp_path: Path, spark: SparkSession, broken: str
) -> None:
    arrive(tmp_path, "first", 1, 2)
    lab.succeeds(two_tables(tmp_path))
    arrive(tmp_path, "second", 3)

    sides: dict[str, Any] = {broken: f.udf(lambda value: breaks(value), "int")}
    result = lab.run(two_tables(tmp_path, **sides))
    assert not result.success
    assert "cannot take 3" in failure_text(result)
    assert {event.step_key for event in result.get_step_failure_events()} == {f"{broken}_table"}
    assert [query.name for query in spark.streams.active] == [], "nothing runs on after the run"

    mended = two_tables(tmp_path)
    lab.succeeds(mended)
    assert rows_of(lab, mended, "left_table") == rows_of(lab, mended, "right_table") == [1, 2, 3]


@pytest.mark.nightly
def test_a_plain_program_leaves_nothing_running_when_a_stage_fails(
    tmp_path: Path, spark: SparkSession
) -> None:
    arrive(tmp_path, "first", 1)
    mark, never = str(tmp_path / "right-began"), str(tmp_path / "never")
    pipeline = two_tables(
        tmp_path,
        left=f.udf(lambda value: breaks(value, after=mark), "int"),
        right=f.udf(lambda value: value if meet(mark, never) else None, "int"),
    )
    where = CheckpointCoordinatorResource(base_dir=str(tmp_path / "lab"))
    with pytest.raises(Exception, match="cannot take 1"):
        run_epoch(pipeline, coordinator=where, spark=spark)
    assert [query.name for query in spark.streams.active] == []
