"""A pipeline whose executors are pods, in client mode: Spark asks for them, loses them, and gets others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.servers import PostgresCluster, S3Server
from tests.adapters.started import started
from tests.needs import needs
from tests.spark.cluster.apart import a_stream_dies_with_its_disk_and_an_epoch_goes_on
from tests.spark.cluster.asked_of_pods import (
    a_stream_is_exact_after_pods_were_lost,
    epochs_run_and_nothing_is_left,
)
from tests.spark.cluster.driver_process import Driver
from tests.spark.cluster.kubernetes import KubernetesCluster, kubernetes_cluster
from tests.spark.cluster.split_tables import another_disk_is_refused
from tests.spark.epoch.small_pipeline import Feed
from tests.spark.lake.deployment import Places


@pytest.fixture(scope="module")
@needs("spark")
def kubernetes() -> Iterator[KubernetesCluster]:
    """An API server without pods, for all tests of a module."""
    with started(kubernetes_cluster()) as running:
        yield running


@pytest.fixture
def pods_driver(kubernetes: KubernetesCluster, tmp_path: Path) -> Iterator[Driver]:
    made = Driver(kubernetes, tmp_path / "driver.log")
    yield made
    made.kill()


@pytest.mark.nightly
def test_epochs_run_on_pods_and_the_pods_go_with_the_session(
    kubernetes: KubernetesCluster, pods_driver: Driver, feed: Feed, tmp_path: Path
) -> None:
    epochs_run_and_nothing_is_left(kubernetes, pods_driver, feed, tmp_path / "lab")


@pytest.mark.nightly
def test_a_path_that_is_a_disk_of_each_pods_own_is_refused(
    kubernetes: KubernetesCluster, pods_driver: Driver, feed: Feed, tmp_path: Path
) -> None:
    another_disk_is_refused(kubernetes, pods_driver, feed, tmp_path)


@pytest.mark.nightly
def test_tables_of_a_stream_are_exact_after_pods_ran_out_of_memory_and_were_evicted(
    kubernetes: KubernetesCluster, pods_driver: Driver, feed: Feed, tmp_path: Path
) -> None:
    a_stream_is_exact_after_pods_were_lost(kubernetes, pods_driver, feed, tmp_path / "lab")


@pytest.mark.nightly
def test_pods_without_a_shared_volume_hand_rows_over_in_a_bucket(
    kubernetes: KubernetesCluster,
    tmp_path: Path,
    feed: Feed,
    postgres_server: PostgresCluster,
    s3_apart: S3Server,
) -> None:
    places = Places.new(feed.folder, postgres_server, s3_apart).all_in_the_bucket
    a_stream_dies_with_its_disk_and_an_epoch_goes_on(kubernetes, tmp_path, places, feed, pipeline="stateless")
