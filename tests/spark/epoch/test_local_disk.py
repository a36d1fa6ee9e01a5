"""What the local disk holds: the working directory that is adopted, and local copies of checkpoints."""

from __future__ import annotations

import pytest

from tests.lab.lab import Lab
from tests.removal import remove_tree
from tests.spark.epoch.small_pipeline import Feed, read_lines, shop

pytestmark = pytest.mark.usefixtures("nothing_inlined")


def test_a_damaged_working_directory_is_not_adopted_but_built_anew(lab: Lab, small_feed: Feed) -> None:
    pipeline = shop(small_feed.folder)
    lab.succeeds(pipeline)
    remove_tree(lab.folder / "work" / "shop" / "attempt-1" / "matched" / "query")
    small_feed.order(("ann", 6))
    lab.succeeds(pipeline)
    assert lab.record(pipeline).working_directory.endswith("attempt-2")
    small_feed.check(lab.tables)


@pytest.mark.nightly
@pytest.mark.parametrize("lab", [{"local_backup": True}], indirect=True)
def test_an_intact_local_copy_stands_in_for_a_file_the_storage_has_lost(lab: Lab, small_feed: Feed) -> None:
    pipeline = shop(small_feed.folder)
    lab.succeeds(pipeline)
    copies = lab.folder / "work" / "shop" / "local" / "matched"
    assert [path.name for path in copies.iterdir()] == ["1"]
    lost = next(p for p in (lab.folder / "checkpoints/shop/shared/matched/1").rglob("*") if p.is_file())
    lost.unlink()
    lab.succeeds(pipeline, restore_from="chk-1")
    assert read_lines(lab.tables) == small_feed.expected_lines()
    assert [path.name for path in copies.iterdir()] == ["2"], "a newer checkpoint replaces the older copy"
