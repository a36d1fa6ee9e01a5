"""Two runs of one pipeline: the newer takes over, the older stops and says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_ckpt import CheckpointedPipeline
from tests.lab.lab import Lab, failure_text
from tests.spark.epoch.small_pipeline import Feed, read_lines, shop


def _overtaken(lab: Lab, pipeline: CheckpointedPipeline, results: list[dg.ExecuteInProcessResult]) -> Any:
    """The same pipeline, but while its join is being started a second run begins and ends."""
    original = pipeline.stages["matched"]

    def matched(orders: Any, customers: Any) -> Any:
        # It is called before the claim as well, where its plan decides about chains.
        if not results and lab.has_run(pipeline):
            results.append(lab.run(pipeline, concurrent_runs="take_over"))
        return original.fn(orders, customers)

    return CheckpointedPipeline(
        name=pipeline.name,
        stages={uid: replace(s, fn=matched) if uid == "matched" else s for uid, s in pipeline.stages.items()},
        upstream=pipeline.upstream,
    )


def test_an_older_run_is_fenced_says_so_and_publishes_nothing(lab: Lab, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "feed")
    feed.customer("ann", "fr")
    feed.order(("ann", 5), ("ann", 6))
    newer: list[dg.ExecuteInProcessResult] = []
    said = lab.fails(_overtaken(lab, shop(feed.folder), newer))
    assert newer[0].success, failure_text(newer[0])
    assert newer[0].run_id in said, said
    feed.check(lab.tables)
    lab.succeeds(shop(feed.folder))
    assert read_lines(lab.tables) == feed.expected_lines()
