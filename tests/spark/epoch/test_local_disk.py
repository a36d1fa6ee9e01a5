"""What the local disk holds: the working directory that is adopted, and local copies of checkpoints."""

from __future__ import annotations

import pytest

from tests.removal import remove_tree
from tests.spark.epoch.conftest import Lab, failure_text
from tests.spark.epoch.small_pipeline import Feed, read_lines, read_totals, shop

pytestmark = pytest.mark.usefixtures("nothing_inlined")


def test_a_damaged_working_directory_is_not_adopted_but_built_anew(lab: Lab, small_feed: Feed) -> None:
    pipeline = shop(small_feed.folder)
    assert lab.run(pipeline).success
    remove_tree(lab.folder / "work" / "shop" / "attempt-1" / "matched" / "query")
    small_feed.order(("ann", 6))
    result = lab.run(pipeline)
    assert result.success, failure_text(result)
    assert lab.record(pipeline).working_directory.endswith("attempt-2")
    assert read_lines(lab.tables) == small_feed.expected_lines()
    assert read_totals(lab.tables) == small_feed.expected_totals()


@pytest.mark.nightly
@pytest.mark.parametrize("lab", [{"local_backup": True}], indirect=True)
def test_an_intact_local_copy_stands_in_for_a_file_the_storage_has_lost(lab: Lab, small_feed: Feed) -> None:
    pipeline = shop(small_feed.folder)
    assert lab.run(pipeline).success
    copies = lab.folder / "work" / "shop" / "local" / "matched"
    assert [path.name for path in copies.iterdir()] == ["1"]
    lost = next(p for p in (lab.folder / "checkpoints/shop/shared/matched/1").rglob("*") if p.is_file())
    lost.unlink()
    result = lab.run(pipeline, restore_from="chk-1")
    assert result.success, failure_text(result)
    assert read_lines(lab.tables) == small_feed.expected_lines()
    assert [path.name for path in copies.iterdir()] == ["2"], "a newer checkpoint replaces the older copy"
