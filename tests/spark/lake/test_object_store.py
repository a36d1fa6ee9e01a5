"""Everything in PostgreSQL and S3, the working directory too: machines come with an empty disk, and go with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.servers import PostgresCluster, S3Server
from tests.spark.epoch.small_pipeline import Feed
from tests.spark.lake.deployment import Places, truth
from tests.spark.lake.empty_disks import attempts, go_from_empty_disk_to_empty_disk
from tests.spark.lake.machines import a_machine_runs

pytestmark = pytest.mark.spark  # in children


@pytest.fixture
def places(feed: Feed, postgres_server: PostgresCluster, s3_apart: S3Server) -> Places:
    return Places.new(feed.folder, postgres_server, s3_apart).all_in_the_bucket


@pytest.mark.nightly
def test_epochs_and_a_stream_go_from_empty_disk_to_empty_disk(
    tmp_path: Path, feed: Feed, places: Places
) -> None:
    go_from_empty_disk_to_empty_disk(tmp_path, places, feed)


@pytest.mark.nightly
def test_a_machine_that_comes_back_goes_on_in_its_directory(
    tmp_path: Path, feed: Feed, places: Places
) -> None:
    disk = tmp_path / "first"
    a_machine_runs(disk, places, "epoch")
    [kept] = attempts(places)
    feed.order(("ann", 3))
    a_machine_runs(disk, places, "epoch")
    assert places.shown() == truth(feed)
    assert {key.split("/")[3] for key in places.keys("work/orders")} == {kept}
    assert {path.name for path in (disk / "tmp").glob("dagster-ckpt-*/*/orders/attempt-*")} == {"attempt-1"}
