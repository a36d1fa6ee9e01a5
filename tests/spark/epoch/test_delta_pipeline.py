"""A whole pipeline whose sinks are Delta tables: published with checkpoints, taken back with a restore."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import polars
from deltalake import DeltaTable as Reader

from dagster_ckpt.authoring.targets import DeltaTable
from tests.spark.epoch.conftest import Lab, failure_text
from tests.spark.epoch.small_pipeline import Feed, shop

TO = {"lines": DeltaTable("lines", partition_by=("country",)), "totals": DeltaTable("by_country")}


def test_delta_tables_follow_checkpoints_and_restores(lab: Lab, feed: Feed) -> None:
    pipeline = shop(feed.folder)
    stages = {uid: replace(stage, to=TO.get(uid)) for uid, stage in pipeline.stages.items()}
    pipeline = replace(pipeline, stages=stages)

    def check() -> None:
        lines = polars.read_delta(str(lab.tables / "lines")).select("number", "country").rows()
        assert Counter(lines) == feed.expected_lines()
        totals = (
            polars.read_delta(str(lab.tables / "by_country")).select("country", "orders", "amount").rows()
        )
        assert {country: (orders, amount) for country, orders, amount in totals} == feed.expected_totals()
        assert len(totals) == len(feed.expected_totals())

    first = lab.run(pipeline)
    assert first.success, failure_text(first)
    check()
    feed.order(("ann", 1), ("bob", 2))
    assert lab.run(pipeline).success
    check()
    shown = Reader(lab.tables / "lines").version()
    feed.order(("ann", 3))
    again = lab.run(pipeline, restore_from="chk-1")
    assert again.success, failure_text(again)
    check()
    assert Reader(lab.tables / "lines", version=shown).count() == 4
    heads = [entry.get("dagster_ckpt.head") for entry in Reader(lab.tables / "lines").history()]
    assert heads[0] == 3
    assert 1 in heads[1:-1]
