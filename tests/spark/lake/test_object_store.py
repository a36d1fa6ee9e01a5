"""Everything in PostgreSQL and S3, the working directory too: machines come with an empty disk, and go with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.servers import PostgresCluster, S3Server
from tests.removal import remove_tree
from tests.spark.epoch.small_pipeline import Feed
from tests.spark.lake.deployment import Places, truth
from tests.spark.lake.machines import a_machine_dies, a_machine_runs

pytestmark = [pytest.mark.s3, pytest.mark.postgres]


@pytest.fixture
def places(feed: Feed, postgres_server: PostgresCluster, s3_apart: S3Server) -> Places:
    return Places.new(feed.folder, postgres_server, s3_apart).all_in_the_bucket


def test_epochs_and_a_stream_go_from_empty_disk_to_empty_disk(
    tmp_path: Path, feed: Feed, places: Places
) -> None:
    a_machine_runs(tmp_path / "first", places, "epoch")
    assert places.shown() == truth(feed)
    assert not list((tmp_path / "first").rglob("log/data"))
    [first] = {key.split("/")[3] for key in places.keys("work/orders") if "/log/data/" in key}
    remove_tree(tmp_path / "first")

    feed.order(("ann", 3))
    feed.order(("eve", 1))
    a_machine_dies(tmp_path / "second", places, "epoch", "publish", 2)  # one table has the rows, two have not
    for number in range(6):
        feed.order(("ann", number), ("eve", 1))
    a_machine_dies(tmp_path / "third", places, "stream", "publish", 5)
    feed.order(("bob", 4))
    a_machine_runs(tmp_path / "fourth", places, "epoch")
    assert places.shown() == truth(feed)
    left = {key.split("/")[3] for key in places.keys("work/orders")}
    assert first not in left


def test_a_machine_that_comes_back_goes_on_in_its_directory(
    tmp_path: Path, feed: Feed, places: Places
) -> None:
    disk = tmp_path / "first"
    a_machine_runs(disk, places, "epoch")
    [kept] = {key.split("/")[3] for key in places.keys("work/orders") if "/log/data/" in key}
    feed.order(("ann", 3))
    a_machine_runs(disk, places, "epoch")
    assert places.shown() == truth(feed)
    assert {key.split("/")[3] for key in places.keys("work/orders")} == {kept}
    assert {path.name for path in (disk / "tmp").glob("dagster-ckpt-*/*/orders/attempt-*")} == {"attempt-1"}
