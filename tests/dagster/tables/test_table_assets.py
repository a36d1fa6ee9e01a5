"""Published tables as assets: what downstream assets see of a pipeline."""

from __future__ import annotations

from typing import Any

import dagster as dg

from dagster_ckpt import (
    CheckpointedPipeline,
    PipelineOptions,
    build_pipeline_definitions,
    spark_sink,
)
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.dagster.reports.tables import changed_event, changed_events
from dagster_ckpt.sinks import DeltaTable
from dagster_ckpt.spark.stage_report import TableChanged
from tests.lab.pipelines import sink, source, stage, wired


def shop() -> CheckpointedPipeline:
    @spark_sink(key=["country"], to=DeltaTable("totals"), asset="lake/totals")
    def totals(priced: Any) -> Any:
        """Amount per country."""
        return priced

    return wired(
        "shop",
        source("orders", lambda spark: spark, asset="raw/orders"),
        source("prices", lambda spark: spark, asset="raw/prices"),
        stage("priced", lambda orders, prices: orders),
        totals,
        sink("copies", lambda orders: orders),
    )


def specs(*pipelines: CheckpointedPipeline, **options: Any) -> dict[str, dg.AssetSpec]:
    found = build_pipeline_definitions(*pipelines, **options).resolve_all_asset_specs()
    return {spec.key.to_user_string(): spec for spec in found}


def test_each_table_is_an_asset_below_the_sources_it_is_made_of() -> None:
    found = specs(shop(), options=PipelineOptions(owners=["team:data"], table_group_name="lake"))
    totals, copies = found["lake/totals"], found["shop/copies"]
    assert {dep.asset_key.to_user_string() for dep in totals.deps} == {"raw/orders", "raw/prices"}
    assert {dep.asset_key.to_user_string() for dep in copies.deps} == {"raw/orders"}
    assert totals.kinds == {"spark", "delta"}
    assert copies.kinds == {"spark", "delta"}
    assert (totals.group_name, totals.owners, totals.description) == (
        "lake",
        ["team:data"],
        "Amount per country.",
    )


def test_a_forks_tables_are_assets_of_their_own() -> None:
    fork = shop().fork("trial", table_dir="/t", sinks={"totals": DeltaTable("trial")})
    assert {"lake/totals", "trial/totals", "shop/copies", "trial/copies"} <= specs(shop(), fork).keys()


def test_published_rows_and_rows_taken_back_are_told_apart() -> None:
    added = TableChanged(
        uid=StageUid("totals"),
        place="/t",
        checkpoint_id=7,
        data_version="a.1.7",
        rows=12,
        bytes=99,
        version="3",
    )
    event = changed_event(shop(), added)
    assert event.asset_key == dg.AssetKey(["lake", "totals"])
    assert event.metadata["rows_added"].value == 12
    assert event.tags["dagster/data_version"] == "a.1.7"
    back = TableChanged(
        uid=StageUid("copies"),
        place="/t",
        checkpoint_id=3,
        data_version="a.2.3",
        taken_back="2 files set aside",
    )
    assert changed_event(shop(), back).description == "brought to the rows of checkpoint 3: 2 files set aside"


def test_rows_are_told_on_the_asset_that_readers_know_by_whoever_serves_it() -> None:
    blue = shop()
    green = blue.fork("trial", table_dir="/t", sinks={"totals": DeltaTable("trial")})
    change = TableChanged(
        uid=StageUid("totals"), place="/t/trial", checkpoint_id=3, data_version="a.1.3", rows=7
    )

    def told(pipeline: CheckpointedPipeline, serving: str) -> list[tuple[str, str, str]]:
        return [
            (type(event).__name__, event.asset_key.to_user_string(), str(event.description))
            for event in changed_events(pipeline, change, serving=serving)
        ]

    rows = "7 rows of checkpoint 3"
    assert told(blue, "shop") == [("AssetMaterialization", "lake/totals", rows)]
    assert told(green, "shop") == [("AssetMaterialization", "trial/totals", rows)]
    assert told(green, "trial") == [
        ("AssetMaterialization", "trial/totals", rows),
        ("AssetMaterialization", "lake/totals", f"{rows} of pipeline trial, which serves"),
    ]
    assert told(blue, "trial") == [
        ("AssetObservation", "lake/totals", f"{rows}; readers find the table of pipeline trial")
    ]
    mine, theirs = changed_events(green, change, serving="trial")
    assert mine.tags != theirs.tags, "a swap is another data version, also of the same checkpoint number"
