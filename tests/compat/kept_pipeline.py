"""The pipeline whose checkpoints are kept here; it is defined in the same words with both versions."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from dagster_ckpt import CheckpointedPipeline, checkpointed_pipeline, spark_sink, spark_source, spark_stage

PLACE = Path("/tmp/dagster-ckpt-written-by-0.1")
"""Where it all lay, and must lie again: Spark writes the whole path of a file into its positions."""
FILES = 3
"""Of each source, one for each epoch that version 0.1 ran."""
CUSTOMERS = {"ann": "fr", "bob": "de", "cem": "tr"}
STATE = "org.apache.spark.sql.execution.streaming.state"
PROVIDERS: dict[str, dict[str, str]] = {
    "rocksdb": {},
    "hdfs": {
        "spark.sql.streaming.stateStore.providerClass": f"{STATE}.HDFSBackedStateStoreProvider",
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",
    },
}


def orders_of(number: int) -> list[dict[str, Any]]:
    """The rows of a file: some customers are known two files later."""
    return [
        {"number": 10 * number + i, "customer": name, "amount": number + i}
        for i, name in enumerate([*CUSTOMERS, "dan"])
    ]


def put(number: int) -> None:
    """Add a file to each source; always the same one, to the second of its time."""
    name, country = list(CUSTOMERS.items())[number % len(CUSTOMERS)]
    customers = [{"name": name, "country": country}] if number < len(CUSTOMERS) else []
    for source, rows in (("orders", orders_of(number)), ("customers", customers)):
        folder = PLACE / "feed" / source
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{number:05d}.json"
        path.write_text("\n".join(json.dumps(row) for row in rows))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def expected_lines(files: int) -> Counter[tuple[int, str]]:
    """Every order of the files whose customer is known by then."""
    known = list(CUSTOMERS.items())[:files]
    return Counter(
        (order["number"], country)
        for number in range(files)
        for order in orders_of(number)
        for name, country in known
        if order["customer"] == name
    )


def expected_totals(files: int) -> dict[str, int]:
    """Orders by country."""
    return dict(Counter(country for _, country in expected_lines(files).elements()))


def shop() -> CheckpointedPipeline:
    """orders, customers → matched (a join of streams) → lines (append), totals (a row a country)."""

    @spark_source
    def orders(spark: Any) -> Any:
        reader = spark.readStream.schema("number INT, customer STRING, amount INT")
        return reader.json(str(PLACE / "feed/orders"))

    @spark_source
    def customers(spark: Any) -> Any:
        return spark.readStream.schema("name STRING, country STRING").json(str(PLACE / "feed/customers"))

    @spark_stage
    def matched(orders: Any, customers: Any) -> Any:
        return orders.join(customers, orders.customer == customers.name).select("number", "country", "amount")

    @spark_sink
    def lines(matched: Any) -> Any:
        return matched.select("number", "country")

    @spark_sink(key=["country"])
    def totals(matched: Any) -> Any:
        return matched.groupBy("country").count().withColumnRenamed("count", "orders")

    @checkpointed_pipeline(name="shop")
    def pipeline() -> None:
        both = matched(orders(), customers())
        lines(both)
        totals(both)

    return pipeline
