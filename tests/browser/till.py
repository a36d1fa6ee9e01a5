"""The smallest pipeline with state: orders of a till, and one row per customer."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dagster_ckpt import CheckpointedPipeline
from dagster_ckpt.core.ids import StageUid
from tests.lab.pipelines import reads, sink, wired
from tests.tables import rows_in

ORDER = "customer STRING, amount BIGINT"


@dataclass
class Till:
    """Orders that were put where the source looks, and the truth about them."""

    folder: Path
    spent: Counter[str] = field(default_factory=Counter)
    _files: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)

    def order(self, customer: str, amount: int) -> None:
        """Let one order arrive, whole."""
        self._files += 1
        temporary = self.folder / f".{self._files}"
        temporary.write_text(json.dumps({"customer": customer, "amount": amount}))
        os.utime(temporary, (1_700_000_000 + self._files, 1_700_000_000 + self._files))
        temporary.rename(self.folder / f"{self._files:05d}.json")
        if amount > 0:
            self.spent[customer] += amount


def pipeline_of(folder: Path) -> CheckpointedPipeline:
    """orders, those of nothing apart → totals, of the orders in ``folder``."""

    return wired(
        "shop",
        reads("orders", ORDER, folder, expect={"amount > 0": "quarantine"}, at_most=0),
        sink(
            "totals",
            lambda orders: orders.groupBy("customer").agg({"amount": "sum"}).toDF("customer", "spent"),
            key=["customer"],
        ),
    )


def next_version(pipeline: CheckpointedPipeline) -> CheckpointedPipeline:
    """Return the pipeline with a change that readers would see: what a customer has spent is in cents."""

    def in_cents(orders: Any) -> Any:
        return (
            orders.groupBy("customer")
            .agg({"amount": "sum"})
            .selectExpr("customer", "`sum(amount)` * 100 AS spent")
        )

    totals = replace(pipeline.stages[StageUid("totals")], fn=in_cents)
    return replace(pipeline, stages={**pipeline.stages, totals.uid: totals})


def read_spent(tables: Path) -> dict[str, int]:
    """What the table says; a customer twice would be an error."""
    rows = rows_in(tables / "totals")
    assert len({row["customer"] for row in rows}) == len(rows)
    return {row["customer"]: row["spent"] for row in rows}
