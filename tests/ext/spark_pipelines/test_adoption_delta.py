"""Delta tables that Spark has left begin ours with exactly their rows, also where several flows have written them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable as Delta
from deltalake import write_deltalake

from dagster_ckpt import CheckpointCoordinatorResource, InvalidRequest, load_table, run_epoch
from dagster_ckpt.errors import CheckpointError, Declined
from dagster_ckpt.ext.spark_pipelines.graph import FlowNode, load_spec
from dagster_ckpt.ext.spark_pipelines.trace import trace_project
from dagster_ckpt.sinks import DeltaTable
from tests.ext.spark_pipelines.conftest import Project
from tests.ext.spark_pipelines.played_spark import (
    adopted,
    checkpoint_of,
    once,
    runs_under_spark,
    storage,
    warehouse,
    with_positions_in_delta,
)
from tests.ext.spark_pipelines.test_lake_targets import delta_rows
from tests.ext.spark_pipelines.test_projects import as_rows
from tests.records import find_record
from tests.root import ROOT
from tests.sweeps import third

Make = Callable[..., Project]

SHOP = """
def feed(name):
    return spark.readStream.schema("k STRING, v INT").json(str(Path.cwd() / "feed" / name))
@dp.table(format="delta")
def orders():
    return feed("orders")
dp.create_streaming_table("both", format="delta", partition_cols=["k"])
@dp.append_flow(target="both")
def one():
    return feed("orders").where("v < 100")
@dp.append_flow(target="both")
def two():
    return feed("more")
@dp.table(format="delta")
def large():
    return spark.readStream.table("orders").where("v > 5")
@dp.materialized_view
def counted():
    return spark.read.table("both").groupBy("k").count()
"""
LARGE = 5


def row(k: str | None, v: int) -> dict[str, Any]:
    return {"k": k, "v": v}


class Shop:
    """The project, what was fed to it, and what its tables must hold."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.fed: dict[str, list[dict[str, Any]]] = {"orders": [], "more": []}
        for name in self.fed:
            (project.root / "feed" / name).mkdir(parents=True, exist_ok=True)

    def feed(self, name: str, *rows: dict[str, Any]) -> None:
        self.project.feed(name, *rows)
        self.fed[name] += rows

    def forget(self) -> None:
        """Take away what was fed: what Spark has read, nobody can read again."""
        for path in (self.project.root / "feed").glob("*/*.json"):
            path.unlink()

    def flow(self, name: str) -> FlowNode:
        graph = trace_project(load_spec(self.project.root), self.project.spark)
        return next(flow for flow in graph.flows if flow.name == name)

    def check(self) -> None:
        orders, both = self.fed["orders"], [*self.fed["orders"], *self.fed["more"]]
        tables = self.project.tables
        assert delta_rows(tables / "orders") == as_rows(*orders)
        assert delta_rows(tables / "both") == as_rows(*both)
        assert delta_rows(tables / "large") == as_rows(*(one for one in orders if one["v"] > LARGE))
        names = [one["k"] for one in both]
        counted = as_rows(*({"k": k, "count": names.count(k)} for k in set(names)))
        assert self.project.rows("counted") == counted


@pytest.fixture
def shop(written_in_one_place: Make) -> Shop:
    """Returns the project after two runs of Spark's; a second test gets a copy of what the first was left."""
    shop = Shop(written_in_one_place(SHOP))
    with once(shop.project) as runs:
        shop.feed("orders", row("a b", 1), row("c%d", 7), row(None, 8))
        shop.feed("more", row("a b", 3))
        runs(shop.project)
        shop.feed("orders", row("e", 9))
        shop.feed("more", row("{e}", 4))
        runs(shop.project)
    with_positions_in_delta(shop.project, shop.flow("large"))
    return shop


def warehouse_of(shop: Shop, table: str) -> Path:
    return warehouse(shop.project) / table


@pytest.mark.nightly
def test_delta_tables_go_on_with_exactly_their_rows_whoever_of_their_flows_wrote_them(shop: Shop) -> None:
    shop.forget()
    done = adopted(shop.project)
    batches = {str(stage.uid): stage.batch_id for stage in done.stages if stage.query_id is not None}
    assert batches == dict.fromkeys(["orders__flow", "both__one", "both__two", "large__flow"], 1)
    assert not list(shop.project.tables.glob("*/_delta_log"))
    shop.project.epoch()
    shop.check()
    shop.feed("orders", row("a b", 20))
    shop.feed("more", row("f", 5))
    shop.project.epoch()
    shop.check()
    before = delta_rows(shop.project.tables / "both")
    pipeline = shop.project.pipeline()
    there = load_table(pipeline, "both", coordinator=shop.project.coordinator, as_of=done.savepoint.key)
    assert len(there.to_arrow()) == len(before) - 2
    forks = {name: DeltaTable(str(shop.project.root / "forks" / name)) for name in ("orders", "large")}
    forks["both"] = DeltaTable(str(shop.project.root / "forks" / "both"), partition_by=("k",))
    run_epoch(
        pipeline.fork("forked", table_dir=str(shop.project.root / "forks"), sinks=forks),
        coordinator=CheckpointCoordinatorResource(base_dir=str(shop.project.root / "lab")),
        spark=shop.project.spark,
        restore={"restore_from": str(done.savepoint.location.uri), "fork": True},
    )
    assert delta_rows(shop.project.root / "forks" / "both") == before
    shop.project.epoch(restore={"restore_from": done.savepoint.key})  # what came since is read again
    shop.check()


@pytest.mark.nightly
def test_spark_may_run_on_and_delta_tables_are_adopted_again(shop: Shop) -> None:
    adopted(shop.project)
    shop.project.epoch()
    shop.feed("more", row("g", 6))
    shop.project.epoch()
    runs_under_spark(shop.project, only=lambda flow: flow.name == "two")
    again = adopted(shop.project)
    shop.project.epoch(restore={"restore_from": again.savepoint.key})
    shop.check()
    shop.feed("more", row("g", 60))
    shop.project.epoch()
    shop.check()


@pytest.mark.nightly
def test_rows_of_a_flow_that_the_project_no_longer_has_stay(shop: Shop) -> None:
    main = shop.project.root / "transformations" / "main.py"
    before, _, rest = main.read_text().partition('@dp.append_flow(target="both")\ndef two')
    main.write_text(before + rest.partition('feed("more")\n')[2])
    shop.forget()
    adopted(shop.project)
    shop.project.epoch()
    shop.check()


@pytest.mark.nightly
def test_delta_and_parquet_tables_begin_one_another(written: Make) -> None:
    python = (
        SHOP.partition("dp.create_streaming")[0]
        + """
@dp.table
def plain():
    return feed("orders")
"""
    )
    shop = Shop(written(python))
    shop.feed("orders", row("a", 1), row("b", 7))
    runs_under_spark(shop.project)
    shop.forget()
    sinks = {"orders": DeltaTable("orders"), "plain": DeltaTable("plain", partition_by=("k",))}
    adopted(shop.project, sinks=sinks)
    shop.feed("orders", row("a", 2))
    shop.project.epoch(shop.project.pipeline(sinks=sinks))
    assert shop.project.rows("orders") == as_rows(*shop.fed["orders"])
    assert delta_rows(shop.project.tables / "plain") == as_rows(*shop.fed["orders"])


@pytest.mark.nightly
def test_a_delta_sink_goes_on_in_a_folder_of_its_own(written: Make) -> None:
    sink = """
dp.create_sink("out", format="delta", options={"path": str(Path.cwd() / "out")})
@dp.append_flow(target="out")
def outs():
    return feed("orders")
"""
    shop = Shop(written(SHOP.partition("@dp")[0] + sink))
    shop.feed("orders", row("a", 1))
    runs_under_spark(shop.project)
    with pytest.raises(
        InvalidRequest, match=r"sink 'out' .* give its rows another place, sinks=.*DeltaTable"
    ):
        adopted(shop.project)
    shop.forget()
    elsewhere = {"out": DeltaTable("out")}
    adopted(shop.project, sinks=elsewhere)
    shop.feed("orders", row("b", 2))
    shop.project.epoch(shop.project.pipeline(sinks=elsewhere))
    assert delta_rows(shop.project.tables / "out") == as_rows(*shop.fed["orders"])
    assert delta_rows(shop.project.root / "out") == as_rows(row("a", 1))


# --- refused --------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_delta_table_that_is_not_as_its_flows_and_readers_left_it_is_refused(shop: Shop) -> None:
    root = shop.project.root
    before = root / "before"
    shutil.copytree(warehouse(shop.project), before / "spark-warehouse")
    shutil.copytree(storage(shop.project), before / "storage")
    more = pa.table({"k": ["x"], "v": pa.array([1], pa.int32())})

    def put_back() -> None:
        (
            warehouse_of(shop, "both")
            / "_delta_log"
            / f"{Delta(warehouse_of(shop, 'both')).version():020d}.json"
        ).unlink()

    def written_to() -> None:
        write_deltalake(warehouse_of(shop, "orders"), more, mode="append")

    def rows_deleted() -> None:
        Delta(warehouse_of(shop, "orders")).delete("v = 1")

    def made_again() -> None:
        shutil.rmtree(warehouse_of(shop, "orders"))
        write_deltalake(warehouse_of(shop, "orders"), more)

    def gone() -> None:
        shutil.rmtree(warehouse_of(shop, "both"))

    def of_another_table() -> None:
        edited("reservoirId", "of-another")

    def ahead() -> None:
        edited("reservoirVersion", 7)

    def within() -> None:
        edited("index", 3)
        edited("reservoirVersion", 1)

    def of_files() -> None:
        edited("logOffset", 3, without="reservoirVersion")

    def edited(name: str, value: Any, without: str = "") -> None:
        for path in (checkpoint_of(shop.project, shop.flow("large")) / "offsets").glob("[0-9]*"):
            *head, last = path.read_text().splitlines()
            at = {key: one for key, one in json.loads(last).items() if key != without}
            path.write_text("\n".join([*head, json.dumps(at | {name: value})]))

    def mapped() -> None:
        log = warehouse_of(shop, "both") / "_delta_log" / f"{0:020d}.json"
        said = '"configuration":{"delta.columnMapping.mode":"name"}'
        log.write_text(log.read_text().replace('"configuration":{}', said))

    def part_gone() -> None:
        next(warehouse_of(shop, "both").glob("*/part-*")).unlink()

    for damage, error, said in [
        (
            put_back,
            InvalidRequest,
            r"table .*both' .* has flow 'two' .* up to batch 0, and its checkpoint is at 1",
        ),
        (
            written_to,
            InvalidRequest,
            r"flow 'large' .* has not read version 2 of table .*orders' yet. Let spark-p",
        ),
        (rows_deleted, InvalidRequest, r"flow 'large' .* has not read version 2 of table .*orders' yet"),
        (
            made_again,
            InvalidRequest,
            r"table .*orders' .* has flow 'orders' .* up to batch None, and its checkpoint",
        ),
        (
            gone,
            InvalidRequest,
            r"table .*both' has been written by flow 'one' .*, and there is no Delta table in",
        ),
        (of_another_table, InvalidRequest, r"flow 'large' .* has read another table than .*orders'"),
        (
            ahead,
            InvalidRequest,
            r"flow 'large' .* up to version 6, and .*orders ends at 1: it is an older copy",
        ),
        (within, InvalidRequest, r"flow 'large' .* has not read version 1 of table .*orders' yet"),
        (of_files, InvalidRequest, r"flow 'large' .* its position is .*, none in a Delta table"),
        (mapped, InvalidRequest, r"table .*both' cannot be adopted, its columns are mapped to other names"),
        (part_gone, CheckpointError, r"part-.* of table .*both' cannot be read"),
    ]:
        damage()
        with pytest.raises(error, match=said):
            adopted(shop.project)
        for name in ("storage", "spark-warehouse"):
            shutil.rmtree(root / name)
            shutil.copytree(before / name, root / name)
    assert not (root / "lab" / "savepoints").exists()
    assert not list(shop.project.tables.glob("*/_dagster_ckpt/staged/**/*.parquet"))
    adopted(shop.project)
    shop.project.epoch()
    shop.check()


@pytest.mark.nightly
def test_commits_that_change_no_rows_leave_a_reader_where_it_was(shop: Shop) -> None:
    write_deltalake(
        warehouse_of(shop, "orders"),
        Delta(warehouse_of(shop, "orders")).to_pyarrow_table().slice(0, 0),
        mode="append",
    )
    Delta(warehouse_of(shop, "orders")).optimize.compact()
    newest = Delta(warehouse_of(shop, "orders")).version()
    assert newest > 1
    entry = warehouse_of(shop, "orders") / "_delta_log" / f"{newest:020d}.json"
    text = entry.read_text()
    entry.write_text("{ half an entry")
    with pytest.raises((Declined, CheckpointError)):
        adopted(shop.project)
    entry.write_text(text)
    adopted(shop.project)
    shop.project.epoch()
    shop.check()


def test_a_column_that_the_project_no_longer_brings_is_refused_by_name(shop: Shop) -> None:
    main = shop.project.root / "transformations" / "main.py"
    main.write_text(main.read_text().replace('where("v > 5")', 'where("v > 5").select("k")'))
    with pytest.raises(
        InvalidRequest, match=r"table .*large' has a column 'v' of integer, which the project no longer"
    ):
        adopted(shop.project)


def test_a_table_folder_among_sparks_own_files_is_refused(shop: Shop) -> None:
    with pytest.raises(
        InvalidRequest, match=r"Spark's own files are in .*, where the new table would be: give the"
    ):
        adopted(shop.project, table_dir=str(warehouse(shop.project)))


@pytest.mark.nightly
def test_an_adoption_of_delta_tables_that_is_killed_has_changed_nothing(shop: Shop) -> None:
    """The second comes past the point at which the first was killed, on what that one has left."""
    child = [
        sys.executable,
        "-m",
        "tests.ext.spark_pipelines.adopt_child",
        str(shop.project.root),
        "rows of a table",
    ]
    for number in third(("1", "2")):
        killed = subprocess.run([*child, number], cwd=ROOT, capture_output=True, text=True, check=False)
        assert killed.returncode == 9, killed.stderr[-2000:]
        found = find_record(shop.project.coordinator.deployment().store, "written")
        assert found is None or found.savepoints == ()
        assert not list(shop.project.tables.glob("*/_delta_log"))
    adopted(shop.project)
    shop.feed("orders", row("z", 40))
    shop.project.epoch()
    shop.check()
