"""What cannot be is refused by name, with the reason, before anything runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_ckpt import InvalidRequest, NotFound, pipeline_from_spark_project
from dagster_ckpt.sinks import DeltaTable, KafkaTopic
from tests.ext.spark_pipelines.conftest import Project

Make = Callable[..., Project]

ORDERS = """
@dp.table
def orders():
    return spark.readStream.schema("k STRING, v INT").json(str(Path.cwd() / "feed" / "orders"))
"""
CDC = """
dp.create_streaming_table("kept")
dp.create_auto_cdc_flow(target="kept", source="orders", keys=["k"], sequence_by="v"{more})
"""

REFUSED = {
    "a batch read of a dataset in a stream": (
        """
@dp.table
def joined():
    return spark.readStream.table("orders").join(spark.read.table("sums"), "k")
@dp.materialized_view
def sums():
    return spark.read.table("orders").groupBy("k").agg(F.sum("v").alias("sum"))
""",
        r"flow 'joined' \(transformations/main.py:\d+\) reads 'spark_catalog.default.sums' as it stands",
    ),
    "the same through a view": (
        """
@dp.temporary_view
def both():
    return spark.readStream.table("orders").join(spark.table("orders"), "k")
@dp.table
def joined():
    return spark.readStream.table("both")
""",
        "flow 'joined' .* reads 'spark_catalog.default.orders' as it stands",
    ),
    "the same in SQL": (
        '@dp.table\ndef j():\n    return spark.sql("SELECT * FROM STREAM orders JOIN orders o USING (k)")\n',
        "reads 'orders' both as a stream and as it stands",
    ),
    "options of a reader": (
        """
@dp.table
def more():
    return spark.readStream.option("maxFilesPerTrigger", 1).table("orders")
""",
        "'spark_catalog.default.orders', a dataset of the project, is read with maxfilespertrigger, which would",
    ),
    "a schema of a reader": (
        '@dp.materialized_view\ndef sums():\n    return spark.read.schema("k STRING").table("orders")\n',
        "is read with schema, which would have no effect",
    ),
    "a thread of another function": (
        """
from concurrent.futures import ThreadPoolExecutor
import sys
@dp.materialized_view
def first():
    sys.modules["pool_of_test"] = ThreadPoolExecutor(1)
    return sys.modules["pool_of_test"].submit(lambda: spark.read.table("orders")).result()
@dp.materialized_view
def second():
    return sys.modules.pop("pool_of_test").submit(lambda: spark.read.table("orders")).result()
""",
        "a table is read in a thread that another function of the project has started",
    ),
    "a table elsewhere of the last name of a dataset": (
        """
@dp.table(name="sales.things")
def things():
    return spark.readStream.table("orders")
@dp.materialized_view
def sums():
    return spark.sql("SELECT * FROM sales.things JOIN Things USING (k)")
""",
        "reads 'spark_catalog.sales.things' and 'Things', which is no dataset of the project: write the latter with",
    ),
    "datasets whose names differ in case only": (
        """
@dp.table(name="sales.Orders")
def things():
    return spark.readStream.table("orders")
@dp.materialized_view
def sums():
    return spark.sql("SELECT * FROM sales.Orders JOIN orders USING (k)")
""",
        "reads both '.*rders' and '.*rders': give both an alias",
    ),
    "a name that is put together": (
        """
@dp.materialized_view
def sums():
    return spark.sql("WITH o AS (SELECT * FROM IDENTIFIER(:t)) SELECT * FROM o", args={"t": "orders"})
""",
        "by IDENTIFIER.* with a parameter or an expression: write the name itself",
    ),
    "a qualified name in IDENTIFIER": (
        """
@dp.materialized_view
def sums():
    return spark.sql("SELECT * FROM IDENTIFIER('default.' 'orders')")
""",
        r"names a dataset of the project by IDENTIFIER\('default.' 'orders'\): write default.orders",
    ),
    "an old version of a dataset": (
        '@dp.materialized_view\ndef sums():\n    return spark.sql("SELECT * FROM orders VERSION AS OF 1")\n',
        "flow 'sums' .* fails: .*[Tt]ime travel",
    ),
    "a materialized view read as a stream": (
        """
@dp.materialized_view
def sums():
    return spark.read.table("orders")
@dp.table
def more():
    return spark.readStream.table("sums")
""",
        "flow 'more' .* reads materialized view 'spark_catalog.default.sums' .* as a stream",
    ),
    "rows that change read as a stream": (
        CDC.format(more="") + '@dp.table\ndef more():\n    return spark.readStream.table("kept")\n',
        r"flow 'more' .* reads 'spark_catalog.default.kept' as a stream, whose rows change \(Auto CDC\)",
    ),
    "a streaming table that is no stream": (
        "@dp.table\ndef fixed():\n    return spark.range(3)\n",
        "flow 'fixed' .* returns rows that are no stream",
    ),
    "a materialized view that is a stream": (
        '@dp.materialized_view\ndef flowing():\n    return spark.readStream.table("orders")\n',
        "flow 'flowing' .* returns a stream",
    ),
    "a streaming view read as it stands": (
        """
@dp.temporary_view
def flowing():
    return spark.readStream.table("orders")
@dp.materialized_view
def sums():
    return spark.read.table("flowing")
""",
        "reads temporary view 'flowing' .* as what it is not: use spark.readStream.table",
    ),
    "a circle": (
        """
@dp.table
def hen():
    return spark.readStream.table("egg")
@dp.table
def egg():
    return spark.readStream.table("hen")
""",
        "flow 'egg' .*, flow 'hen' .*: these read one another in a circle",
    ),
    "a table without a flow": (
        'dp.create_streaming_table("empty")\n',
        "'spark_catalog.default.empty' .* has no flow",
    ),
    "a flow without a table": (
        '@dp.append_flow(target="nowhere")\ndef lost():\n    return spark.readStream.table("orders")\n',
        "flow 'lost' .* writes 'nowhere', which the project does not define",
    ),
    "two tables of one name": (ORDERS, "streaming table 'spark_catalog.default.orders' .* is there already"),
    "two tables whose names differ in case only": (
        '@dp.table\ndef Orders():\n    return spark.readStream.table("orders")\n',
        "'spark_catalog.default.Orders' .* and streaming table .* differ in case only: Spark's catalog has one table",
    ),
    "a column twice": (
        '@dp.materialized_view\ndef twice():\n    return spark.read.table("orders").select("k", "k")\n',
        "materialized view 'spark_catalog.default.twice' .*: flow 'twice' .* has two columns 'k'",
    ),
    "a sink of files in an object store": (
        """
dp.create_sink("out", "parquet", {"path": "s3a://bucket/out"})
@dp.append_flow(target="out")
def told():
    return spark.readStream.table("orders")
""",
        r"sink 'out' \(transformations/main.py:\d+\) writes plain Parquet files, .*sinks={'out': ",
    ),
    "a second flow of a materialized view": (
        """
@dp.materialized_view
def sums():
    return spark.read.table("orders")
@dp.append_flow(target="sums")
def more():
    return spark.readStream.table("orders")
""",
        "materialized view 'spark_catalog.default.sums' .* has several flows, flow 'more'",
    ),
    "columns that differ in type": (
        """
@dp.append_flow(target="orders")
def more():
    return spark.readStream.table("orders").select("k", F.col("v").cast("bigint").alias("v"))
""",
        "these read one another in a circle",
    ),
    "flows that differ in a column's type": (
        """
dp.create_streaming_table("both")
@dp.append_flow(target="both")
def a():
    return spark.readStream.table("orders")
@dp.append_flow(target="both")
def b():
    return spark.readStream.table("orders").select("k", F.col("v").cast("bigint").alias("v"))
""",
        "column 'v' is int in flow 'a' .* and bigint in flow 'b'",
    ),
    "a schema that says otherwise": (
        '@dp.table(schema="k STRING, v DOUBLE")\ndef other():\n    return spark.readStream.table("orders")\n',
        "column 'v' is double in its schema and int in flow 'other'",
    ),
    "a schema with NOT NULL": (
        '@dp.table(schema="k STRING NOT NULL, v INT")\ndef other():\n    return spark.readStream.table("orders")\n',
        "column 'k' is NOT NULL in its schema",
    ),
    "a dataset that is read outside of a function": (
        """
spark._jsparkSession.range(1).createOrReplaceTempView("late")
rows = spark.table("late")
spark._jsparkSession.catalog().dropTempView("late")
@dp.table
def late():
    return spark.readStream.table("orders")
@dp.materialized_view
def copied():
    return rows
""",
        "'spark_catalog.default.late' .* is read where its file is imported",
    ),
    "a column of a name that is used here": (
        """
dp.create_streaming_table("kept")
@dp.temporary_view
def source():
    return spark.readStream.table("orders").withColumn("__order", F.lit(1))
dp.create_auto_cdc_flow(target="kept", source="source", keys=["k"], sequence_by="v")
""",
        "its source has a column '__order', a name that is used here",
    ),
    "two tables of one name in one query": (
        """
@dp.table(name="other.orders")
def more():
    return spark.readStream.table("orders")
@dp.table
def both():
    return spark.sql("SELECT * FROM STREAM orders UNION ALL SELECT * FROM STREAM other.orders")
""",
        "the query reads both 'spark_catalog.default.orders' and 'spark_catalog.other.orders'",
    ),
    "a name in another case": (
        '@dp.table\ndef other():\n    return spark.readStream.table("Orders")\n',
        "'Orders' is read, and the project has 'spark_catalog.default.orders'",
    ),
    "a format": (
        '@dp.table(format="orc")\ndef other():\n    return spark.readStream.table("orders")\n',
        "'spark_catalog.default.other' .* has format 'orc'",
    ),
    "a materialized view in another format": (
        '@dp.materialized_view(format="orc")\ndef other():\n    return spark.read.table("orders")\n',
        "'spark_catalog.default.other' .* has format 'orc'",
    ),
    "SCD type 2 read as a stream": (
        CDC.format(more=", stored_as_scd_type=2")
        + '@dp.table\ndef more():\n    return spark.readStream.table("kept")\n',
        r"flow 'more' .* reads 'spark_catalog.default.kept' as a stream, whose rows change \(Auto CDC\)",
    ),
    "history of SCD type 1": (
        CDC.format(more=', track_history_column_list=["v"]'),
        "track_history_column_list.*stored_as_scd_type",
    ),
    "a key that is not kept": (
        CDC.format(more=', except_column_list=["k"]'),
        "its key 'k' is not among the columns",
    ),
    "Auto CDC beside another flow": (
        CDC.format(more=', name="cdc"')
        + '@dp.append_flow(target="kept")\ndef more():\n    return spark.readStream.table("orders")\n',
        "Auto CDC has a streaming table to itself",
    ),
    "a sink without rows of ours": (
        """
dp.create_sink("out", "console")
@dp.append_flow(target="out")
def told():
    return spark.readStream.table("orders")
""",
        "sink 'out' .* has format 'console'",
    ),
    "messages of other columns": (
        """
dp.create_sink("out", "kafka", {"kafka.bootstrap.servers": "b:1", "topic": "t"})
@dp.append_flow(target="out")
def told():
    return spark.readStream.table("orders")
""",
        r"sink 'out' .* writes messages of columns value and key, not \['k', 'v'\]",
    ),
    "another option of Kafka's": (
        """
dp.create_sink("out", "kafka", {"kafka.bootstrap.servers": "b:1", "topic": "t", "kafka.acks": "1"})
@dp.append_flow(target="out")
def told():
    return spark.readStream.table("orders").select(F.col("k").alias("value"))
""",
        "not 'kafka.acks'",
    ),
    "an aggregation that never ends": (
        """
@dp.temporary_view
def counted():
    return spark.readStream.table("orders").groupBy("k").count()
@dp.table
def counts():
    return spark.readStream.table("counted")
""",
        r"^flow 'counts' \(transformations/main.py:\d+\) aggregates without a watermark, .*: make it a material",
    ),
    "an interval that no file holds": (
        '@dp.table\ndef t():\n    return spark.readStream.table("orders").withColumn("i", F.make_interval(F.lit(1)))\n',
        r"streaming table 'spark_catalog.default.t' \(.*\): column 'i' is interval, which no file can hold",
    ),
    "an interval that Delta does not have": (
        """
@dp.table(format="delta")
def t():
    return spark.readStream.table("orders").withColumn("i", F.expr("INTERVAL '1' DAY"))
""",
        r"streaming table 'spark_catalog.default.t' \(.*\): the column i is interval day, which delta-rs cannot write",
    ),
    "a function that fails": (
        "@dp.table\ndef broken():\n    return 1 / 0\n",
        r"flow 'broken' \(transformations/main.py:\d+\) fails: ZeroDivisionError",
    ),
    "a table that nobody has": (
        '@dp.table\ndef broken():\n    return spark.sql("SELECT * FROM STREAM nobodys.rows")\n',
        r"(?s)flow 'broken' \(.*\) fails: AnalysisException: \[TABLE_OR_VIEW_NOT_FOUND\] .*DROP TABLE IF EXISTS\.$",
    ),
    "settings of a view": (
        '@dp.temporary_view(spark_conf={"a": "b"})\ndef v():\n    return spark.readStream.table("orders")\n',
        "flow 'v' .* of a temporary view has spark_conf",
    ),
    "a name that is no word": (
        '@dp.table(name="`a-b`")\ndef other():\n    return spark.readStream.table("orders")\n',
        "streaming table '`a-b`': a name is made of letters",
    ),
    "a dataset called like a step": (
        '@dp.table\ndef complete():\n    return spark.readStream.table("orders")\n',
        "'complete' names a step of every pipeline's job",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_refused_by_name(what: str, written: Make) -> None:
    python, message = REFUSED[what]
    project = written(ORDERS + python)
    with pytest.raises(InvalidRequest, match=message):
        project.pipeline()
    assert not (project.root / ".dagster_ckpt").exists()
    assert not (project.root / "lab").exists()


SQL = {
    "SET spark.sql.ansi.enabled": "has SET without a value",
    "SET a.b = c; CREATE MATERIALIZED VIEW m AS SELECT * FROM orders": "of a materialized view .* or follows SET",
    "USE other": "USE: write USE SCHEMA",
    "USE SCHEMA a.b.c": "a catalog and a schema at most",
    "CREATE TABLE t AS SELECT * FROM orders": "CREATE TABLE: write CREATE MATERIALIZED VIEW",
    "CREATE STREAMING TABLE t (k STRING NOT NULL) AS SELECT k FROM STREAM orders": "'k' is NOT NULL in its schema",
    "CREATE STREAMING TABLE t AS SELECT k FROM orders": "flow 't' .* returns rows that are no stream",
    "CREATE VIEW v AS SELECT * FROM orders": "CREATE VIEW: a persisted view",
    "CREATE FLOW f AS AUTO CDC INTO orders FROM STREAM(orders) KEYS (k) SEQUENCE BY v": "a streaming table to itself",
    "CREATE STREAMING TABLE t FLOW AUTO CDC FROM (SELECT 1) KEYS (k) SEQUENCE BY v": "transformations/more.sql",
    "CREATE FLOW f AS INSERT INTO orders SELECT * FROM STREAM orders": "INSERT INTO ... BY NAME",
    "CREATE STREAMING TABLE t DEFAULT COLLATION UTF8_LCASE AS SELECT k FROM STREAM orders": "DEFAULT COLLATION",
    "CREATE STREAMING TABLE other AS SELEC 1": "transformations/more.sql: Spark cannot read it",
    "SELECT 1": "Project, which is not supported",
    "CREATE STREAMING TABLE t AS WITH orders AS (SELECT 1 AS k) SELECT * FROM STREAM(default.orders)": "names a WITH",
}


@pytest.mark.parametrize("statement", SQL)
def test_a_statement_that_is_not_supported_is_named(statement: str, written: Make) -> None:
    project = written(ORDERS, more__sql=f"-- a comment\n\n{statement};\n")
    with pytest.raises(InvalidRequest, match=SQL[statement]) as caught:
        project.pipeline()
    assert "transformations/more.sql" in str(caught.value)


def test_a_sink_that_is_not_known_gets_a_place_by_its_name(written: Make) -> None:
    project = written(ORDERS + REFUSED["a sink without rows of ours"][0])
    with pytest.raises(InvalidRequest, match="console"):
        project.pipeline()
    pipeline = project.pipeline(sinks={"out": DeltaTable("told")})
    assert pipeline.stages["out"].to == DeltaTable("told")  # type: ignore[index]
    with pytest.raises(InvalidRequest, match="sinks names 'outt', and the datasets are orders, out"):
        project.pipeline(sinks={"outt": DeltaTable("told")})


def test_formats_and_options_become_targets(written: Make) -> None:
    project = written(
        ORDERS
        + """
@dp.table(format="delta", partition_cols=["k"])
def in_delta():
    return spark.readStream.table("orders")
dp.create_sink("messages", "kafka", {"kafka.bootstrap.servers": "b:1", "topic": "t"})
@dp.append_flow(target="messages")
def told():
    return spark.readStream.table("orders").select(F.col("k").alias("value"))
dp.create_sink("files", "delta", {"path": "file:///somewhere/else", "checkpointLocation": "/somewhere/of/its/own"})
@dp.append_flow(target="files")
def written():
    return spark.readStream.table("orders")
"""
    )
    stages = {str(uid): stage for uid, stage in project.pipeline().stages.items()}
    assert stages["in_delta"].to == DeltaTable(partition_by=("k",))
    assert stages["messages"].to == KafkaTopic("b:1", "t")
    assert stages["files"].to == DeltaTable("file:///somewhere/else")
    notes = json.loads((project.root / ".dagster_ckpt" / "graph.json").read_text())["notes"]
    assert any("checkpointLocation has no effect" in note for note in notes)


def test_what_is_no_project_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"holds no spark-pipeline.yaml or spark-pipeline.yml"):
        pipeline_from_spark_project(tmp_path)
    spec = tmp_path / "spark-pipeline.yml"
    for text, message in {
        "name: x\n": "has no 'storage'",
        "name: x\nstorage: y\nlibrary: z\n": "has 'library': known are name, storage",
        "name: x\nstorage: y\nconfiguration: {a: 1}\n": "keys and values that are text, in quotes, and not a: 1",
        "name: 7\nstorage: y\n": "has name: 7, which is no text: write it in quotes",
        "name: x\nstorage: y\nlibraries: [a]\n": "each of 'libraries' is written",
        "name: x\nstorage: y\nlibraries: [{glob: {include: 'a/**/*.py'}}]\n": "and not 'a/\\*\\*/\\*.py'",
        "name: x\nstorage: y\nlibraries: [{glob: {include: }}]\n": "each of 'libraries' is written",
        "name: x\nstorage: y\nlibraries: [{glob: {include: /a/**}}]\n": "a path from beside the spec file, and not '/a",
        "- x\n": "is no list of settings",
        "a: [\n": "is no YAML",
        "name: \u00e4\n": "is no YAML in UTF-8",
        "name: x\nstorage: y\ndatabase: a.b\n": "has database: 'a.b': a database is one name",
        "name: x\nstorage: y\ncatalog: ' main'\n": "has catalog: ' main': a catalog is one name",
    }.items():
        spec.write_text(text, encoding="latin-1")
        with pytest.raises(InvalidRequest, match=message):
            pipeline_from_spark_project(tmp_path)
    (tmp_path / "spark-pipeline.yaml").write_text("name: x\nstorage: y\n")
    with pytest.raises(InvalidRequest, match="holds both"):
        pipeline_from_spark_project(tmp_path)


def test_a_session_of_spark_connect_is_refused(written: Make) -> None:
    project = written(ORDERS)
    project.pipeline()
    (project.root / ".dagster_ckpt" / "graph.json").unlink()
    with pytest.raises(InvalidRequest, match="needs a classic Spark session here"):
        pipeline_from_spark_project(project.root, spark=object())  # type: ignore[arg-type]
