"""Parts of a deployment put back or lost between runs: the tables are exact, or the run says what is behind what."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import dagster as dg

from tests.lab.lab import Lab
from tests.removal import remove_tree
from tests.spark.epoch.small_pipeline import Feed, read_lines, shop

STORE = "coordinator.db*"


def kept(lab: Lab, to: Path) -> Path:
    """A copy of everything but the tables, as a backup would have it."""
    shutil.copytree(lab.folder, to, ignore=shutil.ignore_patterns("tables"))
    return to


def put_back(lab: Lab, backup: Path, part: str) -> None:
    for path in lab.folder.glob(part):
        remove_tree(path) if path.is_dir() else path.unlink()
    for path in backup.glob(part):
        target = lab.folder / path.name
        shutil.copytree(path, target) if path.is_dir() else shutil.copy2(path, target)


def test_a_deployment_of_which_parts_are_put_back_or_lost_never_shows_wrong_rows(
    lab: Lab, feed: Feed, tmp_path: Path
) -> None:
    pipeline = shop(feed.folder)
    lab.succeeds(pipeline)
    lines = lab.instance.fetch_materializations(dg.AssetKey(["shop", "lines"]), limit=9).records
    assert [
        r.asset_materialization.metadata["rows_added"].value for r in lines if r.asset_materialization
    ] == [2]
    assert list(lab.folder.glob(STORE)), sorted(path.name for path in lab.folder.iterdir())
    first = kept(lab, tmp_path / "first")
    feed.order(("ann", 11))
    lab.succeeds(pipeline)

    put_back(lab, first, "work")  # it says clean, and is as an earlier run left it
    feed.order(("bob", 13))
    lab.succeeds(pipeline)
    feed.check(lab.tables)

    put_back(lab, first, STORE)
    feed.order(("ann", 17))
    shown = read_lines(lab.tables)
    said = lab.fails(pipeline)
    assert "the coordinator store is behind" in said
    assert read_lines(lab.tables) == shown
    newest = re.search(r"the newest snapshot found is (\S+)\)", said)
    assert newest is not None
    lab.succeeds(pipeline, restore_from=newest[1])
    feed.check(lab.tables)
    lines = lab.instance.fetch_materializations(dg.AssetKey(["shop", "lines"]), limit=9).records
    versions = [
        r.asset_materialization.tags["dagster/data_version"] for r in lines if r.asset_materialization
    ]
    # The store that was put back knew of checkpoint 1 alone: with the restore it is told that tables show checkpoint 3.
    assert [version.split(".", 1)[1] for version in versions] == ["4.4", "4.3", "3.3", "2.2", "1.1"]
    assert len(set(versions)) == len(versions)

    for path in lab.folder.glob(STORE):
        path.unlink()
    lab.fails(pipeline, "has no record of pipeline 'shop'")
    feed.check(lab.tables)
    lab.succeeds(pipeline, restore_from="none")
    feed.check(lab.tables)
    feed.order(("bob", 19))
    lab.succeeds(pipeline)
    feed.check(lab.tables)
