"""Machines that come with an empty disk and go with it: everything lasts in PostgreSQL and a bucket."""

from __future__ import annotations

from pathlib import Path

from tests.removal import remove_tree
from tests.spark.epoch.small_pipeline import Feed
from tests.spark.lake.deployment import Places, truth
from tests.spark.lake.machines import a_machine_dies, a_machine_runs


def go_from_empty_disk_to_empty_disk(folder: Path, places: Places, feed: Feed) -> None:
    """Run an epoch, kill one and then a stream with their disks, and end with an epoch: tables are exact throughout."""
    a_machine_runs(folder / "first", places, "epoch")
    assert places.shown() == truth(feed)
    assert not list((folder / "first").rglob("log/data"))
    [first] = attempts(places)
    remove_tree(folder / "first")

    feed.order(("ann", 3))
    feed.order(("eve", 1))
    a_machine_dies(folder / "second", places, "epoch", "publish", 2)  # one table has the rows, two have not
    for number in range(6):
        feed.order(("ann", number), ("eve", 1))
    a_machine_dies(folder / "third", places, "stream", "publish", 5)
    feed.order(("bob", 4))
    a_machine_runs(folder / "fourth", places, "epoch")
    assert places.shown() == truth(feed)
    assert first not in {key.split("/")[3] for key in places.keys("work/orders")}


def attempts(places: Places) -> set[str]:
    """Return the folders of attempts with rows in the bucket."""
    return {key.split("/")[3] for key in places.keys("work/orders") if "/log/data/" in key}
