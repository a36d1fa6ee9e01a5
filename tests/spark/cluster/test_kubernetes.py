"""A pipeline whose executors are pods, in client mode: Spark asks for them, loses them, and gets others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.servers import PostgresCluster, S3Server
from tests.adapters.started import started
from tests.spark.cluster.apart import a_stream_dies_with_its_disk_and_an_epoch_goes_on
from tests.spark.cluster.driver_process import Driver
from tests.spark.cluster.kubernetes import KubernetesCluster, kubernetes_cluster
from tests.spark.cluster.split_tables import another_disk_is_refused, more_is_shown, shown, truth
from tests.spark.epoch.small_pipeline import Feed
from tests.spark.lake.deployment import Places


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[KubernetesCluster]:
    """An API server without pods, for all tests of a module."""
    with started(kubernetes_cluster()) as running:
        yield running


@pytest.fixture
def pods_driver(kubernetes: KubernetesCluster, tmp_path: Path) -> Iterator[Driver]:
    made = Driver(kubernetes, tmp_path / "driver.log")
    yield made
    made.kill()


def test_epochs_run_on_pods_and_the_pods_go_with_the_session(
    kubernetes: KubernetesCluster, pods_driver: Driver, feed: Feed, tmp_path: Path
) -> None:
    lab = tmp_path / "lab"
    first = pods_driver.run(feed, lab, pipeline="split")
    assert first["said"].endswith("split/chk-1"), first
    assert first["probed"] >= 1
    assert shown(lab) == truth(feed)
    assert not kubernetes.running()

    feed.order(("ann", 3), ("eve", 4))
    assert pods_driver.run(feed, lab, pipeline="split")["said"].endswith("split/chk-2")
    assert shown(lab) == truth(feed)


def test_a_path_that_is_a_disk_of_each_pods_own_is_refused(
    kubernetes: KubernetesCluster, pods_driver: Driver, feed: Feed, tmp_path: Path
) -> None:
    another_disk_is_refused(kubernetes, pods_driver, feed, tmp_path)


def test_tables_of_a_stream_are_exact_after_pods_ran_out_of_memory_and_were_evicted(
    kubernetes: KubernetesCluster, pods_driver: Driver, feed: Feed, tmp_path: Path
) -> None:
    lab = tmp_path / "lab"
    pods_driver.begin(feed, lab, pipeline="split", stream=True, restarts=True, patience=20.0)

    def more(when: str) -> None:
        more_is_shown(kubernetes, pods_driver, feed, lab, when)

    more("at the start")
    kubernetes.run_out_of_memory(kubernetes.running()[0])
    more("with a pod out of memory")
    kubernetes.evict(kubernetes.running()[0])
    more("with a pod evicted")
    for name in kubernetes.running():
        kubernetes.evict(name)
    more("with all pods evicted at once")
    feed.order(("eve", 9))
    more("at the end")
    assert len(kubernetes.started) >= 4
    pods_driver.interrupt()
    assert "failed" not in pods_driver.answer()
    assert shown(lab) == truth(feed)


@pytest.mark.s3
@pytest.mark.postgres
def test_pods_without_a_shared_volume_hand_rows_over_in_a_bucket(
    kubernetes: KubernetesCluster,
    tmp_path: Path,
    feed: Feed,
    postgres_server: PostgresCluster,
    s3_apart: S3Server,
) -> None:
    places = Places.new(feed.folder, postgres_server, s3_apart).all_in_the_bucket
    a_stream_dies_with_its_disk_and_an_epoch_goes_on(kubernetes, tmp_path, places, feed, pipeline="stateless")
