"""The same projects under Spark's own runner: equal tables."""

from __future__ import annotations

import importlib.util
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from dagster_ckpt.sinks import DeltaTable
from tests.ext.spark_pipelines.conftest import PROJECTS, Project, Rows, rows_of
from tests.ext.spark_pipelines.played_spark import storage
from tests.ext.spark_pipelines.test_adoption import SHOP, Make, Shop, row
from tests.ext.spark_pipelines.test_projects import as_rows, change, changes_tables, order
from tests.plain_files import compiled
from tests.spark_session import SPARK_JVM

NEEDED = ("grpc", "grpc_status", "google.rpc", "zstandard")


def missing() -> list[str]:
    def found(module: str) -> bool:
        try:
            return importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            return False

    return [module for module in NEEDED if not found(module)]


@pytest.fixture(autouse=True)
def _spark_connect() -> None:
    lost = missing()
    if lost:
        assert not os.environ.get("CI"), f"Spark Connect needs {lost}"
        pytest.skip(f"Spark Connect needs {lost}")


PARTITIONS = ("--conf", "spark.sql.shuffle.partitions=3")
"""Of Spark's own runner: fewer than its 200, each of which costs files and tasks, and not the 2 of our session."""
HIVE = ("--conf", "spark.sql.catalogImplementation=hive")
"""With Spark's own catalog, tables are known to one run only: a second one does not find them."""


def run_under_spark(project: Project, *options: str) -> dict[str, Rows]:
    """Run ``spark-pipelines run`` on the project and return its tables."""
    done = spark_pipelines(project, *options)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return {folder.name: rows_of(folder) for folder in (project.root / "spark-warehouse").iterdir()}


def spark_pipelines(project: Project, *options: str) -> subprocess.CompletedProcess[str]:
    spec = project.root / "spark-pipeline.yml"
    ours = spec.read_text()
    spec.write_text(re.sub("storage: .*", f"storage: {storage(project).as_uri()}", ours))
    home = Path(pyspark.__file__).parent
    # PySpark takes a free port for Spark Connect where this is set; "1" would mean a build of Spark's own to Java.
    apart = {"SPARK_TESTING": "side by side"}
    brief = {"JDK_JAVA_OPTIONS": SPARK_JVM}  # of the JVM that starts the one with Spark too
    try:
        return subprocess.run(
            [str(home / "bin" / "spark-pipelines"), "run", *PARTITIONS, *options],
            cwd=project.root,
            env={**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, **apart, **brief},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        spec.write_text(ours)


@pytest.mark.nightly
def test_our_projects_have_equal_tables_under_sparks_own_runner(project: Callable[[str], Project]) -> None:
    """Both as one: each run of Spark's own takes half a minute to begin."""
    one = project("linear")
    shutil.copytree(PROJECTS / "fan_in" / "transformations", one.root / "transformations" / "fan_in")
    for feed in ("orders", "eu", "us"):
        one.feed(feed, order("ann", 1), order("bob", 5), order(None, 3))
    one.epoch()
    for feed in ("orders", "us"):
        one.feed(feed, order("bea", 8))
    one.epoch()
    ours = one.all_rows()
    assert len(ours) == 10
    assert all(ours.values())
    assert ours == {table: as_ours(rows, ours[table]) for table, rows in run_under_spark(one).items()}


def as_ours(rows: Rows, ours: Rows) -> Rows:
    """Return Spark's rows with the columns that are in its catalog, and not in files in which they would be empty."""
    empty = dict.fromkeys(name for name, _ in ours[0])
    return as_rows(*({**empty, **dict(row)} for row in rows))


SINK = """
dp.create_sink("out", format="parquet", options={"path": str(Path.cwd() / "out")})
@dp.append_flow(target="out")
def outs():
    return spark.readStream.table("orders")
"""


@pytest.mark.nightly
def test_what_spark_itself_has_left_is_adopted(written: Make) -> None:
    shop = Shop(written(SHOP + SINK))
    elsewhere = {"out": DeltaTable(str(shop.project.root / "told"))}
    shop.feed("orders", row("a", 1), row("b", 2))
    shop.feed("more", row("b", 5))
    shop.feed("extra", row("x", 7))
    run_under_spark(shop.project, *HIVE)
    shop.feed("orders", row("a", 3))
    shop.feed("more", row("a", 10))
    run_under_spark(shop.project, *HIVE)
    shutil.rmtree(shop.project.root / "feed" / "orders")  # what Spark has read, nobody can read again
    (shop.project.root / "feed" / "orders").mkdir()
    done = shop.adopt(sinks=elsewhere)
    batches = {str(stage.uid): stage.batch_id for stage in done.stages if stage.query_id is not None}
    flows = [*(f"{name}__flow" for name in ("orders", "more", "mixed", "firsts", "pairs")), "out__outs"]
    assert batches == dict.fromkeys(flows, 1)
    pipeline = shop.project.pipeline(sinks=elsewhere)
    shop.project.epoch(pipeline)
    shop.check()
    shop.feed("orders", row("b", 4), row("c", 5))
    shop.feed("more", row("b", 20))
    shop.feed("extra", row("y", 8))
    shop.project.epoch(pipeline)
    shop.check()
    assert rows_of(shop.project.root / "told") == as_rows(*shop.fed["orders"])


CDC = """
FEED = str(Path.cwd() / "feed" / "changes")
@dp.temporary_view
def change_feed():
    columns = "id INT, name STRING, city STRING, at INT, kind STRING"
    return spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).json(FEED)
KEPT = {
    "newest": {"stored_as_scd_type": 1, "column_list": ["ID", "name", "city"]},
    "versions": {"stored_as_scd_type": 2, "except_column_list": ["AT", "kind"]},
    "moves": {"stored_as_scd_type": 2, "column_list": ["id", "name", "city"], "track_history_column_list": ["City"]},
}
for table, how in KEPT.items():
    dp.create_streaming_table(f"merging.shop.{table}")
    dp.create_auto_cdc_flow(
        target=f"merging.shop.{table}", source="change_feed", keys=["id"], sequence_by="at",
        apply_as_deletes="kind = 'delete'", name=f"cdc_{table}", **how,
    )
    @dp.materialized_view(name=f"{table}_seen")
    def seen(table=table, how=how):
        bounds = ["__START_AT", "__END_AT"] if how["stored_as_scd_type"] == 2 else []
        return spark.read.table(f"merging.shop.{table}").select("id", "name", "city", *bounds)
"""
"""Spark's tables are in memory: what it has merged is seen in materialized views, which are files."""


@pytest.fixture(scope="session")
def merging(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Returns options that give Spark a catalog ``merging``, compiled with the Scala that Spark brings.

    A jar, for a folder on the class path would come before Spark's classes, and none of their archive were used.
    """
    jar = tmp_path_factory.mktemp("merging") / "merging.jar"
    compiled(Path(__file__).with_name("Merging.scala"), jar)
    catalog = "spark.sql.catalog.merging=dagster_ckpt.tests.MergingCatalog"
    return ("--conf", f"spark.jars={jar}", "--conf", catalog)


@pytest.mark.nightly
def test_auto_cdc_of_both_types_has_the_rows_that_spark_has(written: Make, merging: tuple[str, ...]) -> None:
    crm, rng = written(CDC), random.Random(5)
    changes = [
        {
            "id": key,
            "name": rng.choice(["ann", "bob", None]),
            "city": rng.choice(["rome", "oslo"]),
            "at": at,
            "kind": rng.choice(["upsert", "upsert", "delete"]),
        }
        for key in range(5)
        for at in range(7)
    ]
    told = [*changes, *rng.sample(changes, 5)]
    rng.shuffle(told)
    for start in range(0, len(told), 14):
        crm.feed("changes", *told[start : start + 14])
        if start == 14:
            crm.epoch()  # ours in two runs, Spark's in a batch a file
    crm.epoch()
    sparks = run_under_spark(crm, *merging)
    seen = {f"{table}_seen": crm.rows(f"{table}_seen") for table in ("newest", "versions", "moves")}
    assert all(seen.values())
    assert seen == sparks


@pytest.mark.nightly
def test_spark_runs_auto_cdc_into_tables_that_can_merge_only(project: Callable[[str], Project]) -> None:
    crm = project("changes")
    crm.feed("changes", change(1, "ann", 1))
    crm.epoch()
    assert crm.all_rows() == changes_tables([change(1, "ann", 1)])
    done = spark_pipelines(crm)
    assert "AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE" in done.stdout + done.stderr
