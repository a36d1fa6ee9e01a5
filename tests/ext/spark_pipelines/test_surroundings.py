"""What a project's files find around them: session, schema, catalog and modules, as under Spark's own runner."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from dagster_ckpt import InvalidRequest, pipeline_from_spark_project
from dagster_ckpt.cli.app import main
from dagster_ckpt.ext.spark_pipelines.graph import load_graph, load_spec, why_stale
from tests.ext.spark_pipelines.conftest import Project, rows_of, write_project
from tests.ext.spark_pipelines.test_projects import as_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Make = Callable[..., Project]

ORDERS = """
@dp.table
def orders():
    return spark.readStream.schema("k STRING, v INT").json(str(Path.cwd() / "feed" / "orders"))
"""


def row(k: str, v: int) -> dict[str, Any]:
    return {"k": k, "v": v}


# --- the session ----------------------------------------------------------------------------------------------


def test_rows_that_spark_connect_takes_are_taken_here_too(written: Make) -> None:
    project = written(
        """
from pyspark.sql.types import StructType, StructField, FloatType, StringType
SCHEMA = StructType([StructField("k", StringType(), False), StructField("v", FloatType(), False)])
@dp.materialized_view
def by_schema():
    return spark.createDataFrame([{"v": 450, "k": "a"}, {"k": "b", "v": 1.5}], SCHEMA)
@dp.materialized_view
def by_text():
    return spark.createDataFrame((one for one in [("a", 450), ("b", None)]), "k STRING, v DOUBLE")
@dp.materialized_view
def by_type():
    return spark.createDataFrame([1, 2], "double")
"""
    )
    project.epoch()
    assert project.rows("by_schema") == as_rows({"k": "a", "v": 450.0}, {"k": "b", "v": 1.5})
    assert project.rows("by_text") == as_rows({"k": "a", "v": 450.0}, {"k": "b", "v": None})
    assert project.rows("by_type") == as_rows({"value": 1.0}, {"value": 2.0})


def test_rows_that_neither_takes_are_refused_by_the_flow(written: Make) -> None:
    project = written(
        '@dp.materialized_view\ndef wrong():\n    return spark.createDataFrame([("a", "b")], "k STRING, v FLOAT")\n'
    )
    with pytest.raises(InvalidRequest, match=r"flow 'wrong' \(transformations/main.py:\d+\) fails"):
        project.pipeline()


CHANGES = {
    'spark.conf.set("spark.sql.ansi.enabled", "false")': "RuntimeConfig.set changes the session.*configuration",
    'spark.catalog.setCurrentDatabase("global_temp")': "Catalog.setCurrentDatabase changes the session",
    'spark.range(1).createOrReplaceTempView("left")': "createOrReplaceTempView changes .* define a temporary_view",
    'spark.udf.register("left", lambda: 1)': "UDFRegistration.register changes the session",
    'spark.sql("SET spark.sql.ansi.enabled = false")': r"spark.sql\('SET .*'\) is no query",
    'spark.sql("CREATE TABLE left USING parquet AS SELECT 1 AS n")': "is no query",
    'spark.sql("INSERT INTO nowhere SELECT 1")': "is no query",
}


@pytest.mark.parametrize("call", CHANGES)
@pytest.mark.parametrize("place", ["in a function", "in a file"])
def test_calls_that_change_the_session_or_more_are_refused_where_they_are(
    call: str, place: str, written: Make
) -> None:
    rows = '    return spark.sql("SHOW TABLES")\n'
    python = "@dp.materialized_view\ndef view():\n" + rows
    project = written(
        f"{call}\n{python}" if place == "in a file" else python.replace(rows, f"    {call}\n{rows}")
    )
    ansi = project.spark.conf.get("spark.sql.ansi.enabled")
    where = (
        r"transformations/main.py.*"
        if place == "in a file"
        else r"flow 'view' \(transformations/main.py:\d+\).*"
    )
    with pytest.raises(InvalidRequest, match=where + CHANGES[call]):
        project.pipeline()
    assert not project.spark.catalog.tableExists("left")
    assert project.spark.catalog.currentDatabase() == "default"
    assert project.spark.conf.get("spark.sql.ansi.enabled") == ansi
    project.spark.conf.set("spark.sql.ansi.enabled", ansi)  # what refuses is gone with the files


def test_a_dataset_that_is_read_twice_is_joined_with_itself(written: Make) -> None:
    project = written(
        ORDERS
        + """
@dp.temporary_view
def doubled():
    return spark.read.table("orders").select("k", (F.col("v") * 2).alias("v"))
@dp.materialized_view
def pairs():
    a, b = spark.read.table("orders"), spark.table("orders")
    return a.join(b, a.v < b.v).select(a.k, b.k.alias("other"))
@dp.materialized_view
def more():
    a, b = spark.read.table("doubled"), spark.read.table("doubled")
    return a.join(b, a.v < b.v).select(b["k"])
"""
    )
    project.feed("orders", row("a", 1), row("b", 2))
    project.epoch()
    assert project.rows("pairs") == as_rows({"k": "a", "other": "b"})
    assert project.rows("more") == as_rows({"k": "b"})


def test_tables_of_one_name_in_two_schemas_are_joined_in_one_query(written: Make) -> None:
    project = written(
        """
@dp.table(name="bronze.orders")
def bronze():
    return spark.readStream.schema("k STRING, v INT").json(str(Path.cwd() / "feed" / "orders"))
""",
        more__sql="""
CREATE STREAMING TABLE silver.orders AS SELECT o.k, o.v * 2 AS v FROM STREAM bronze.orders AS o;
CREATE MATERIALIZED VIEW both AS
SELECT b.k, s.v FROM bronze.orders b JOIN (SELECT * FROM silver.`orders` s) s ON b.k = s.k
UNION ALL SELECT orders.k, silver.orders.v FROM silver.orders WHERE silver . `orders`.k <> 'silver.orders.k';
""",
    )
    project.feed("orders", row("a", 1))
    project.epoch()
    assert project.rows("both") == as_rows(row("a", 2), row("a", 2))


# --- the schema -----------------------------------------------------------------------------------------------


@pytest.fixture
def raw(spark: SparkSession) -> Iterator[None]:
    """There is a table ``raw`` in the session's schema, and another one in a schema ``sales_of_test``."""
    spark.sql("CREATE DATABASE sales_of_test")
    for place, word in {"default": "wrong", "sales_of_test": "right"}.items():
        spark.sql(f"CREATE TABLE {place}.raw USING parquet AS SELECT '{word}' AS word")
    yield
    spark.sql("DROP DATABASE sales_of_test CASCADE")
    spark.sql("DROP TABLE default.raw")


def in_schema(project: Project, name: str) -> None:
    spec = project.root / "spark-pipeline.yml"
    spec.write_text(spec.read_text() + f"database: {name}\n")


READS_RAW = """
@dp.materialized_view
def by_name():
    return spark.read.table("raw")
@dp.materialized_view
def by_query():
    return spark.sql("WITH some AS (SELECT * FROM raw) SELECT * FROM some")
@dp.table
def streamed():
    return spark.readStream.table("raw")
"""


@pytest.mark.usefixtures("raw")
def test_a_table_without_a_schema_is_that_of_the_projects_schema(written: Make) -> None:
    project = written(READS_RAW, more__sql="CREATE MATERIALIZED VIEW by_file AS SELECT * FROM raw;")
    in_schema(project, "sales_of_test")
    project.epoch()
    assert project.all_rows() == dict.fromkeys(
        ["by_name", "by_query", "streamed", "by_file"], as_rows({"word": "right"})
    )
    assert project.spark.catalog.currentDatabase() == "default"


@pytest.mark.usefixtures("raw")
@pytest.mark.parametrize("how", ['spark.read.table("raw")', 'spark.sql("SELECT * FROM raw")'])
def test_a_table_without_a_schema_is_refused_where_there_is_no_schema_of_the_project(
    how: str, written: Make
) -> None:
    project = written(f"{ORDERS}\n@dp.materialized_view\ndef some():\n    return {how}\n")
    in_schema(project, "nowhere_of_test")
    with pytest.raises(
        InvalidRequest, match=r"flow 'some'.*'`?raw`?' is read.*spark_catalog.nowhere_of_test"
    ):
        project.pipeline()


@pytest.mark.usefixtures("raw")
def test_use_and_set_hold_for_what_follows_in_their_file(written: Make) -> None:
    project = written(
        ORDERS,
        a__sql="""
USE SCHEMA sales_of_test;
CREATE MATERIALIZED VIEW copied AS SELECT * FROM raw;
CREATE MATERIALIZED VIEW again AS SELECT c.word, o.k FROM copied c, default.orders o;
SET spark.sql.ansi.enabled = false;
CREATE STREAMING TABLE numbers AS SELECT k, CAST(k AS INT) AS n FROM STREAM default.orders;
""",
        b__sql="CREATE MATERIALIZED VIEW elsewhere AS SELECT * FROM raw;",
    )
    project.feed("orders", row("a", 1), row("7", 2))
    project.epoch()
    assert project.rows("sales_of_test__copied") == as_rows({"word": "right"})
    assert project.rows("sales_of_test__again") == as_rows(*({"word": "right", "k": k} for k in "a7"))
    assert project.rows("sales_of_test__numbers") == as_rows({"k": "a", "n": None}, {"k": "7", "n": 7})
    assert project.rows("elsewhere") == as_rows({"word": "wrong"})


def test_comments_are_no_part_of_statements(written: Make) -> None:
    project = written(
        """
@dp.table
def orders():
    return spark.readStream.schema("k STRING, v INT").json(str(Path.cwd() / "feed" / "orders"))
""",
        more__sql="""
-- first; INSERT INTO nothing BY NAME
CREATE STREAMING TABLE kept; /* a ; in a
comment */
CREATE FLOW some AS -- INSERT INTO other BY NAME SELECT 1;
INSERT /* here */ INTO kept BY -- by
NAME
SELECT k, '-- no; comment' AS said FROM STREAM orders; -- the end
-- and no statement
""",
        empty__sql="-- nothing\n",
    )
    project.feed("orders", row("a", 1))
    project.epoch()
    assert project.rows("kept") == as_rows({"k": "a", "said": "-- no; comment"})


@pytest.mark.nightly
def test_auto_cdc_in_sql_is_that_of_python(written: Make) -> None:
    project = written(
        """
@dp.temporary_view
def told():
    return spark.readStream.schema("k STRING, v INT, kind STRING, `a-b` INT").json(str(Path.cwd() / "feed" / "told"))
dp.create_streaming_table("by_python")
dp.create_auto_cdc_flow(
    target="by_python", source="told", keys=["k"], sequence_by="v", apply_as_deletes="kind = 'delete'",
    except_column_list=["kind"], stored_as_scd_type=2, name="changes",
)
""",
        more__sql="""
CREATE STREAMING TABLE by_flow;
CREATE FLOW newest AS AUTO CDC INTO by_flow FROM STREAM(told) KEYS (k)
APPLY AS DELETE WHEN kind = 'delete' SEQUENCE BY v COLUMNS (k, `a-b`);
CREATE STREAMING TABLE by_table FLOW AUTO CDC FROM STREAM told KEYS (k)
APPLY AS DELETE WHEN kind = 'delete' SEQUENCE BY v COLUMNS * EXCEPT (kind) STORED AS SCD TYPE 2;
""",
    )
    changes = [("a", 2, ""), ("a", 1, ""), ("b", 1, ""), ("b", 2, "delete"), ("c", 3, "")]
    project.feed("told", *({"k": k, "v": v, "kind": kind, "a-b": v * 10} for k, v, kind in changes))
    project.epoch()
    assert project.rows("by_flow") == as_rows({"k": "a", "a-b": 20}, {"k": "c", "a-b": 30})
    assert len(project.rows("by_python")) == 4
    assert project.rows("by_table") == project.rows("by_python")


# --- the catalog ----------------------------------------------------------------------------------------------

HIDDEN = """
@dp.materialized_view
def limits():
    return spark.range(1).selectExpr("1 AS least")
@dp.materialized_view
def large():
    return spark.read.table("orders").where("v > (SELECT max(least) FROM {name})")
"""


@pytest.mark.parametrize(
    "left", ["", "TABLE limits USING parquet AS SELECT 0 AS least", "VIEW limits AS SELECT 0 AS least"]
)
def test_a_dataset_within_an_expression_is_refused_whether_the_catalog_has_an_old_one_or_not(
    left: str, written: Make, spark: SparkSession
) -> None:
    """Spark finds the project's; here the catalog answered, with a table of that name that Spark has left."""
    project = written(ORDERS + HIDDEN.format(name="limits"))
    if left:
        spark.sql(f"CREATE {left}")
    try:
        with pytest.raises(
            InvalidRequest, match=r"flow 'large' .* reads 'spark_catalog.default.limits' within an expression"
        ):
            project.pipeline()
    finally:
        if left:
            spark.sql(f"DROP {left.split(maxsplit=1)[0]} limits")


def test_tables_of_the_catalog_are_read_within_expressions(written: Make, spark: SparkSession) -> None:
    spark.sql("CREATE TABLE limits_of_test USING parquet AS SELECT 1 AS least")
    try:
        project = written(ORDERS + HIDDEN.format(name="limits_of_test"))
        project.feed("orders", row("a", 1), row("b", 2))
        project.epoch()
        assert project.rows("large") == as_rows(row("b", 2))
    finally:
        spark.sql("DROP TABLE limits_of_test")


# --- files ----------------------------------------------------------------------------------------------------


def test_modules_of_a_virtual_environment_in_the_project_are_none_of_its_files(
    written: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = written("import module_of_test, helper_of_test\n" + ORDERS)
    installed = project.root / ".venv" / "lib" / "python3" / "site-packages"
    for folder, module in {installed: "module_of_test", project.root: "helper_of_test"}.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{module}.py").write_text("")
        monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "prefix", str(project.root / ".venv"))
    project.pipeline()
    graph = load_graph(load_spec(project.root))
    assert graph is not None
    assert set(graph.files) == {"spark-pipeline.yml", "transformations/main.py", "helper_of_test.py"}


def test_a_process_that_has_imported_a_module_before_it_was_changed_does_not_run_it(
    written: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph is made again of the new files, and Python goes on with the old module."""
    project = written(
        "from least_of_test import LEAST\n"
        + ORDERS.replace('feed" / "orders"))', 'feed" / "orders")).where(f"v > {LEAST}")')
    )
    monkeypatch.syspath_prepend(project.root)
    helper = project.root / "least_of_test.py"
    helper.write_text("LEAST = 0\n")
    project.pipeline()
    helper.write_text("LEAST = 10\n")
    with pytest.raises(InvalidRequest, match=r"least_of_test.py has changed since this process imported it"):
        project.pipeline()
    del sys.modules["least_of_test"]
    project.feed("orders", row("a", 5), row("b", 11))
    shutil.rmtree(project.root / "__pycache__", ignore_errors=True)
    project.epoch()
    assert project.rows("orders") == as_rows(row("b", 11))


def test_a_folder_whose_name_is_a_pattern_is_not_taken_for_those_it_matches(
    tmp_path: Path, spark: SparkSession
) -> None:
    feed = tmp_path / "feed"
    python = ORDERS.replace('str(Path.cwd() / "feed" / "orders")', repr(str(feed)))
    counted = '@dp.materialized_view\ndef n():\n    return spark.table("orders").groupBy("k").count()\n'
    python += counted + '@dp.materialized_view\ndef m():\n    return spark.table("n")\n'
    feed.mkdir()
    (feed / "1.json").write_text('{"k": "a", "v": 1}')
    projects = [write_project(tmp_path / name, spark, python) for name in ("shop 1", "shop [1]")]
    projects[0].epoch()
    (feed / "2.json").write_text('{"k": "a", "v": 2}')
    with pytest.raises(InvalidRequest, match=r"cannot write to a folder with '\['"):
        projects[1].epoch()
    assert projects[0].rows("m") == as_rows({"k": "a", "count": 1})


def test_a_spec_file_that_is_a_link_is_beside_its_project(written: Make, tmp_path: Path) -> None:
    """As files of a volume of Kubernetes are."""
    project = written(ORDERS)
    spec = project.root / "spark-pipeline.yml"
    spec.rename(tmp_path / "elsewhere.yml")
    spec.symlink_to(tmp_path / "elsewhere.yml")
    assert set(project.pipeline().stages) == {"orders", "orders__flow"}
    assert os.listdir(project.root / ".dagster_ckpt") == ["graph.json"]


def test_a_project_that_is_copied_with_its_graph_writes_to_its_own_sinks(
    written: Make, tmp_path: Path
) -> None:
    out = 'dp.create_sink("out", format="delta", options={"path": str(Path.cwd() / "out")})\n'
    flow = '@dp.append_flow(target="out")\ndef outs():\n    return spark.readStream.table("orders")\n'
    project = written(ORDERS + out + flow)
    project.feed("orders", row("a", 1))
    project.epoch()
    shutil.copytree(project.root, tmp_path / "copied", ignore=shutil.ignore_patterns("lab", "tables", "out"))
    copied = load_graph(load_spec(tmp_path / "copied"))
    assert copied is not None
    assert [one.properties for one in copied.datasets if one.name == "out"] == [
        {"path": f"{tmp_path}/copied/out"}
    ]
    assert rows_of(project.root / "out") == as_rows(row("a", 1))


def test_two_spec_files_in_one_folder_are_two_projects(written: Make) -> None:
    project = written(ORDERS)
    standard = project.root / "spark-pipeline.yml"
    other = project.root / "nightly.yml"
    other.write_text(standard.read_text().replace("name: written", "name: nightly"))
    for spec in (standard, other):
        pipeline_from_spark_project(spec, spark=project.spark)
    found = [(load_spec(spec), load_graph(load_spec(spec))) for spec in (standard, other)]
    assert [graph is not None and why_stale(spec, graph) for spec, graph in found] == ["", ""]


def test_a_view_called_like_the_stream_of_a_project_without_streams_is_refused(written: Make) -> None:
    project = written("@dp.materialized_view\ndef no_rows():\n    return spark.range(1)\n")
    with pytest.raises(InvalidRequest, match=r"transformations/main.py:\d+: 'no_rows' names the stream"):
        project.pipeline()


def test_a_project_whose_name_is_no_name_of_folders_gets_one(written: Make) -> None:
    project = written(ORDERS)
    spec = project.root / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("name: written", "name: Ventes d'été"))
    with pytest.raises(InvalidRequest, match=r"\"Ventes d'été\" is not a valid pipeline name.*name=\.\.\.\)"):
        project.pipeline()
    assert pipeline_from_spark_project(project.root, spark=project.spark, name="ventes").name == "ventes"
    looked = [
        CliRunner().invoke(main, ["adopt-project", str(project.root), *more])
        for more in ([], ["-p", "ventes"])
    ]
    assert ["not yet: " in done.output for done in looked] == [True, False], [done.output for done in looked]
