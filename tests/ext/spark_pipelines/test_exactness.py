"""Where a project would get wrong rows without an error, if it were read carelessly."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dagster_ckpt import InvalidRequest, pipeline_from_spark_project, run_stream
from dagster_ckpt.programs import StreamEnd
from tests.ext.spark_pipelines.conftest import Project
from tests.ext.spark_pipelines.test_projects import as_rows, fan_in_tables, order
from tests.progress import wait_until
from tests.tables import files_in

Make = Callable[..., Project]

ORDERS = """
@dp.table
def orders():
    return spark.readStream.schema("k STRING, v INT").json(str(Path.cwd() / "feed" / "orders"))
"""
COUNTED = """
@dp.materialized_view
def counted():
    return spark.read.table("orders").select(F.count("*").alias("n"))
"""


def row(k: str, v: int) -> dict[str, Any]:
    return {"k": k, "v": v}


@pytest.mark.nightly
def test_every_function_sees_the_variables_of_its_own_registration(written: Make) -> None:
    project = written(
        """
def feed():
    return spark.readStream.schema("k STRING, v INT").json(str(Path.cwd() / "feed" / letter))
dp.create_streaming_table("both")
for letter in "ab":
    @dp.append_flow(target="both", name="from_" + letter)
    def flow():
        return feed().where(F.col("k") == letter)  # in itself, and in a helper
for number in (1, 2):
    @dp.table(name=f"above_{number}")
    def above():
        return spark.readStream.table("both").where(F.col("v") > number)
    @dp.materialized_view(name=f"counted_{number}")
    def counted():
        return spark.read.table(f"above_{number}").select(F.count("*").alias("n"), F.lit(number).alias("above"))
letter = number = None
"""
    )
    project.feed("a", row("a", 1), row("a", 2), row("b", 100))
    project.feed("b", row("b", 3), row("a", 100))
    project.epoch()
    assert project.rows("both") == as_rows(row("a", 1), row("a", 2), row("b", 3))
    assert project.rows("above_1") == as_rows(row("a", 2), row("b", 3))
    assert project.rows("above_2") == as_rows(row("b", 3))
    assert project.rows("counted_1") == as_rows({"n": 2, "above": 1})
    assert project.rows("counted_2") == as_rows({"n": 1, "above": 2})


def test_flows_with_other_columns_fill_one_table_by_name(written: Make) -> None:
    project = written(
        ORDERS
        + """
dp.create_streaming_table("wide", schema="extra STRING, k STRING")
@dp.append_flow(target="wide")
def swapped():
    return spark.readStream.table("orders").select((F.col("v") + 1).alias("v"), "k")
@dp.append_flow(target="wide")
def named():
    return spark.readStream.table("orders").select("k", F.upper("k").alias("name"))
@dp.table
def read_back():
    return spark.readStream.table("wide").select("name", "v")
"""
    )
    project.feed("orders", row("a", 1))
    project.epoch()
    empty = {"extra": None, "name": None, "v": None}
    assert project.rows("wide") == as_rows(empty | row("a", 2), empty | {"k": "a", "name": "A"})
    assert project.rows("read_back") == as_rows({"name": None, "v": 2}, {"name": "A", "v": None})


@pytest.mark.nightly
def test_a_dataset_that_is_read_twice_is_read_twice(written: Make) -> None:
    project = written(
        ORDERS
        + """
@dp.table
def doubled():
    return spark.readStream.table("orders").union(spark.readStream.table("spark_catalog.default.orders"))
@dp.table(name="other.orders")
def elsewhere():
    return spark.sql("SELECT o.k, v FROM STREAM(default.orders) AS o WHERE o.v > 1")
@dp.materialized_view
def both():
    here = spark.read.table("orders").select("k")
    return here.union(spark.read.table("other.orders").select("k"))
"""
    )
    project.feed("orders", row("a", 1))
    project.epoch()
    project.feed("orders", row("b", 2))
    project.epoch()
    assert project.rows("doubled") == as_rows(*[row("a", 1), row("b", 2)] * 2)
    assert project.rows("other__orders") == as_rows(row("b", 2))
    assert project.rows("both") == as_rows({"k": "a"}, {"k": "b"}, {"k": "b"})


@pytest.mark.nightly
def test_reads_in_threads_that_a_function_starts_are_of_the_project(written: Make) -> None:
    project = written(
        ORDERS
        + """
from concurrent.futures import ThreadPoolExecutor
@dp.materialized_view
def both():
    with ThreadPoolExecutor(2) as pool:
        queries = [f"SELECT k, {n} AS n FROM default.{name}" for n, name in enumerate(["orders", "orders", "a_view"])]
        first, *more = pool.map(spark.sql, queries)
    for one in more:
        first = first.union(one)
    return first
@dp.materialized_view
def a_view():
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(spark.read.table, "orders").result().where("v > 1")
@dp.materialized_view
def a_bold_one():
    import contextlib, threading
    found = []
    def read():
        with contextlib.suppress(BaseException):
            found.append(spark.read.table("last"))
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    return found[0]
@dp.materialized_view
def last():
    return spark.read.table("a_view").select("k")
"""
    )
    project.feed("orders", row("a", 1), row("b", 2))
    project.epoch()
    assert project.rows("both") == as_rows(
        *({"k": k, "n": int(n)} for k, n in ["a0", "b0", "a1", "b1", "b2"])
    )


def test_state_of_a_flow_goes_on_and_goes_back(written: Make) -> None:
    project = written(
        ORDERS
        + """
@dp.temporary_view
def once_each():
    return spark.readStream.table("orders").dropDuplicates(["k"])
@dp.table(spark_conf={"spark.sql.shuffle.partitions": "3"})
def firsts():
    return spark.readStream.table("once_each")
@dp.table
def seconds():
    return spark.readStream.table("once_each").select("v")
"""
    )
    project.feed("orders", row("a", 1))
    project.epoch()
    project.feed("orders", row("a", 2), row("b", 3))
    project.epoch()
    expected = {"firsts": as_rows(row("a", 1), row("b", 3)), "seconds": as_rows({"v": 1}, {"v": 3})}
    assert {name: project.rows(name) for name in expected} == expected
    project.epoch(restore={"restore_from": "chk-1"})
    assert {name: project.rows(name) for name in expected} == expected


def test_an_empty_project_has_empty_views_and_goes_on(written: Make) -> None:
    project = written(ORDERS + COUNTED)
    project.epoch()
    assert project.rows("counted") == as_rows({"n": 0})
    project.feed("orders", row("a", 1))
    project.epoch()
    assert project.rows("counted") == as_rows({"n": 1})


@pytest.mark.nightly
def test_views_show_the_rows_of_tables_that_are_written_at_least_once(written: Make) -> None:
    project = written(ORDERS + COUNTED)
    pipeline = project.pipeline(checkpointing={"mode": "at_least_once"})
    project.epoch(pipeline)
    assert project.rows("counted") == as_rows({"n": 0})
    for number in (1, 2):
        project.feed("orders", row("a", number))
        project.epoch(pipeline)
        assert len(project.rows("orders")) == number
        assert project.rows("counted") == as_rows({"n": number})


@pytest.mark.nightly
def test_a_view_that_reads_more_than_the_project_is_computed_in_every_run_whatever_its_plan_shows(
    written: Make,
) -> None:
    project = written(
        ORDERS
        + """
@dp.materialized_view
def prices():
    return spark.read.schema("k STRING, price INT").json(str(Path.cwd() / "feed" / "prices"))
@dp.materialized_view
def known():
    return spark.read.table("orders").join(spark.read.table("prices"), "k")
@dp.materialized_view
def noted():
    return spark.createDataFrame([(len(list((Path.cwd() / "feed" / "prices").iterdir())),)], "files INT")
"""
    )
    project.feed("prices", {"k": "a", "price": 7})
    project.feed("orders", row("a", 1), row("b", 2))
    project.epoch()
    assert project.rows("known") == as_rows(row("a", 1) | {"price": 7})
    assert project.rows("noted") == as_rows({"files": 1})
    project.feed("prices", {"k": "b", "price": 8})
    project.epoch()
    assert project.rows("known") == as_rows(row("a", 1) | {"price": 7}, row("b", 2) | {"price": 8})
    assert project.rows("noted") == as_rows({"files": 2})


@pytest.mark.nightly
def test_a_stream_computes_materialized_views_after_its_checkpoints(
    project: Callable[[str], Project],
) -> None:
    shop = project("fan_in")
    eu, us = [order("ann", 1), order("bob", 5)], [order("cid", 7)]
    shop.feed("eu", *eu)
    shop.feed("us", *us)
    pipeline = shop.pipeline()
    stopping, ends = threading.Event(), list[StreamEnd | BaseException]()

    def stream() -> None:
        try:
            where = shop.coordinator
            ends.append(
                run_stream(
                    pipeline,
                    coordinator=where,
                    spark=shop.spark,
                    settings={"interval": 0.5},
                    stopping=stopping,
                )
            )
        except BaseException as error:
            ends.append(error)

    thread = threading.Thread(target=stream)
    thread.start()
    try:
        wait_until(
            lambda: bool(ends) or shop.rows("share") == fan_in_tables(eu, us)["share"], "first rows are there"
        )
        more = [order("dan", 4)]
        shop.feed("us", *more)
        us += more
        wait_until(
            lambda: bool(ends) or shop.rows("share") == fan_in_tables(eu, us)["share"], "later rows are there"
        )
    finally:
        stopping.set()
        thread.join()
    assert isinstance(ends[0], StreamEnd), ends
    shop.epoch(pipeline)
    assert shop.all_rows() == fan_in_tables(eu, us)


# --- the graph beside the project -----------------------------------------------------------------------------


@pytest.mark.nightly
def test_definitions_load_without_a_session_until_something_changes(
    written: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = written(ORDERS + "import sys; sys.path.insert(0, str(Path.cwd()))\nimport lib_of_the_project\n")
    (project.root / "lib_of_the_project.py").write_text("x = 1\n")
    monkeypatch.setattr("dagster_ckpt.ext.spark_pipelines.project._active_session", lambda: None)

    def loaded() -> str:
        try:
            return ",".join(pipeline_from_spark_project(project.root).stages)
        except InvalidRequest as error:
            return str(error)

    assert "has not been made. Run dagster-ckpt adopt-project" in loaded()
    project.pipeline()
    assert loaded() == "orders__flow,orders"
    stale = project.pipeline()
    for path, what in {
        "lib_of_the_project.py": "has changed",
        "transformations/main.py": "has changed",
        "spark-pipeline.yml": "has changed",
        "transformations/new.py": "is new",
        "dagster-ckpt.yml": "is new",
    }.items():
        file = project.root / path
        before = file.read_text() if file.exists() else None
        file.write_text(
            (before or "") + "\n# more\n" if path != "dagster-ckpt.yml" else "previous_uids: {}\n"
        )
        assert f"is stale: {path} {what}" in loaded()
        file.unlink() if before is None else file.write_text(before)
        assert loaded() == "orders__flow,orders"
    (project.root / "transformations" / "main.py").write_text("")
    with pytest.raises(InvalidRequest, match=r"main.py has changed since its graph was made"):
        project.epoch(stale)
    (project.root / ".dagster_ckpt" / "graph.json").write_text('{"format": 1, "more": 2}')
    assert "has not been made" in loaded()


@pytest.mark.nightly
def test_a_project_that_depends_on_more_than_its_files_is_refused_when_it_runs(
    written: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS_OF_TEST", "k")
    project = written(
        ORDERS
        + """
import os
@dp.table
def some():
    rows = spark.readStream.table("orders" if os.environ.get("READS_OF_TEST") is None else "more")
    return rows.select(*os.environ["COLUMNS_OF_TEST"].split(","))
@dp.table
def more():
    return spark.readStream.table("orders").where("v > 1")
"""
    )
    pipeline = project.pipeline()
    project.feed("orders", row("a", 1), row("b", 2))
    monkeypatch.setenv("COLUMNS_OF_TEST", "k,v")
    with pytest.raises(
        InvalidRequest, match=r"flow 'some' brings column 'v' as int, which its table did not have"
    ):
        project.epoch(pipeline)
    monkeypatch.setenv("COLUMNS_OF_TEST", "k")
    monkeypatch.setenv("READS_OF_TEST", "more")
    with pytest.raises(
        InvalidRequest, match=r"flow 'some' reads 'spark_catalog.default.more' now, which it did not"
    ):
        project.epoch(pipeline)
    monkeypatch.delenv("READS_OF_TEST")
    project.epoch(pipeline)
    assert project.rows("some") == as_rows({"k": "a"}, {"k": "b"})


def test_a_renamed_dataset_keeps_its_state_and_its_table(written: Make) -> None:
    project = written(ORDERS)
    project.feed("orders", row("a", 1))
    project.epoch()
    main = project.root / "transformations" / "main.py"
    main.write_text(main.read_text().replace("def orders()", "def sales()"))
    (project.root / "dagster-ckpt.yml").write_text("previous_uids: {sales: [orders]}\n")
    project.feed("orders", row("b", 2))
    project.epoch()
    assert project.rows("orders") == as_rows(row("a", 1), row("b", 2))
    assert not (project.tables / "sales").exists()
    (project.root / "dagster-ckpt.yml").write_text("previous_uids: {sale: [orders]}\n")
    with pytest.raises(InvalidRequest, match=r"previous_uids names 'sale', and the datasets are sales"):
        project.pipeline()


def test_a_project_gets_its_own_settings_and_leaves_none(written: Make) -> None:
    project = written(
        """
letters = spark.conf.get("my.letters")
@dp.table
def orders():
    rows = spark.readStream.schema("k STRING, v INT").json(str(Path.cwd() / "feed" / "orders"))
    return rows.where(F.col("k").isin(list(letters))).withColumn("n", F.expr("CAST('x' || k AS INT)"))
"""
        + COUNTED
    )
    spec = project.root / "spark-pipeline.yml"
    text = spec.read_text()
    spec.write_text(
        text + "configuration:\n  my.letters: ab\n  spark.sql.ansi.enabled: 'false'\n"
        "  spark.sql.parquet.compression.codec: gzip\n"
    )
    project.feed("orders", row("a", 1), row("c", 2))
    before = project.spark.conf.getAll
    project.epoch()
    assert project.rows("orders") == as_rows(row("a", 1) | {"n": None})
    [view] = files_in(project.tables / "counted")
    assert pq.read_metadata(view).row_group(0).column(0).compression == "GZIP"
    assert project.spark.conf.getAll == before
    spec.write_text(text + "configuration:\n  my.letters: ab\n  spark.executor.memory: 3g\n")
    with pytest.raises(
        InvalidRequest, match=r"spark.executor.memory is to be '3g', which a session must start with"
    ):
        project.pipeline()


def test_paths_in_the_graph_are_of_the_project(written: Make, tmp_path: Path) -> None:
    project = written(ORDERS)
    project.pipeline()
    assert str(tmp_path) not in (project.root / ".dagster_ckpt" / "graph.json").read_text()
