"""What published example projects do beside the rules: ways to a session, names of files, windows, schemas."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from dagster_ckpt import CheckpointCoordinatorResource, pipeline_from_spark_project, run_epoch
from tests.ext.spark_pipelines.conftest import Project, rows_of
from tests.ext.spark_pipelines.test_projects import as_rows
from tests.sweeps import third

Make = Callable[..., Project]


def row(k: str, v: int) -> dict[str, Any]:
    return {"k": k, "v": v}


SESSIONS = {
    "that is given": "",
    "built": "spark = SparkSession.builder.getOrCreate()",
    "built with a name": "spark = SparkSession.builder.appName('mine').getOrCreate()",
    "active": "spark = SparkSession.active()",
    "by a function": "def session():\n    return SparkSession.getActiveSession()",
}


@pytest.mark.parametrize("how", third(SESSIONS))
def test_however_a_function_comes_to_its_session_it_reads_the_project_and_has_its_settings(
    how: str, written: Make, spark: SparkSession
) -> None:
    spark.newSession().createDataFrame(
        [(1,)], "n INT"
    )  # the active session of this thread is another one now
    its = "session()" if "def session" in SESSIONS[how] else "spark"
    project = written(
        f"""
from pyspark.sql import SparkSession
{SESSIONS[how]}
@dp.table
def orders():
    rows = {its}.readStream.schema("k STRING, v INT").json(str(Path.cwd() / "feed" / "orders"))
    return rows.withColumn("n", F.expr("CAST(k AS INT)"))
@dp.table
def copies():
    return {its}.readStream.table("orders").where("v > 1")
@dp.materialized_view
def counted():
    return {its}.table("copies").select(F.count("*").alias("n"), F.lit({its}.conf.get("my.word")).alias("word"))
"""
    )
    spec = project.root / "spark-pipeline.yml"
    spec.write_text(spec.read_text() + "configuration:\n  my.word: hi\n  spark.sql.ansi.enabled: 'false'\n")
    project.feed("orders", row("a", 1), row("b", 2))
    project.epoch()
    assert project.rows("copies") == as_rows(row("b", 2) | {"n": None})
    assert project.rows("counted") == as_rows({"n": 1, "word": "hi"})


@pytest.mark.nightly
def test_a_spec_file_of_another_name_that_lists_its_files_is_the_project(written: Make) -> None:
    project = written("")
    root = project.root
    shutil.rmtree(root / "transformations")
    (root / "helpers").mkdir()
    (root / "helpers" / "numbers.py").write_text("def large(rows):\n    return rows.where('v > 1')\n")
    (root / "flows.py").write_text(
        """
import importlib.util, sys
from pathlib import Path
from pyspark import pipelines as dp
found = importlib.util.spec_from_file_location("numbers_of_test", Path(__file__).parent / "helpers" / "numbers.py")
numbers = importlib.util.module_from_spec(found)
sys.modules["numbers_of_test"] = numbers
found.loader.exec_module(numbers)
@dp.table
def orders():
    return spark.readStream.schema("k STRING, v INT").json(str(Path(__file__).parent / "feed" / "orders"))
for word, least in {"some": 0, "many": 1}.items():
    @dp.materialized_view(name=word, spark_conf={})
    def view(least=least):
        return numbers.large(spark.read.table("orders")).where(f"v > {least}")
"""
    )
    (root / "views.sql").write_text("CREATE MATERIALIZED VIEW all_of_them AS SELECT * FROM orders")
    (root / "spark-pipeline.yml").unlink()
    (root / "my-pipeline.yaml").write_text(
        "name: daily-orders\nstorage: storage-root\nlibraries:\n"
        "  - glob:\n      include: ./flows.py\n  - glob:\n      include: ./views.sql\n"
    )
    project.feed("orders", row("a", 1), row("b", 2))
    pipeline = pipeline_from_spark_project(root / "my-pipeline.yaml", spark=project.spark)
    assert pipeline.name == "daily-orders"
    project.epoch(pipeline)
    assert project.rows("some") == project.rows("many") == as_rows(row("b", 2))
    assert project.rows("all_of_them") == as_rows(row("a", 1), row("b", 2))


WINDOWS = """
from pyspark.sql.types import StructType, StructField, StringType
SCHEMA = StructType([StructField("route", StringType(), False), StructField("at", StringType(), False)])
@dp.table(name="windowed")
def counted():
    rows = spark.readStream.format("json").schema(SCHEMA).load(str(Path.cwd() / "feed" / "rides"))
    timed = rows.withColumn("route", F.upper("route")).withColumn("time", F.to_timestamp("at"))
    return (
        timed.withWatermark("time", "10 minutes")
        .groupBy(F.window("time", "10 minutes", "5 minutes"), "route").count()
        .withColumn("start", F.date_format("window.start", "HH:mm")).drop("window")
    )
@dp.materialized_view
def busiest():
    return spark.table("windowed").orderBy(F.col("count").desc(), "route", "start").limit(2)
"""


@pytest.mark.nightly
def test_windows_of_a_stream_close_by_the_watermark_across_epochs_restores_and_forks(written: Make) -> None:
    project = written(WINDOWS)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def rides(*minutes: int) -> list[dict[str, str]]:
        return [{"route": "a", "at": (noon + timedelta(minutes=m)).isoformat()} for m in minutes]

    def closed(minutes: list[int], watermark: int) -> list[dict[str, Any]]:
        """Return the windows, of 10 minutes each 5, that end before the watermark."""
        starts = range(-10, 200, 5)
        counts = {
            start: sum(start <= m < start + 10 for m in minutes)
            for start in starts
            if start + 10 <= watermark
        }
        return [
            {"route": "A", "start": (noon + timedelta(minutes=start)).strftime("%H:%M"), "count": n}
            for start, n in counts.items()
            if n
        ]

    first, second, third = [1, 2, 7], [23, 31, 44], [90]
    project.feed("rides", *rides(*first))
    project.epoch()
    project.feed("rides", *rides(*second))
    project.epoch()
    expected = closed([*first, *second], 44 - 10)
    assert project.rows("windowed") == as_rows(*expected)
    busiest = sorted(expected, key=lambda one: (-one["count"], one["start"]))[:2]
    assert project.rows("busiest") == as_rows(*busiest)
    project.feed("rides", *rides(*third))
    project.epoch()
    everything = closed([*first, *second, *third], 90 - 10)
    assert project.rows("windowed") == as_rows(*everything)
    project.epoch(restore={"restore_from": "chk-1"})
    assert project.rows("windowed") == as_rows(*everything)
    fork = project.pipeline().fork("forked", table_dir=str(project.root / "forks"))
    chk2 = str(project.root / "lab" / "checkpoints" / "written" / "chk-2")
    where = CheckpointCoordinatorResource(base_dir=str(project.root / "lab"))
    run_epoch(fork, coordinator=where, spark=project.spark, restore={"restore_from": chk2, "fork": True})
    assert rows_of(project.root / "forks" / "windowed") == as_rows(*everything)


@pytest.mark.nightly
def test_files_that_sql_names_by_their_path_are_read_where_they_are(written: Make) -> None:
    project = written("")
    place = project.root / "data" / "sensors.parquet"
    place.parent.mkdir()
    pq.write_table(pa.table({"k": ["a", "b"], "v": [1, 2]}), place)
    text = f"CREATE MATERIALIZED VIEW sensors COMMENT 'by path' AS SELECT * FROM parquet.`{place}`;\n"
    more = "CREATE MATERIALIZED VIEW large AS SELECT s.k FROM sensors s JOIN sensors t ON s.k = t.k WHERE t.v > 1;\n"
    (project.root / "transformations" / "views.sql").write_text(text + more)
    project.epoch()
    assert project.rows("large") == as_rows({"k": "b"})
    pq.write_table(pa.table({"k": ["c"], "v": [3]}), place)
    project.epoch()
    assert project.rows("sensors") == as_rows(row("c", 3))
    assert project.rows("large") == as_rows({"k": "c"})


@pytest.mark.nightly
def test_a_view_of_a_view_whose_columns_are_renamed_is_computed_after_it_in_every_run(written: Make) -> None:
    """Spark 4.3 reads the catalog's table of the run before, which it has emptied by then: no rows, and no error."""
    project = written(
        """
@dp.table
def orders():
    return spark.readStream.schema("k STRING, v INT").json(str(Path.cwd() / "feed" / "orders"))
@dp.materialized_view
def known():
    return spark.table("orders").join(spark.createDataFrame([("a",), ("b",)], "k STRING"), "k").select("k", "v")
@dp.materialized_view
def daily():
    return spark.table("known").groupBy("k").count().withColumnRenamed("count", "orders")
"""
    )
    project.feed("orders", row("a", 1), row("z", 9))
    project.epoch()
    project.feed("orders", row("a", 2), row("b", 3))
    project.epoch()
    assert project.rows("daily") == as_rows({"k": "a", "orders": 2}, {"k": "b", "orders": 1})


@pytest.mark.nightly
def test_columns_that_a_source_says_are_never_empty_are_as_others_in_tables(written: Make) -> None:
    project = written(
        """
from pyspark.sql.types import StructType, StructField, StringType, IntegerType
STRICT = StructType([StructField("k", StringType(), False), StructField("v", IntegerType(), False)])
@dp.table
def orders():
    rows = spark.readStream.schema(STRICT).json(str(Path.cwd() / "feed" / "orders"))
    return rows.withColumn("one", F.lit(1)).withColumn("pair", F.struct(F.lit(1).alias("x"), "v"))
@dp.table
def copies():
    return spark.readStream.table("orders").select("k", "one", "pair.x", F.coalesce("v", F.lit(0)).alias("v"))
@dp.materialized_view(schema="k STRING, one INT, extra STRING")
def some():
    return spark.table("copies").select("k", "one")
"""
    )
    project.feed("orders", row("a", 1), {"k": "b", "v": None})
    project.epoch()
    assert project.rows("copies") == as_rows(
        *(row(k, v) | {"one": 1, "x": 1} for k, v in [("a", 1), ("b", 0)])
    )
    assert project.rows("some") == as_rows(*({"k": k, "one": 1, "extra": None} for k in "ab"))


@pytest.mark.nightly
def test_a_flow_whose_columns_depend_on_settings_of_its_own_has_them_from_the_graph_on(written: Make) -> None:
    """Also those of a view that it reads, which has the project's for other readers."""
    project = written(
        """
FEED = str(Path.cwd() / "feed" / "orders")
MOMENT = "TIMESTAMP'2024-01-01 10:00:00' AS at"
WITHOUT_A_ZONE = {"spark.sql.timestampType": "TIMESTAMP_NTZ"}
@dp.temporary_view
def moments():
    return spark.readStream.schema("k STRING").json(FEED).selectExpr("k", MOMENT)
@dp.table(spark_conf=WITHOUT_A_ZONE)
def plain():
    return spark.readStream.table("moments").selectExpr("k", "at", "to_timestamp('2024-01-01') AS day")
@dp.table
def others():
    return spark.readStream.table("moments")
@dp.table
def readers():
    return spark.readStream.table("plain")
"""
    )
    project.feed("orders", {"k": "a"})
    project.epoch()
    at, day = (datetime(2024, 1, 1, hour, tzinfo=UTC).replace(tzinfo=None) for hour in (10, 0))
    assert project.rows("plain") == as_rows({"k": "a", "at": at, "day": day})
    assert project.rows("readers") == project.rows("plain")
    assert project.rows("others") == as_rows({"k": "a", "at": at.replace(tzinfo=UTC)})
