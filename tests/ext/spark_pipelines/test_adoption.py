"""What Spark has left of a project becomes its first savepoint: rows exact, state kept, nothing read twice."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    Corrupt,
    InvalidRequest,
    NotFound,
    adopt_spark_project,
    find_snapshot,
    load_table,
    preview_restore,
    run_epoch,
    verify_snapshot,
)
from dagster_ckpt.cli.app import main
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.errors import CheckpointError, Declined, OutcomeUnknown
from dagster_ckpt.ext.spark_pipelines.adoption import _Work
from dagster_ckpt.operations.snapshots.adopt import Adoption
from dagster_ckpt.sinks import DeltaTable
from tests.ext.spark_pipelines.conftest import Project, rows_of
from tests.ext.spark_pipelines.played_spark import adopted, once, runs_under_spark, storage, warehouse
from tests.ext.spark_pipelines.test_projects import as_rows
from tests.records import find_record
from tests.root import ROOT
from tests.sweeps import third

Make = Callable[..., Project]

SHOP = """
FEED = Path.cwd() / "feed"
def feed(name):
    return spark.readStream.schema("k STRING, v INT").json(str(FEED / name))
@dp.table
def orders():
    return feed("orders")
@dp.table
def more():
    return feed("more")
@dp.temporary_view
def everything():
    return spark.readStream.table("more").union(feed("extra")).union(spark.readStream.table("orders"))
@dp.table
def mixed():
    return spark.readStream.table("everything")
@dp.table
def firsts():
    return feed("orders").dropDuplicates(["k"])
@dp.table
def pairs():
    others = spark.readStream.table("more").select(F.col("k").alias("k2"), F.col("v").alias("w"))
    return spark.readStream.table("orders").join(others, F.expr("k = k2")).select("k", "v", "w")
@dp.materialized_view
def counted():
    return spark.read.table("mixed").groupBy("k").count()
"""


def row(k: str, v: int) -> dict[str, Any]:
    return {"k": k, "v": v}


class Shop:
    """The project, what was fed to it, and what its tables must hold."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.fed: dict[str, list[dict[str, Any]]] = {"orders": [], "more": [], "extra": []}
        for name in self.fed:
            (project.root / "feed" / name).mkdir(parents=True, exist_ok=True)

    def feed(self, name: str, *rows: dict[str, Any]) -> None:
        self.project.feed(name, *rows)
        self.fed[name] += rows

    def adopt(self, **more: Any) -> Adoption:
        return adopted(self.project, **more)

    def check(self) -> None:
        orders, others = self.fed["orders"], self.fed["more"]
        mixed = [*others, *self.fed["extra"], *orders]
        firsts: dict[str, dict[str, Any]] = {}
        for one in orders:
            firsts.setdefault(one["k"], one)
        assert self.project.all_rows() == {
            "orders": as_rows(*orders),
            "more": as_rows(*others),
            "mixed": as_rows(*mixed),
            "firsts": as_rows(*firsts.values()),
            "pairs": as_rows(*(o | {"w": m["v"]} for o in orders for m in others if o["k"] == m["k"])),
            "counted": as_rows(*({"k": k, "count": n} for k, n in counts(mixed).items())),
        }


def counts(rows: list[dict[str, Any]]) -> dict[str, int]:
    names = [one["k"] for one in rows]
    return {name: names.count(name) for name in names}


@pytest.fixture
def shop(written: Make) -> Shop:
    return Shop(written(SHOP))


def begun_with(project: Project, key: str) -> bool:
    """Tell whether the queries that run are those of a savepoint: their ids are in the working directories."""
    [directory] = (project.root / "lab" / "work" / "written").glob("attempt-*")
    ids = {path.parts[-3]: json.loads(path.read_text())["id"] for path in directory.glob("*/query/metadata")}
    found = find_snapshot(project.coordinator.deployment(), key, PipelineId("written"))
    adopted = {
        stage.uid: stage.query_id for stage in found.stored.metadata.stages if stage.query_id is not None
    }
    return bool(adopted) and adopted.items() <= ids.items()


@pytest.fixture
def written(written_in_one_place: Make) -> Make:
    return written_in_one_place


def fed_and_run(shop: Shop) -> None:
    """Run it twice under Spark, with rows for every source; a second test gets a copy of what the first was left."""
    with once(shop.project) as runs:
        shop.feed("orders", row("a", 1), row("b", 2))
        shop.feed("extra", row("x", 7))
        runs(shop.project)
        shop.feed("orders", row("a", 3))
        shop.feed("more", row("a", 10))
        runs(shop.project)


@pytest.mark.nightly
def test_an_adopted_project_goes_on_after_what_spark_has_read(shop: Shop) -> None:
    fed_and_run(shop)
    done = shop.adopt()
    assert done.savepoint.key == "savepoint-000001"
    shop.project.epoch()
    assert begun_with(shop.project, done.savepoint.key)
    shop.check()
    shop.feed("orders", row("b", 4), row("c", 5))  # b is known to dropDuplicates, and pairs with nothing yet
    shop.feed("more", row("b", 20), row("a", 30))  # a and b of Spark's orders are in the join's state
    shop.feed("extra", row("y", 8))
    shop.project.epoch()
    shop.check()


@pytest.mark.nightly
def test_rows_that_sources_have_forgotten_stay(shop: Shop) -> None:
    fed_and_run(shop)
    shutil.rmtree(shop.project.root / "feed" / "orders")
    (shop.project.root / "feed" / "orders").mkdir()
    shop.adopt()
    shutil.rmtree(storage(shop.project))
    shutil.rmtree(warehouse(shop.project))
    shop.project.files["orders"] += 1
    shop.feed("orders", row("b", 4))
    shop.project.epoch()
    shop.check()


FIRSTS = """
@dp.table
def orders():
    return spark.readStream.schema("k STRING, v INT").json(str(Path.cwd() / "feed" / "orders"))
@dp.table
def firsts():
    return spark.readStream.table("orders").dropDuplicates(["k"])
"""


@pytest.mark.nightly
def test_a_project_in_a_folder_with_blanks_and_percents_is_adopted(written: Make) -> None:
    made = written(FIRSTS)
    project = Project(made.root.rename(made.root.with_name("my shop 100%")), made.spark)
    for rows in ([row("a", 1), row("b", 2)], [row("a", 3)]):
        project.feed("orders", *rows)
        runs_under_spark(project)
    done = adopted(project)
    project.epoch()
    assert begun_with(project, done.savepoint.key)
    project.feed("orders", row("b", 4), row("c", 5))  # a is known from Spark's first batch, and b
    project.epoch()
    everything = [row("a", 1), row("b", 2), row("a", 3), row("b", 4), row("c", 5)]
    assert project.all_rows() == {
        "orders": as_rows(*everything),
        "firsts": as_rows(row("a", 1), row("b", 2), row("c", 5)),
    }


@pytest.mark.nightly
def test_spark_may_run_on_and_be_adopted_again(shop: Shop) -> None:
    fed_and_run(shop)
    assert shop.adopt().kind.is_synchronous
    assert shop.adopt().savepoint.key == "savepoint-000002"
    shop.project.epoch()
    assert begun_with(shop.project, "savepoint-2")
    shop.check()
    shop.feed("orders", row("c", 9))
    shop.project.epoch()
    runs_under_spark(shop.project)
    again = shop.adopt()
    assert not again.kind.is_synchronous
    shop.project.epoch()  # goes on where it was: a pipeline that has run is asked to begin elsewhere
    shop.check()
    shop.project.epoch(restore={"restore_from": again.savepoint.key})
    assert begun_with(shop.project, again.savepoint.key)
    shop.check()
    shop.feed("more", row("c", 1))
    shop.project.epoch()
    shop.check()
    shop.project.epoch(restore={"restore_from": "savepoint-2"})
    shop.check()


@pytest.mark.nightly
def test_a_preview_and_a_fork_of_the_adopted_savepoint(shop: Shop) -> None:
    fed_and_run(shop)
    done = shop.adopt()
    key = done.savepoint.key
    project = shop.project
    pipeline = project.pipeline()
    fork = pipeline.fork("forked", table_dir=str(project.root / "forks"))
    uri = str(done.savepoint.location.uri)
    run_epoch(
        fork,
        coordinator=CheckpointCoordinatorResource(base_dir=str(project.root / "lab")),
        spark=project.spark,
        restore={"restore_from": uri, "fork": True},
    )
    assert rows_of(project.root / "forks" / "firsts") == as_rows(row("a", 1), row("b", 2))
    found = preview_restore(
        project.coordinator.deployment(pipeline),
        RestoreOptions(restore_from=key),
        pipeline.name,
        graph=pipeline.graph,
    )
    assert found.is_possible, found
    stored = find_snapshot(project.coordinator.deployment(pipeline), key, pipeline.name).stored
    assert verify_snapshot(stored).is_intact

    def at_the_savepoint() -> list[Any]:
        rows = load_table(pipeline, "firsts", coordinator=project.coordinator, as_of=key)
        return as_rows(*rows.to_arrow().to_pylist())

    assert at_the_savepoint() == as_rows(row("a", 1), row("b", 2))
    shop.feed("orders", row("c", 1))
    project.epoch(pipeline)
    shop.check()
    assert at_the_savepoint() == as_rows(row("a", 1), row("b", 2))


@pytest.mark.nightly
def test_a_flow_that_has_read_nothing_begins_with_what_comes(shop: Shop) -> None:
    shop.feed("orders", row("a", 1))
    runs_under_spark(shop.project)  # more and extra are empty
    shop.adopt()
    shop.project.epoch(shop.project.pipeline(checkpointing={"mode": "at_least_once"}))
    shop.check()
    shop.feed("more", row("a", 2))
    shop.feed("extra", row("b", 2))
    shop.project.epoch()
    shop.check()


@pytest.mark.nightly
def test_a_project_that_has_read_nothing_at_all_is_adopted_as_it_is(shop: Shop) -> None:
    runs_under_spark(shop.project)
    shop.adopt()
    shop.feed("orders", row("a", 1))
    shop.project.epoch()
    assert shop.project.rows("orders") == as_rows(row("a", 1))


@pytest.mark.nightly
def test_tables_are_found_by_the_catalog_of_the_session(shop: Shop) -> None:
    fed_and_run(shop)
    with pytest.raises(
        InvalidRequest, match=r"in /nowhere/.* has the rows of batches up to None, and .* Name Spark's w"
    ):
        shop.adopt(warehouse="/nowhere")
    spark = shop.project.spark
    names = [folder.name for folder in warehouse(shop.project).iterdir()]
    try:
        for name in names:
            spark.sql(f"CREATE TABLE {name} USING parquet LOCATION '{warehouse(shop.project) / name}'")
        shop.adopt(warehouse="/nowhere")
    finally:
        for name in names:
            spark.sql(f"DROP TABLE IF EXISTS {name}")
    shop.project.epoch()
    shop.check()


# --- refused --------------------------------------------------------------------------------------------------


def transformed(shop: Shop, before: str, after: str) -> None:
    main_file = shop.project.root / "transformations" / "main.py"
    text = main_file.read_text()
    assert before in text
    main_file.write_text(text.replace(before, after))


@pytest.mark.nightly
def test_a_project_that_was_changed_since_is_refused_by_the_flow(shop: Shop) -> None:
    fed_and_run(shop)
    (shop.project.root / "feed" / "other").mkdir()
    text = (shop.project.root / "transformations" / "main.py").read_text()
    for before, after, said in [
        (
            'feed("extra")',
            'feed("other")',
            r"flow 'mixed' .*: source 1 reads .*feed/other now, and has read .*/extra/",
        ),
        ('.union(feed("extra"))', "", r"flow 'mixed' .* positions in 3 sources, and its function reads 2"),
        (
            'spark.readStream.table("more").union(feed("extra"))',
            'feed("extra").union(spark.readStream.table("more"))',
            r"flow 'mixed' .*: source 0 reads .*feed/extra now, and has read .*warehouse/more/part",
        ),
        (
            'spark.readStream.table("more").union(feed("extra")).union(spark.readStream.table("orders"))',
            'spark.readStream.table("orders").union(feed("extra")).union(spark.readStream.table("more"))',
            r"flow 'mixed' .* has read .*warehouse/more/part.*, which table '.*orders' does not have",
        ),
        (
            "@dp.materialized_view",
            '@dp.table\ndef later():\n    return spark.readStream.table("orders")\n@dp.materialized_view',
            r"flow 'later' .* has no checkpoint in .*/later/later: Spark has not run it. Let spark-pipelines run once",
        ),
        (
            'dropDuplicates(["k"])',
            'dropDuplicates(["k"]).select("k")',
            r"'.*firsts' has a column 'v' of int in its files, which the project no longer",
        ),
    ]:
        transformed(shop, before, after)
        with pytest.raises(CheckpointError, match=said):
            shop.adopt()
        (shop.project.root / "transformations" / "main.py").write_text(text)
    assert not (shop.project.root / "lab" / "savepoints").exists()
    assert not list(shop.project.tables.glob("*/_dagster_ckpt/staged/adopted/*"))
    shop.adopt()
    shop.project.epoch()
    shop.check()


def checkpoint(shop: Shop, flow: str) -> Path:
    return storage(shop.project) / "_checkpoints" / "spark_catalog" / "default" / flow / flow / "0"


@pytest.mark.nightly
def test_what_is_not_at_rest_or_damaged_is_refused(shop: Shop) -> None:
    fed_and_run(shop)
    before = shop.project.root / "before"
    shutil.copytree(storage(shop.project), before / "storage")
    shutil.copytree(warehouse(shop.project), before / "spark-warehouse")

    def uncommitted() -> None:
        shutil.copy(
            checkpoint(shop, "orders") / "offsets" / "1", checkpoint(shop, "orders") / "offsets" / "2"
        )

    def behind() -> None:
        shop.project.feed("orders", row("late", 1))
        runs_under_spark(shop.project, only=lambda flow: flow.name == "orders")
        (shop.project.root / "feed" / "orders" / "003.json").unlink()
        shop.project.files["orders"] -= 1

    def other_table() -> None:
        (warehouse(shop.project) / "firsts" / "_spark_metadata" / "1").unlink()

    def part_gone() -> None:
        next(iter((warehouse(shop.project) / "firsts").glob("part-*"))).unlink()

    def log_gone() -> None:
        (warehouse(shop.project) / "orders" / "_spark_metadata" / "0").unlink()

    def offsets_gone() -> None:
        (checkpoint(shop, "mixed") / "offsets" / "0").unlink()

    for damage, error, said in [
        (uncommitted, InvalidRequest, r"flow 'orders' .* has begun batch 2 and not committed it"),
        (
            behind,
            InvalidRequest,
            r"flow 'mixed' .* has not read .*/orders/part.* of table .*orders' yet. Let spark-pip",
        ),
        (other_table, InvalidRequest, r"table .*firsts' .* has the rows of batches up to 0, and .* is at 1"),
        (part_gone, Corrupt, r"part-.* of table .*firsts' cannot be read"),
        (log_gone, Declined, r"orders/_spark_metadata has lost its batch 0"),
        (offsets_gone, Declined, r"mixed/mixed/0/offsets/0 cannot be read"),
    ]:
        damage()
        with pytest.raises(error, match=said):
            shop.adopt()
        for name in ("storage", "spark-warehouse"):
            shutil.rmtree(shop.project.root / name)
            shutil.copytree(before / name, shop.project.root / name)
    shop.adopt()
    shop.project.epoch()
    shop.check()


def test_tables_and_sinks_that_cannot_be_taken_over_are_refused_by_name(written: Make) -> None:
    project = written(
        """
def feed(name):
    return spark.readStream.schema("k STRING, v INT").json(str(Path.cwd() / "feed" / name))
dp.create_streaming_table("both")
@dp.append_flow(target="both")
def one():
    return feed("orders")
@dp.append_flow(target="both")
def two():
    return feed("more")
dp.create_sink("out", format="parquet", options={"path": str(Path.cwd() / "out")})
@dp.append_flow(target="out")
def outs():
    return feed("orders")
"""
    )
    for name in ("orders", "more"):
        project.feed(name, row(name, 1))
    runs_under_spark(project)
    sinks = {"out": DeltaTable(str(project.root / "out"))}
    with pytest.raises(
        InvalidRequest, match=r"table 'spark_catalog.default.both' .* written by flows one, two: into a Par"
    ):
        adopted(project, sinks=sinks)
    shutil.rmtree(storage(project) / "_checkpoints" / "spark_catalog")
    with pytest.raises(
        InvalidRequest, match=r"sink 'out' .* Spark's own files are in .*: give its rows another place"
    ):
        adopted(project, sinks=sinks)
    with pytest.raises(NotFound, match="holds no _checkpoints"):
        adopt_spark_project(
            project.root, coordinator=project.coordinator, spark=project.spark, checkpoints=str(project.root)
        )
    with pytest.raises(InvalidRequest, match="is no local folder"):
        adopt_spark_project(
            project.root, coordinator=project.coordinator, spark=project.spark, checkpoints="s3://b/x"
        )


@pytest.mark.parametrize(
    ("error", "are_there"),
    [(OutcomeUnknown("no answer"), True), (KeyboardInterrupt(), True), (Declined("no"), False)],
)
def test_staged_rows_stay_where_a_savepoint_may_name_them(
    tmp_path: Path, error: BaseException, are_there: bool
) -> None:
    staged = tmp_path / "adopted"
    staged.mkdir()
    nothing: Any = None
    work = _Work(
        **{field.name: nothing for field in fields(_Work) if field.name != "staged"}, staged=[staged]
    )
    with pytest.raises(type(error)), work.removed_if_it_fails():
        raise error
    assert staged.exists() == are_there


# --- killed, and from the command line ------------------------------------------------------------------------


@pytest.mark.nightly
def test_an_adoption_that_is_killed_has_changed_nothing_that_anybody_sees(shop: Shop) -> None:
    """Each after the first comes past the point at which the one before it was killed, on what that one has left."""
    fed_and_run(shop)
    for call, number in third((("rows of a table", 3), ("files of a stage", 4), ("registration", 1))):
        child = [sys.executable, "-m", "tests.ext.spark_pipelines.adopt_child"]
        child += [str(shop.project.root), call, str(number)]
        killed = subprocess.run(child, cwd=ROOT, capture_output=True, text=True, check=False)
        assert killed.returncode == 9, killed.stderr[-2000:]
        deployment = shop.project.coordinator.deployment()
        found = find_record(deployment.store, "written")
        assert found is None or found.savepoints == ()
        assert all(not rows for rows in shop.project.all_rows().values())
    shop.adopt()
    shop.feed("orders", row("b", 4))
    shop.project.epoch()
    shop.check()


@pytest.mark.nightly
def test_the_command_line_adopts_a_project_with_its_checkpoints(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed_and_run(shop)
    root = shop.project.root
    monkeypatch.chdir(root)
    done = CliRunner().invoke(
        main,
        [
            *("adopt-project", str(root), "--with-checkpoints", "--base", str(root / "lab")),
            *("--table-dir", str(shop.project.tables), "--spark-storage", "storage"),
            *("--name", "from Spark"),
        ],
    )
    assert done.exit_code == 0, done.output
    assert "savepoint-000001: " in done.output
    assert "orders__flow: batch 1 of query " in done.output
    assert f"orders: rows of {warehouse(shop.project) / 'orders'}" in done.output
    shop.project.epoch()
    shop.check()
    listed = CliRunner().invoke(main, ["list", "--base", str(root / "lab"), "--json"])
    assert "from Spark" in json.dumps(json.loads(listed.output))
