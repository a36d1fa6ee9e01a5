"""The job that takes a checkpoint at once, of an idle pipeline, on real Spark."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_ckpt import checkpoints_asset_key
from dagster_ckpt.core.model import CheckpointMetadata
from tests.lab.lab import Lab, lab
from tests.spark.epoch.small_pipeline import Feed, feed, read_lines, shop

__all__ = ["feed", "lab"]


def checkpoint(**config: str) -> dict[str, Any]:
    """Config of the job's op."""
    return {"savepoint": {"action": "checkpoint", **config}}


def sizes(metadata: CheckpointMetadata) -> tuple[int, int]:
    """All bytes, and those that were uploaded."""
    metrics = [stage.metrics for stage in metadata.stages]
    return sum(m.bytes_full for m in metrics), sum(m.bytes_new for m in metrics)


@pytest.mark.nightly
@pytest.mark.parametrize("lab", [{"incremental": False, "num_retained": 10}], indirect=True)
def test_an_idle_pipelines_checkpoint_is_configured_incremental_or_full_as_asked(
    lab: Lab, feed: Feed
) -> None:
    pipeline = shop(feed.folder)
    lab.succeeds(pipeline)
    for config in ({}, {"scope": "incremental"}, {"scope": "full"}):
        lab.succeeds(pipeline, job="shop_savepoint", ops=checkpoint(**config))
    assert lab.partitions(pipeline) == [f"chk-00000{n}" for n in (1, 2, 3, 4)]
    kinds = [str(m.metadata["kind"].value) for m in lab.materializations(pipeline)]
    assert kinds == ["full_checkpoint", "checkpoint", "checkpoint"]
    [unchanged] = lab.instance.fetch_observations(checkpoints_asset_key(pipeline.name), limit=5).records
    assert unchanged.partition_key == "chk-000003"
    assert unchanged.asset_observation is not None
    assert "nothing has changed" in str(unchanged.asset_observation.description)
    configured, incremental, full = (sizes(lab.metadata(pipeline, n)) for n in (2, 3, 4))
    assert configured[1] == configured[0], "incremental is off"
    assert incremental[1] < incremental[0]
    assert full[1] == full[0]


def test_the_pipeline_goes_on_after_its_checkpoint_and_is_restored_from_it(lab: Lab, feed: Feed) -> None:
    pipeline = shop(feed.folder)
    lab.succeeds(pipeline)
    lab.succeeds(pipeline, job="shop_savepoint", ops=checkpoint())
    feed.order(("ann", 100))
    lab.succeeds(pipeline)
    assert read_lines(lab.tables) == feed.expected_lines()
    lab.succeeds(pipeline, restore_from="chk-2")
    assert lab.record(pipeline).restored_id == 2
    feed.check(lab.tables)


def test_a_scope_that_does_not_exist_is_refused_with_those_that_do(lab: Lab, feed: Feed) -> None:
    lab.fails(
        shop(feed.folder),
        "scope must be one of configured, full, incremental, got 'half'",
        job="shop_savepoint",
        ops=checkpoint(scope="half"),
    )
