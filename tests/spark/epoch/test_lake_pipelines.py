"""A whole pipeline whose sinks are Delta or Iceberg tables: published with checkpoints, taken back with a restore."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import polars
import pytest
from deltalake import DeltaTable as Delta
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table as Iceberg

from dagster_ckpt.authoring.targets import SinkTarget
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.ext.delta.target import DeltaTable
from dagster_ckpt.ext.iceberg.target import IcebergTable
from tests.lab.lab import Lab
from tests.spark.epoch.small_pipeline import Feed, breakable, shop


@dataclass(frozen=True)
class Kind:
    """One format: the sinks' targets, and a reader that knows nothing of this library."""

    lines: SinkTarget
    totals: SinkTarget
    read: Callable[[Path, str], polars.DataFrame]
    later: Callable[[Path], list[int]]
    """Rows of each state of the table that a restore left, by whatever name they are kept."""


def _iceberg(tables: Path, name: str) -> Iceberg:
    folder = tables / "iceberg"
    catalog = SqlCatalog("default", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    return catalog.load_table(f"db.{name}")


def _iceberg_rows(tables: Path, name: str) -> polars.DataFrame:
    rows = polars.from_arrow(_iceberg(tables, name).scan().to_arrow())
    assert isinstance(rows, polars.DataFrame)
    return rows


def _on_branches(tables: Path) -> list[int]:
    table = _iceberg(tables, "lines")
    aside = [name for name in table.metadata.refs if "set_aside" in name]
    return [table.scan().use_ref(name).to_arrow().num_rows for name in aside]


def _before_restores(tables: Path) -> list[int]:
    history = Delta(tables / "lines").history()
    versions = [entry["version"] - 1 for entry in history if entry["operation"] == "RESTORE"]
    return [Delta(tables / "lines", version=version).count() for version in versions]


KINDS = {
    "delta": Kind(
        lines=DeltaTable("lines", partition_by=("country",)),
        totals=DeltaTable("totals"),
        read=lambda tables, name: polars.read_delta(str(tables / name)),
        later=_before_restores,
    ),
    "iceberg": Kind(
        lines=IcebergTable("db.lines", partition_by=("country",)),
        totals=IcebergTable("db.totals"),
        read=_iceberg_rows,
        later=_on_branches,
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_tables_follow_checkpoints_and_restores(lab: Lab, feed: Feed, name: str) -> None:
    kind = KINDS[name]
    pipeline = shop(feed.folder)
    to = {"lines": kind.lines, "totals": kind.totals}
    stages = {uid: replace(stage, to=to.get(uid)) for uid, stage in pipeline.stages.items()}
    pipeline = replace(pipeline, stages=stages)

    def check() -> None:
        lines = kind.read(lab.tables, "lines").select("number", "country").rows()
        assert Counter(lines) == feed.expected_lines()
        totals = kind.read(lab.tables, "totals").select("country", "orders", "amount").rows()
        assert {country: (orders, amount) for country, orders, amount in totals} == feed.expected_totals()
        assert len(totals) == len(feed.expected_totals())

    lab.succeeds(pipeline)
    check()
    feed.order(("ann", 1), ("bob", 2))
    lab.succeeds(pipeline)
    check()
    feed.order(("ann", 3))
    lab.succeeds(pipeline, restore_from="chk-1")
    check()
    assert kind.later(lab.tables) == [4], "what was published later is kept"


RENAMED = {
    "its own": (DeltaTable(), DeltaTable("others")),
    "delta": (DeltaTable("lines"), DeltaTable("others")),
    "iceberg": (IcebergTable("db.lines"), IcebergTable("db.others")),
}


@pytest.mark.parametrize("name", RENAMED)
def test_the_first_checkpoint_is_not_restored_into_another_table(lab: Lab, feed: Feed, name: str) -> None:
    """Its rows only wait beside their own table. With later rows kept no checkpoint ever completed after it."""
    pipeline = breakable(feed.folder, feed.folder / "nothing")
    lines = pipeline.stages[StageUid("lines")]
    mine, renamed = (
        replace(pipeline, stages={**pipeline.stages, lines.uid: replace(lines, to=to)})
        for to in RENAMED[name]
    )
    lab.succeeds(mine)
    epoch = lab.record(mine).epoch
    for rolls_back in (True, False):
        lab.fails(
            renamed, "they are in", "Go on with that table", restore_from="chk-1", roll_back_tables=rolls_back
        )
    lab.succeeds(mine, restore_from="chk-1", roll_back_tables=False)
    assert lab.record(mine).epoch > epoch
