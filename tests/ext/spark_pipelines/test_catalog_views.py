"""Views in Spark's catalog: readers find a project's tables by their names, and no row that is not published."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt import CheckpointCoordinatorResource, InvalidRequest, run_epoch
from dagster_ckpt.ext.delta.lake import Outside
from dagster_ckpt.sinks import DeltaTable
from dagster_ckpt.spark.attempt.sinks import PipelineSinks
from tests.ext.spark_pipelines.conftest import Project, Rows
from tests.ext.spark_pipelines.test_projects import as_rows
from tests.root import ROOT

Make = Callable[..., Project]
DATABASE = "shop_of_test"

SHOP = """
@dp.table
def orders():
    return spark.readStream.schema("k STRING, v INT").json(str(Path.cwd() / "feed" / "orders")).repartition(2)
dp.create_streaming_table("newest")
dp.create_auto_cdc_flow(target="newest", source="orders", keys=["k"], sequence_by="v")
@dp.materialized_view(name="counted")
def how_many():
    return spark.read.table("orders").groupBy("k").count()
"""


def row(k: str, v: int) -> dict[str, Any]:
    return {"k": k, "v": v}


@pytest.fixture
def named(written: Make, spark: Any) -> Iterator[Callable[..., Project]]:
    """Returns a project whose datasets are to be found in a database of Spark's catalog."""

    def make(python: str, views: str = "'*'") -> Project:
        project = written(python)
        spec = project.root / "spark-pipeline.yml"
        spec.write_text(spec.read_text() + f"database: {DATABASE}\n")
        (project.root / "dagster-ckpt.yml").write_text(f"catalog_views: {views}\n")
        return project

    spark.sql(f"CREATE DATABASE {DATABASE}")
    yield make
    spark.sql(f"DROP DATABASE {DATABASE} CASCADE")


def by_name(project: Project, name: str) -> Rows:
    """Return what a reader finds who knows the name only."""
    return as_rows(*(one.asDict() for one in project.spark.table(f"{DATABASE}.{name}").collect()))


def shop_tables(*orders: dict[str, Any]) -> dict[str, Rows]:
    newest = {one["k"]: one for one in sorted(orders, key=lambda order: order["v"])}
    counts = Counter(one["k"] for one in orders)
    return {
        "orders": as_rows(*orders),
        "newest": as_rows(*newest.values()),
        "counted": as_rows(*({"k": k, "count": n} for k, n in counts.items())),
    }


def found(project: Project) -> dict[str, Rows]:
    return {name: by_name(project, name) for name in ("orders", "newest", "counted")}


@pytest.mark.nightly
def test_readers_find_tables_by_their_names_after_epochs_and_restores(named: Make) -> None:
    shop = named(SHOP)
    shop.epoch()
    assert found(shop) == shop_tables()
    assert shop.spark.table(f"{DATABASE}.newest").columns == ["k", "v"]
    first, second = [row("a", 1), row("b", 2)], [row("a", 5), row("c", 3)]
    shop.feed("orders", *first)
    shop.epoch()
    assert found(shop) == shop_tables(*first)
    shop.feed("orders", *second)
    shop.epoch()
    assert found(shop) == shop_tables(*first, *second)
    (shop.root / "feed" / "orders" / "002.json").unlink()
    shop.epoch(restore={"restore_from": "chk-2", "allow_missing_files": True})
    assert found(shop) == shop_tables(*first)


@pytest.mark.nightly
def test_a_reader_who_has_read_before_finds_what_is_published_since(named: Make) -> None:
    shop = named(SHOP)
    shop.feed("orders", row("a", 1))
    shop.epoch()
    reader = shop.spark.newSession()
    assert reader.table(f"{DATABASE}.orders").count() == 1
    shop.feed("orders", row("b", 2))
    shop.epoch()
    assert reader.table(f"{DATABASE}.orders").count() == 2
    joined = f"SELECT count(*) AS n FROM {DATABASE}.orders JOIN {DATABASE}.newest USING (k, v)"
    assert reader.sql(joined).first().n == 2


@pytest.mark.nightly
def test_rows_of_a_checkpoint_that_is_not_published_are_not_found(
    named: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = named(SHOP)
    first, second = [row("a", 1)], [row("b", 2), row("c", 3)]
    shop.feed("orders", *first)
    shop.epoch()
    shop.feed("orders", *second)

    def lost(*_: Any, **__: Any) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(PipelineSinks, "publish", lost)
        with pytest.raises(Exception, match="the disk is gone"):
            shop.epoch()
    assert list((shop.tables / "orders").glob("_dagster_ckpt/staged/**/*.parquet"))
    assert found(shop) == shop_tables(*first)
    shop.epoch()
    assert found(shop) == shop_tables(*first, *second)


@pytest.mark.nightly
def test_in_the_middle_of_a_publish_no_row_is_found_twice_and_none_that_is_not_of_it(
    named: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = named(SHOP)
    shop.feed("orders", row("a", 1))
    shop.epoch()
    more = [row("b", n) for n in range(10)]
    shop.feed("orders", *more)
    everything = Counter(shop_tables(row("a", 1), *more)["orders"])
    commit, between = Outside.write, list[Counter[Any]]()

    def committing(*arguments: Any, **named: Any) -> None:
        between.append(Counter(by_name(shop, "orders")))
        commit(*arguments, **named)
        between.append(Counter(by_name(shop, "orders")))
        assert len(by_name(shop, "newest")) <= 2

    monkeypatch.setattr(Outside, "write", committing)
    shop.epoch()
    assert between
    assert all(seen == Counter(shop_tables(row("a", 1))["orders"]) for seen in between), (
        "till all is published"
    )
    assert Counter(by_name(shop, "orders")) == everything


@pytest.mark.nightly
def test_spark_refuses_to_stream_or_to_write_by_the_name(named: Make) -> None:
    shop = named(SHOP)
    shop.feed("orders", row("a", 1))
    shop.epoch()
    for use in (
        lambda: shop.spark.readStream.table(f"{DATABASE}.orders").isStreaming,
        lambda: shop.spark.sql(f"INSERT INTO {DATABASE}.orders VALUES ('x', 1)"),
        lambda: shop.spark.range(1).write.mode("append").saveAsTable(f"{DATABASE}.orders"),
    ):
        with pytest.raises(Exception, match=r"(?i)view"):
            use()
    assert found(shop) == shop_tables(row("a", 1))


@pytest.mark.nightly
def test_columns_that_come_later_are_in_the_view_and_empty_before(named: Make) -> None:
    shop = named(SHOP.partition("dp.create_streaming_table")[0])
    shop.feed("orders", row("a", 1))
    shop.epoch()
    main = shop.root / "transformations" / "main.py"
    main.write_text(main.read_text().replace("v INT", "v INT, note STRING"))
    shop.feed("orders", row("b", 2) | {"note": "new"})
    shop.epoch()
    assert by_name(shop, "orders") == as_rows(row("a", 1) | {"note": None}, row("b", 2) | {"note": "new"})


@pytest.mark.nightly
def test_what_has_the_name_already_is_left_alone_and_the_run_says_so(named: Make) -> None:
    shop = named(SHOP)
    shop.spark.sql(f"CREATE TABLE {DATABASE}.orders USING parquet AS SELECT 'old' AS k, 0 AS v")
    shop.feed("orders", row("a", 1))
    with pytest.raises(
        Exception, match=rf"spark_catalog.{DATABASE}.orders is to be a view .* rename that first"
    ):
        shop.epoch()
    assert by_name(shop, "orders") == as_rows(row("old", 0))
    assert by_name(shop, "newest") == as_rows(row("a", 1))
    shop.spark.sql(f"ALTER TABLE {DATABASE}.orders RENAME TO {DATABASE}.orders_of_spark")
    shop.epoch()
    assert found(shop) == shop_tables(row("a", 1))
    assert by_name(shop, "orders_of_spark") == as_rows(row("old", 0))


@pytest.mark.nightly
def test_a_fork_leaves_the_names_to_the_pipeline_it_forks(named: Make) -> None:
    shop = named(SHOP)
    shop.feed("orders", row("a", 1))
    shop.epoch()
    fork = shop.pipeline().fork("forked", table_dir=str(shop.root / "forks"))
    shop.feed("orders", row("b", 2))
    chk1 = str(shop.root / "lab" / "checkpoints" / "written" / "chk-1")
    where = CheckpointCoordinatorResource(base_dir=str(shop.root / "lab"))
    run_epoch(fork, coordinator=where, spark=shop.spark, restore={"restore_from": chk1, "fork": True})
    assert found(shop) == shop_tables(row("a", 1))


@pytest.mark.nightly
def test_another_pipeline_does_not_take_a_name_over(named: Make) -> None:
    shop = named(SHOP, views="[counted]")
    shop.feed("orders", row("a", 1))
    shop.epoch()
    assert not shop.spark.catalog.tableExists(f"{DATABASE}.orders")
    other = CheckpointCoordinatorResource(
        base_dir=str(shop.root / "other"), table_dir=str(shop.root / "other-tables")
    )
    with pytest.raises(
        Exception, match=r"counted is to be a view .* is a view of pipeline 'written': rename"
    ):
        shop.epoch(shop.pipeline(name="other"), where=other)
    assert by_name(shop, "counted") == as_rows({"k": "a", "count": 1})


@pytest.mark.parametrize(
    ("views", "said"),
    [
        ("[nobody]", "catalog_views names 'nobody', and the datasets are"),
        ("[out]", r"catalog_views names 'out', sink out .*: a sink has no name in Spark's catalog"),
        (
            "'*'",
            r"catalog_views names 'far', .* is a DeltaTable that is no folder here, which Spark reads",
        ),
        (
            "[elsewhere__default__t]",
            r"'elsewhere__default__t', .* views are made in spark_catalog, Spark's own",
        ),
        ("orders", r"catalog_views is a list of datasets, or '\*' for all: 'orders'"),
    ],
)
def test_what_no_view_can_show_is_refused_by_name(views: str, said: str, written: Make) -> None:
    project = written(
        SHOP
        + """
@dp.table
def far():
    return spark.readStream.table("orders")
@dp.table(name="elsewhere.default.t")
def in_another_catalog():
    return spark.readStream.table("orders")
dp.create_sink("out", "parquet", {"path": "/somewhere/else"})
@dp.append_flow(target="out")
def told():
    return spark.readStream.table("orders")
"""
    )
    (project.root / "dagster-ckpt.yml").write_text(f"catalog_views: {views}\n")
    with pytest.raises(InvalidRequest, match=said):
        project.pipeline(sinks={"far": DeltaTable("s3://lake/far"), "out": DeltaTable("out")})


@pytest.mark.nightly
def test_a_reader_in_another_process_finds_them_in_the_metastore(written: Make) -> None:
    shop = written(SHOP)
    (shop.root / "dagster-ckpt.yml").write_text("catalog_views: '*'\n")
    shop.feed("orders", row("a", 1), row("b", 2))

    def child(what: str) -> str:
        program = [sys.executable, "-m", "tests.ext.spark_pipelines.hive_child", str(shop.root), what]
        done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        return done.stdout.strip()

    child("run")
    shop.feed("orders", row("a", 3))
    before, *_, after = child("read,run,read").splitlines()
    assert before == "[('a', 1), ('b', 2)] [('a', 1), ('b', 2)] [('a', 1), ('b', 1)]"
    assert after == "[('a', 1), ('a', 3), ('b', 2)] [('a', 3), ('b', 2)] [('a', 2), ('b', 1)]"
    assert Path(shop.root / "metastore_db").is_dir()
