"""A pipeline small enough for many tests: two sources, a join that aligns them, two sinks."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as f

from dagster_ckpt import CheckpointedPipeline
from tests.checker.record import Witness
from tests.lab.pipelines import reads, sink, stage, wired
from tests.tables import rows_in

ORDERS = "number INT, customer STRING, amount INT"
CUSTOMERS = "name STRING, country STRING"


@dataclass
class Feed:
    """Files the sources watch, and the truth about what was put there."""

    folder: Path
    orders: list[dict[str, Any]] = field(default_factory=list)
    customers: list[dict[str, Any]] = field(default_factory=list)
    _files: int = 0

    def __post_init__(self) -> None:
        for name in ("orders", "customers"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    @cached_property
    def witness(self) -> Witness:
        """Who records what arrives, and what readers see."""
        return Witness(self.folder / "history.jsonl", {"lines": "append", "totals": "keyed"}, self._truth)

    def customer(self, name: str, country: str) -> None:
        self._arrive("customers", self.customers, [{"name": name, "country": country}])

    def order(self, *rows: tuple[str, int]) -> None:
        self._arrive("orders", self.orders, self._made(rows))

    def _arrive(self, name: str, known: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
        witness = self.witness
        known.extend(rows)
        witness.arrives()
        self._put(name, rows)

    def with_order(self, *rows: tuple[str, int]) -> Feed:
        """Return what it will be once these orders are put there."""
        return replace(self, orders=[*self.orders, *self._made(rows)])

    def _made(self, rows: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
        return [
            {"number": len(self.orders) + i, "customer": who, "amount": amount}
            for i, (who, amount) in enumerate(rows)
        ]

    def _put(self, name: str, rows: list[dict[str, Any]]) -> None:
        self._files += 1
        temporary = self.folder / f".{self._files}"
        temporary.write_text("\n".join(json.dumps(row) for row in rows))
        os.utime(temporary, (1_700_000_000 + self._files, 1_700_000_000 + self._files))
        temporary.rename(self.folder / name / f"{self._files:05d}.json")

    def country_of(self, name: str) -> str | None:
        return next((c["country"] for c in self.customers if c["name"] == name), None)

    def expected_lines(self) -> Counter[tuple[int, str]]:
        return Counter(
            (o["number"], country)
            for o in self.orders
            if (country := self.country_of(o["customer"])) is not None
        )

    def check(self, tables: Path) -> None:
        """Insist that the tables of the shop hold just what has arrived."""
        assert read_lines(tables) == self.expected_lines()
        assert read_totals(tables) == self.expected_totals()

    def killed(self, tables: Path) -> None:
        """Insist that a reader sees nothing wrong in the tables of a shop whose process was ended."""
        self.witness.killed()
        self.witness.sees(lambda: {"lines": read_lines(tables), "totals": _as_rows(read_totals(tables))})

    def _truth(self) -> dict[str, Counter[Any]]:
        return {"lines": self.expected_lines(), "totals": _as_rows(self.expected_totals())}

    def expected_totals(self) -> dict[str, tuple[int, int]]:
        totals: dict[str, tuple[int, int]] = {}
        for order in self.orders:
            country = self.country_of(order["customer"])
            if country is not None:
                count, amount = totals.get(country, (0, 0))
                totals[country] = (count + 1, amount + order["amount"])
        return totals


def two_customers(folder: Path) -> Feed:
    """Return a feed of two customers and an order of each."""
    made = Feed(folder)
    made.customer("ann", "fr")
    made.customer("bob", "de")
    made.order(("ann", 5), ("bob", 7))
    return made


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    """Two customers and an order of each."""
    return two_customers(tmp_path / "feed")


@pytest.fixture
def small_feed(tmp_path: Path) -> Feed:
    """One customer and her order."""
    made = Feed(tmp_path / "feed")
    made.customer("ann", "fr")
    made.order(("ann", 5))
    return made


def breakable(
    folder: Path, broken: Path, passed: Callable[[Any], Any] = lambda rows: rows
) -> CheckpointedPipeline:
    """orders → lines, which fails while the file ``broken`` is there: with the run's checkpoint triggered.

    ``passed`` gets the rows when the query of ``lines`` is made.
    """
    flag = str(broken)

    def passes(number):  # type: ignore[no-untyped-def]  # Spark takes hints for those of pandas
        if Path(flag).exists():
            raise ValueError("broken")
        return number

    return wired(
        "breakable",
        reads("orders", ORDERS, folder / "orders"),
        sink(
            "lines",
            lambda orders: passed(orders.select(f.udf(passes, "int")("number").alias("number"), "customer")),
        ),
        checkpointing={"operator_chaining": False},
    )


def numbers_of(table: Path) -> list[int]:
    """Every number in a table, as often as it is there."""
    return sorted(row["number"] for row in rows_in(table))


def shop(folder: Path, **checkpointing: Any) -> CheckpointedPipeline:
    """orders, customers → matched (stream-stream join) → lines (append), totals (one row per country)."""

    return wired(
        "shop",
        reads("orders", ORDERS, folder / "orders", at_once=2),
        reads("customers", CUSTOMERS, folder / "customers"),
        stage(
            "matched",
            lambda orders, customers: orders.join(customers, orders.customer == customers.name).select(
                "number", "country", "amount"
            ),
        ),
        sink("lines", lambda matched: matched.select("number", "country")),
        sink(
            "totals",
            lambda matched: (
                matched.groupBy("country")
                .agg({"number": "count", "amount": "sum"})
                .toDF("country", "orders", "amount")
            ),
            key=["country"],
        ),
        checkpointing=checkpointing,
    )


def shop_in(folder: Path) -> CheckpointedPipeline:
    """Return the shop that reads a folder's feed."""
    return shop(folder / "feed")


SHOP_IN = f"{__name__}:{shop_in.__name__}"
"""The same for a process of its own."""


def _as_rows(totals: dict[str, tuple[int, int]]) -> Counter[Any]:
    return Counter((key, *values) for key, values in totals.items())


def read_lines(tables: Path) -> Counter[tuple[int, str]]:
    return Counter((row["number"], row["country"]) for row in rows_in(tables / "lines"))


def read_totals(tables: Path) -> dict[str, tuple[int, int]]:
    rows = rows_in(tables / "totals")
    assert len({row["country"] for row in rows}) == len(rows), "a key is in the table twice"
    return {row["country"]: (row["orders"], row["amount"]) for row in rows}
