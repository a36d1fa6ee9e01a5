"""Adoption of a project that is not as it was when Spark ran it, or is changed afterwards; and sinks of files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt import InvalidRequest, NotFound
from dagster_ckpt.sinks import DeltaTable, IcebergTable
from tests.ext.spark_pipelines.conftest import Project, rows_of
from tests.ext.spark_pipelines.played_spark import adopted, folder_of, runs_under_spark, storage, warehouse
from tests.ext.spark_pipelines.test_projects import as_rows

Make = Callable[..., Project]

SHOP = """
def feed(name):
    return spark.readStream.schema("k STRING, v INT").json(str(Path.cwd() / "feed" / name))
@dp.table
def orders():
    return feed("orders").dropDuplicates(["k", "v"])
@dp.table
def large():
    return spark.readStream.table("orders").where("v > 5")
@dp.materialized_view
def counted():
    return spark.read.table("large").select(F.count("*").alias("n"))
"""


def row(k: str, v: int) -> dict[str, Any]:
    return {"k": k, "v": v}


def rewritten(project: Project, before: str, after: str) -> None:
    main = project.root / "transformations" / "main.py"
    assert before in main.read_text()
    main.write_text(main.read_text().replace(before, after))


def renamed(project: Project) -> None:
    """Let the dataset ``orders`` be ``sales`` from now on."""
    rewritten(project, "def orders()", "def sales()")
    rewritten(project, 'table("orders")', 'table("sales")')
    (project.root / "dagster-ckpt.yml").write_text("previous_uids: {sales: [orders]}\n")


def forgotten(project: Project) -> None:
    """Take away what was fed so far: what Spark has read, nobody can read again."""
    shutil.rmtree(project.root / "feed" / "orders")
    (project.root / "feed" / "orders").mkdir()


@pytest.fixture
def shop(written: Make) -> Project:
    """Returns the project after a run of Spark's."""
    project = written(SHOP)
    project.feed("orders", row("a", 1), row("b", 7))
    runs_under_spark(project)
    return project


# --- renamed datasets -----------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_dataset_that_is_renamed_after_its_adoption_keeps_state_and_table(shop: Project) -> None:
    adopted(shop)
    renamed(shop)
    forgotten(shop)
    shop.feed("orders", row("a", 1), row("c", 9))  # the first is known to dropDuplicates
    shop.epoch()
    assert shop.rows("orders") == as_rows(row("a", 1), row("b", 7), row("c", 9))
    assert shop.rows("large") == as_rows(row("b", 7), row("c", 9))
    assert shop.rows("counted") == as_rows({"n": 2})
    assert not (shop.tables / "sales").exists()


@pytest.mark.nightly
def test_a_dataset_that_is_renamed_before_its_adoption_is_refused_until_spark_has_run_it(
    shop: Project,
) -> None:
    renamed(shop)
    with pytest.raises(
        NotFound, match=r"flow 'sales' of 'spark_catalog.default.sales' .* Spark has not run it"
    ):
        adopted(shop)
    assert not (shop.root / "lab" / "savepoints").exists()
    assert not list(shop.tables.glob("*/_dagster_ckpt/staged/adopted/*"))


# --- removed datasets -----------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_dataset_that_is_removed_before_the_adoption_is_left_to_spark(shop: Project) -> None:
    text = (shop.root / "transformations" / "main.py").read_text()
    (shop.root / "transformations" / "main.py").write_text(text.partition("@dp.table\ndef large")[0])
    forgotten(shop)
    done = adopted(shop)
    assert {str(stage.uid) for stage in done.stages} == {"orders__flow", "orders"}
    assert rows_of(folder_of(shop, "large")) == as_rows(row("b", 7))
    shop.feed("orders", row("a", 1), row("c", 9))
    shop.epoch()
    assert shop.all_rows() == {"orders": as_rows(row("a", 1), row("b", 7), row("c", 9))}


def test_a_dataset_that_is_removed_after_the_adoption_goes_only_where_that_is_said(shop: Project) -> None:
    adopted(shop)
    text = (shop.root / "transformations" / "main.py").read_text()
    (shop.root / "transformations" / "main.py").write_text(text.partition("@dp.table\ndef large")[0])
    shop.feed("orders", row("c", 9))
    with pytest.raises(InvalidRequest, match=r"holds state of 'large.*', which the pipeline no longer has"):
        shop.epoch()
    shop.epoch(restore={"restore_from": "latest", "allow_non_restored_state": True})
    assert shop.rows("orders") == as_rows(row("a", 1), row("b", 7), row("c", 9))


def test_a_flow_that_is_removed_before_the_adoption_is_refused_by_its_rows(written: Make) -> None:
    more = '@dp.append_flow(target="orders")\ndef more():\n    return feed("more")\n'
    project = written(SHOP + more)
    project.feed("orders", row("a", 1))
    project.feed("more", row("m", 7))
    runs_under_spark(project)
    rewritten(project, more, "")
    with pytest.raises(
        InvalidRequest, match=r"'spark_catalog.default.orders' .* written by flows more, orders"
    ):
        adopted(project)


# --- tables that are not Spark's own to hand over -------------------------------------------------------------

KEPT_ELSEWHERE = {
    "Iceberg": (
        '@dp.table(format="iceberg")',
        "is a table of iceberg: tables of Parquet and Delta are adopted",
    ),
    "Delta into Iceberg": (
        '@dp.table(format="delta")',
        "is a table of IcebergTable: tables of Parquet and Delta are",
    ),
    "another catalog": (
        '@dp.table(name="lake.shop.kept")',
        "is in catalog lake, which keeps its rows in a way of its",
    ),
    "SCD type 1": (
        "@dp.temporary_view",
        "is filled by Auto CDC: Spark merges changes in a way that leaves no number",
    ),
    "SCD type 2": (
        "@dp.temporary_view",
        "is filled by Auto CDC: Spark merges changes in a way that leaves no number",
    ),
}


@pytest.mark.parametrize("what", KEPT_ELSEWHERE)
def test_a_table_whose_rows_spark_keeps_in_another_way_is_refused_by_name(what: str, written: Make) -> None:
    head, said = KEPT_ELSEWHERE[what]
    python = f'{head}\ndef kept():\n    return feed("orders")\n'
    if what.startswith("SCD"):
        given = f'keys=["k"], sequence_by="v", stored_as_scd_type={what[-1]}'
        python = f"""{python.replace("def kept", "def changes")}
dp.create_streaming_table("kept")
dp.create_auto_cdc_flow(target="kept", source="changes", {given})
"""
    project = written(SHOP.partition("@dp")[0] + python)
    catalog, schema = ("lake", "shop") if "lake" in head else ("spark_catalog", "default")
    flow = "lake.shop.kept" if "lake" in head else "kept"
    committed = storage(project) / "_checkpoints" / catalog / schema / "kept" / flow / "0" / "commits" / "0"
    committed.parent.mkdir(parents=True)
    committed.touch()
    sinks = {"kept": IcebergTable("db.kept")} if "Iceberg" in what else {}
    with pytest.raises(InvalidRequest, match=rf"table '{catalog}.{schema}.kept' .* {said}"):
        adopted(project, sinks=sinks)
    assert not (project.root / "lab" / "savepoints").exists()
    assert not (project.root / ".dagster_ckpt").exists()


# --- flows that run once --------------------------------------------------------------------------------------

ONCE = {
    "as an option": (
        '@dp.append_flow(target="orders", once=True)\ndef old():\n    return feed("old")\n',
        r"main.py cannot be loaded: TypeError: .*'once'",
    ),
    "as a flow of a newer PySpark": (
        """
from dataclasses import dataclass
from pyspark.pipelines.flow import Flow
from pyspark.pipelines.graph_element_registry import get_active_graph_element_registry
from pyspark.pipelines.source_code_location import get_caller_source_code_location
@dataclass(frozen=True)
class OnceFlow(Flow):
    once: bool = True
get_active_graph_element_registry().register_flow(OnceFlow(
    name="old", target="orders", spark_conf={}, func=lambda: feed("old"),
    source_code_location=get_caller_source_code_location(stacklevel=0),
))
""",
        "flow 'old' has once=True, which is not supported: load it beforehand",
    ),
}


@pytest.mark.parametrize("how", ONCE)
def test_a_flow_that_runs_once_is_refused_and_never_run_twice(how: str, shop: Project) -> None:
    python, said = ONCE[how]
    main = shop.root / "transformations" / "main.py"
    before = main.read_text()
    main.write_text(before + python)
    for act in (shop.pipeline, lambda: adopted(shop)):
        with pytest.raises(InvalidRequest, match=said):
            act()
    assert not (shop.root / ".dagster_ckpt").exists()
    main.write_text(before)
    adopted(shop)


# --- a graph that is not of the project -----------------------------------------------------------------------


@pytest.mark.nightly
def test_an_adoption_makes_a_stale_graph_again_and_keeps_it(shop: Project) -> None:
    shop.pipeline()
    graph = shop.root / ".dagster_ckpt" / "graph.json"
    kept = json.loads(graph.read_text())
    stale = {
        "of another file": kept | {"files": {**kept["files"], "transformations/main.py": "xxh3:0"}},
        "of another PySpark": kept | {"made_by": "dagster-ckpt 0.1, pyspark 4.1.0"},
        "without its datasets": kept | {"datasets": [], "flows": [], "files": {}},
        "of a newer version": kept | {"format": 2},
    }
    for what, text in stale.items():
        graph.write_text(json.dumps(text))
        adopted(shop)
        assert json.loads(graph.read_text()) == kept, what
    graph.write_text("{ half a file")
    adopted(shop)
    assert json.loads(graph.read_text()) == kept
    shop.epoch()
    assert shop.rows("large") == as_rows(row("b", 7))


@pytest.mark.nightly
def test_a_pipeline_of_the_graph_before_an_adoption_does_not_run_a_changed_project(shop: Project) -> None:
    stale = shop.pipeline()
    rewritten(shop, "v > 5", "v > 6")
    adopted(shop)
    with pytest.raises(InvalidRequest, match=r"main.py has changed since its graph was made"):
        shop.epoch(stale)
    shop.epoch()
    assert shop.rows("large") == as_rows(row("b", 7))


# --- sinks of files -------------------------------------------------------------------------------------------

SINK = """
dp.create_sink("out", format="parquet", options={"path": str(Path.cwd() / "out")})
@dp.append_flow(target="out")
def outs():
    return spark.readStream.table("orders").where("v > 5")
"""


@pytest.mark.nightly
def test_rows_of_a_sink_of_files_go_on_in_a_folder_of_its_own(written: Make) -> None:
    project = written(SHOP + SINK)
    project.feed("orders", row("a", 1), row("b", 7))
    runs_under_spark(project)
    with pytest.raises(
        InvalidRequest,
        match=r"sink 'out' .* no rows could be taken back from a folder of files: say",
    ):
        adopted(project)
    with pytest.raises(
        InvalidRequest,
        match=r"sink 'out' .* Spark's own files are in .*/out: give its rows another place, sinks=",
    ):
        adopted(project, sinks={"out": DeltaTable(str(project.root / "out" / "."))})
    elsewhere = {"out": DeltaTable("out")}
    (project.root / "out" / "part-of-nobody.parquet").write_bytes(b"half")  # Spark's log does not name it
    forgotten(project)
    adopted(project, sinks=elsewhere)
    project.feed("orders", row("c", 9))
    project.epoch(project.pipeline(sinks=elsewhere))
    assert project.rows("out") == as_rows(row("b", 7), row("c", 9))
    assert rows_of(project.root / "out", ".snappy") == as_rows(row("b", 7))


@pytest.mark.nightly
def test_a_sink_of_files_that_is_not_as_its_flow_left_it_is_refused(written: Make) -> None:
    project = written(SHOP + SINK)
    project.feed("orders", row("b", 7))
    runs_under_spark(project)
    elsewhere = {"out": DeltaTable("out")}
    before = project.root / "before"
    shutil.copytree(project.root / "out", before)

    def lost_log() -> None:
        shutil.rmtree(project.root / "out" / "_spark_metadata")

    def lost_part() -> None:
        next(Path(project.root / "out").glob("part-*")).unlink()

    for damage, said in [
        (lost_log, r"'out' in .*/out has the rows of batches up to None"),
        (lost_part, r"part-.* of table 'out' cannot be read"),
    ]:
        damage()
        with pytest.raises(Exception, match=said):
            adopted(project, sinks=elsewhere)
        shutil.rmtree(project.root / "out")
        shutil.copytree(before, project.root / "out")
    assert warehouse(project).is_dir()
    adopted(project, sinks=elsewhere)
