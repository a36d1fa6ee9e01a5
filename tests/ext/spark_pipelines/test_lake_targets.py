"""Projects whose tables and sinks are Delta tables, Iceberg tables and topics of Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable as Delta

from dagster_ckpt import load_table
from dagster_ckpt.sinks import IcebergTable
from tests.adapters.servers import KafkaBroker
from tests.contract.test_kafka_sink import committed
from tests.ext.spark_pipelines.conftest import Project
from tests.ext.spark_pipelines.test_projects import as_rows

Make = Callable[..., Project]

ORDERS = """
@dp.table(format="delta", partition_cols=["k"])
def orders():
    return spark.readStream.schema("k STRING, v INT").json(str(Path.cwd() / "feed" / "orders"))
dp.create_sink("large", format="delta", options={"path": str(Path.cwd() / "large")})
@dp.append_flow(target="large", name="large_ones")
def to_large():
    return spark.readStream.table("orders").where("v > 5")
@dp.materialized_view(format="delta")
def counted():
    return spark.read.table("orders").groupBy("k").count()
"""


def row(k: str, v: int) -> dict[str, Any]:
    return {"k": k, "v": v}


def delta_rows(place: Path) -> list[Any]:
    return as_rows(*Delta(place).to_pyarrow_table().to_pylist())


def test_delta_tables_and_sinks_of_a_project_are_exact_and_go_back(written: Make) -> None:
    project = written(ORDERS)
    first, second = [row("a", 1), row("b", 7)], [row("a", 9)]
    project.feed("orders", *first)
    project.epoch()
    project.feed("orders", *second)
    project.epoch()
    tables = {"orders": project.tables / "orders", "large": project.root / "large"}
    assert delta_rows(tables["orders"]) == as_rows(*first, *second)
    assert delta_rows(tables["large"]) == as_rows(row("b", 7), row("a", 9))
    assert project.rows("counted") == as_rows({"k": "a", "count": 2}, {"k": "b", "count": 1})
    notes = json.loads((project.root / ".dagster_ckpt" / "graph.json").read_text())["notes"]
    assert any(
        "its format delta has no effect, a materialized view is a Delta table" in note for note in notes
    )
    (project.root / "feed" / "orders" / "002.json").unlink()
    project.epoch(restore={"restore_from": "chk-1", "allow_missing_files": True})
    assert delta_rows(tables["orders"]) == as_rows(*first)
    assert delta_rows(tables["large"]) == as_rows(row("b", 7))
    assert project.rows("counted") == as_rows({"k": "a", "count": 1}, {"k": "b", "count": 1})


def test_an_iceberg_table_of_a_project_is_exact_and_goes_back(written: Make) -> None:
    project = written(ORDERS.partition("dp.create_sink")[0].replace('"delta"', '"iceberg"'))
    pipeline = project.pipeline(sinks={"orders": IcebergTable("db.orders", partition_by=("k",))})
    first = [row("a", 1), row("b", 7)]
    project.feed("orders", *first)
    project.epoch(pipeline)
    project.feed("orders", row("a", 9))
    project.epoch(pipeline)

    def rows() -> list[Any]:
        found = load_table(pipeline, "orders", coordinator=project.coordinator)
        return as_rows(*found.to_arrow().to_pylist())

    assert rows() == as_rows(*first, row("a", 9))
    (project.root / "feed" / "orders" / "002.json").unlink()
    project.epoch(pipeline, restore={"restore_from": "chk-1", "allow_missing_files": True})
    assert rows() == as_rows(*first)


@pytest.mark.nightly
def test_a_sink_of_kafka_in_a_project_gets_each_message_once(written: Make, kafka: KafkaBroker) -> None:
    topic = "of_a_project"
    project = written(
        ORDERS.partition("dp.create_sink")[0].replace('format="delta", partition_cols=["k"]', "")
        + f"""
dp.create_sink("out", format="kafka", options={{
    "kafka.bootstrap.servers": {kafka.address!r}, "topic": {topic!r}
}})
@dp.append_flow(target="out")
def messages():
    return spark.readStream.table("orders").select("k", F.col("v").cast("string").alias("value")).selectExpr(
        "k AS key", "value"
    )
"""
    )
    project.feed("orders", row("a", 1), row("b", 7))
    project.epoch()
    project.feed("orders", row("a", 9))
    project.epoch()
    project.epoch()
    assert sorted(committed(kafka.address, topic)) == [(b"a", b"1"), (b"a", b"9"), (b"b", b"7")]
