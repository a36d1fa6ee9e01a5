"""Google's storage, played by an emulator: rows and state of a working directory there, machines with an empty disk.

What storages promise is in ``tests/contract``, which runs on the emulator too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_ckpt.adapters.fsspec_storage import open_storage
from dagster_ckpt.errors import InvalidRequest, Unavailable
from dagster_ckpt.spark.exchange.mounts import mount, prove_reached
from dagster_ckpt.spark.exchange.options import remote_folder
from tests.adapters.clouds import GoogleServer
from tests.adapters.servers import PostgresCluster
from tests.spark.cluster.apart import (
    a_stream_dies_with_its_disk_and_an_epoch_goes_on,
    state_is_refused_without_connector,
)
from tests.spark.cluster.standalone import StandaloneCluster
from tests.spark.epoch.small_pipeline import Feed
from tests.spark.exchange.places import rows_come_and_go
from tests.spark.lake.deployment import Places
from tests.spark.lake.empty_disks import go_from_empty_disk_to_empty_disk

pytestmark = pytest.mark.platform


def test_rows_written_by_a_task_are_listed_and_deleted_by_the_driver(
    google: GoogleServer, tmp_path: Path
) -> None:
    uri = f"gs://{google.new_bucket()}/work"
    rows_come_and_go(uri, google.options, tmp_path / "scratch")


def test_a_bucket_that_is_not_there_is_told(google: GoogleServer, tmp_path: Path) -> None:
    storage = open_storage("gs://nobody/x", **google.options)
    with pytest.raises(Unavailable, match=r"bucket or (the base )?folder exist"):
        storage.create("p/file", b"content")
    with pytest.raises(InvalidRequest, match=r"work_dir \(gs://nobody/x\) cannot be used"):
        prove_reached(mount(tmp_path, remote_folder("gs://nobody/x", google.options), storage), "work_dir")


# --- everything there ---------------------------------------------------------------------------------------------


@pytest.fixture
def places(feed: Feed, postgres_server: PostgresCluster, google: GoogleServer) -> Places:
    return Places.new(feed.folder, postgres_server, google).all_in_the_bucket


def test_epochs_and_a_stream_go_from_empty_disk_to_empty_disk(
    tmp_path: Path, feed: Feed, places: Places
) -> None:
    go_from_empty_disk_to_empty_disk(tmp_path, places, feed)


def test_executors_without_a_shared_disk_hand_rows_and_state_over_there(
    cluster: StandaloneCluster, tmp_path: Path, feed: Feed, places: Places
) -> None:
    a_stream_dies_with_its_disk_and_an_epoch_goes_on(cluster, tmp_path, places, feed)


def test_state_is_refused_where_spark_has_no_connector(
    cluster: StandaloneCluster, tmp_path: Path, feed: Feed, places: Places
) -> None:
    state_is_refused_without_connector(cluster, tmp_path, places, feed)
