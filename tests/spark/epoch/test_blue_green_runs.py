"""Blue/green and replay of a real pipeline on real Spark, as Dagster jobs: exact tables, readers, the way back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt import (
    CheckpointedPipeline,
    load_table,
)
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.operations.readers.open_sink import own_table
from tests.lab.lab import Lab, failure_text
from tests.spark.epoch.small_pipeline import Feed, read_lines, read_totals, shop


def doubled(matched: Any) -> Any:
    """Another version of the stage: every order counts twice."""
    return (
        matched.selectExpr("country", "number", "amount * 2 AS amount")
        .groupBy("country")
        .agg({"number": "count", "amount": "sum"})
        .toDF("country", "orders", "amount")
    )


def other_version(pipeline: CheckpointedPipeline) -> CheckpointedPipeline:
    totals = replace(pipeline.stages[StageUid("totals")], fn=doubled)
    return replace(pipeline, stages={**pipeline.stages, totals.uid: totals})


def totals_of(lab: Lab, pipeline: CheckpointedPipeline) -> dict[str, tuple[int, int]]:
    """What readers of the pipeline's name find."""
    rows = load_table(pipeline, "totals", coordinator=lab.coordinator).to_arrow().to_pylist()
    return {row["country"]: (row["orders"], row["amount"]) for row in rows}


def lines_of(lab: Lab, pipeline: CheckpointedPipeline) -> Counter[tuple[int, str]]:
    rows = load_table(pipeline, "lines", coordinator=lab.coordinator).to_arrow().to_pylist()
    return Counter((row["number"], row["country"]) for row in rows)


def told_of(lab: Lab, key: dg.AssetKey) -> list[str]:
    """Descriptions of an asset's materializations, newest first."""
    records = lab.instance.fetch_materializations(key, limit=20).records
    return [str(r.asset_materialization.description) for r in records if r.asset_materialization is not None]


@pytest.mark.nightly
def test_a_fork_catches_up_is_compared_serves_readers_and_makes_way_again(lab: Lab, feed: Feed) -> None:
    blue = shop(feed.folder)
    green = other_version(blue.fork("shop_green", table_dir=str(lab.folder / "green")))
    both = [blue, green]
    lab.succeeds(both, "shop")
    lab.succeeds(both, "shop_green", {"restore": {"restore_from": savepoint_of(lab, both), "fork": True}})
    feed.order(("ann", 100), ("bob", 1))
    lab.succeeds(both, "shop")
    lab.succeeds(both, "shop_green")
    truth = feed.expected_totals()

    lab.succeeds(both, "shop_green_care", {"care": {"action": "compare"}})
    seen = lab.observed(green)
    assert "lines: the same 4 rows; totals: 0 rows the same, 0 added, 0 missing, 2 changed" in str(
        seen.description
    )
    refused = lab.run(both, "shop_green_care", {"care": {"action": "swap"}})
    assert "nothing was swapped" in failure_text(refused)
    assert totals_of(lab, blue) == truth
    approved = str(seen.metadata["approved"].value)

    reader = load_table(blue, "totals", coordinator=lab.coordinator)
    lab.succeeds(both, "shop_green_care", {"care": {"action": "swap", "approved": approved}})
    by_green = totals_of(lab, blue)
    assert by_green == read_totals(lab.folder / "green")
    assert by_green["fr"] == (2, 5 + 200), (
        "ann's second order counts twice, what was before the savepoint does not"
    )
    assert lines_of(lab, blue) == feed.expected_lines()
    assert reader.to_arrow().num_rows == 2, "who has opened the old table reads on"
    [newest, *_] = told_of(lab, dg.AssetKey(["shop", "totals"]))
    assert newest == "readers find the table of pipeline shop_green, and no longer of shop"
    assert lab.observed(blue).metadata["readers"].value == "readers find the tables of shop_green"
    assert lab.observed(green).metadata["readers"].value == "readers of shop find its tables"

    feed.order(("ann", 7))
    before = told_of(lab, dg.AssetKey(["shop", "totals"]))
    lab.succeeds(both, "shop")  # the old one runs on: its tables change, what readers find does not
    assert totals_of(lab, blue) == by_green
    assert told_of(lab, dg.AssetKey(["shop", "totals"])) == before
    shown = lab.materializations(blue)[0].metadata["readers"].value
    assert shown == "readers find the tables of shop_green"
    lab.succeeds(both, "shop_green")
    assert totals_of(lab, blue)["fr"] == (3, 5 + 200 + 14)
    assert told_of(lab, dg.AssetKey(["shop", "totals"]))[0].endswith("of pipeline shop_green, which serves")
    assert lab.materializations(green)[0].metadata["readers"].value == "readers of shop find its tables"

    lab.succeeds(both, "shop_green_care", {"care": {"action": "swap", "readers": "back"}})
    assert totals_of(lab, blue) == feed.expected_totals() == read_totals(lab.tables)
    assert [row.what for row in lab.audited(blue)] == ["swapped back", "swapped"]
    own = own_table(green, StageUid("totals"), lab.coordinator).rows().to_arrow()
    assert own.num_rows == 2, "the fork keeps its tables"


def savepoint_of(lab: Lab, pipelines: list[CheckpointedPipeline]) -> str:
    """Take a savepoint of the first pipeline and return its place."""
    lab.succeeds(pipelines, f"{pipelines[0].name}_savepoint", {"savepoint": {"name": "before"}})
    return str(lab.materializations(pipelines[0])[0].metadata["location"].value)


@pytest.mark.nightly
def test_a_day_is_replayed_from_the_nearest_snapshot_into_side_tables_again_and_again(
    lab: Lab, feed: Feed
) -> None:
    pipeline = shop(feed.folder)
    again = other_version(pipeline.fork("shop_again", table_dir=str(lab.folder / "again")))
    both = [pipeline, again]
    lab.succeeds(both, "shop")
    before = savepoint_of(lab, both)
    moment = lab.record(pipeline).savepoints[-1].completed_at + 0.001
    feed.order(("ann", 100))
    lab.succeeds(both, "shop")
    since = datetime.fromtimestamp(moment, UTC).isoformat()

    early = lab.run(both, "shop_again_care", {"care": {"action": "replay", "since": "2001-01-01"}})
    assert (
        "pipeline 'shop' has no checkpoint or savepoint from before 2001-01-01 00:00:00 UTC"
        in failure_text(early)
    )

    lab.succeeds(
        both, "shop_again_care", {"care": {"action": "replay", "since": since, "only": {"country": "fr"}}}
    )
    seen = lab.observed(again)
    assert "totals: 0 rows the same, 0 added, 0 missing, 1 changed" in str(seen.description)
    assert read_lines(lab.folder / "again") == feed.expected_lines()
    assert read_totals(lab.folder / "again")["fr"] == (2, 5 + 200)
    assert read_totals(lab.tables) == feed.expected_totals(), "the pipeline's own tables are not touched"
    assert before in str(seen.metadata["restore"].value).replace("%3A", ":").replace("%2F", "/")
    assert [row.what for row in lab.audited(again)] == ["forked"]

    second = lab.run(both, "shop_again_care", {"care": {"action": "replay", "since": since}})
    assert "'shop_again' has run before, and its tables hold what it has written" in failure_text(second)
    feed.order(("bob", 3))
    lab.succeeds(both, "shop_again_care", {"care": {"action": "replay", "since": since, "again": True}})
    assert read_lines(lab.folder / "again") == feed.expected_lines()
    kept = list((lab.folder / "again" / ".set_aside").glob("*/lines"))
    assert len(kept) == 1, "the side tables of the first replay are kept"

    approved = str(lab.observed(again).metadata["approved"].value)
    lab.succeeds(both, "shop_again_care", {"care": {"action": "swap", "approved": approved}})
    assert totals_of(lab, pipeline) == read_totals(lab.folder / "again")
    serving = lab.run(both, "shop_again_care", {"care": {"action": "replay", "since": since, "again": True}})
    assert "'shop_again' serves readers of 'shop'" in failure_text(serving)
