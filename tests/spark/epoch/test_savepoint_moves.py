"""A savepoint is relocatable: its folder may be moved by hand, and a run restores from wherever it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.lab.lab import Lab
from tests.removal import remove_tree
from tests.spark.epoch.small_pipeline import Feed, shop


@pytest.mark.nightly
def test_a_savepoint_whose_folder_was_moved_restores_by_its_new_path(lab: Lab, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "feed")
    feed.customer("ann", "fr")
    feed.order(("ann", 5), ("bob", 7))
    pipeline = shop(feed.folder)
    lab.succeeds(pipeline)
    lab.succeeds(pipeline, job="shop_savepoint")
    place = Path(str(lab.materializations(pipeline)[0].metadata["location"].value).removeprefix("file://"))
    feed.customer("bob", "de")
    feed.order(("ann", 50))
    lab.succeeds(pipeline)

    moved = tmp_path / "another disk" / "kept"
    moved.parent.mkdir()
    shutil.move(place, moved)
    remove_tree(
        Path(lab.coordinator.resolved_checkpoint_dir)
    )  # it is self-contained: no checkpoint is needed
    lab.succeeds(pipeline, restore_from=str(moved))
    assert lab.record(pipeline).restored_id == 2
    assert not place.exists()
    feed.check(lab.tables)
