"""A pipeline whose executors are pods of a real API server, asked for as a service account with few rights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.servers import PostgresCluster, S3Server
from tests.adapters.started import started
from tests.spark.cluster.apart import a_stream_dies_with_its_disk_and_an_epoch_goes_on
from tests.spark.cluster.asked_of_pods import (
    a_stream_goes_on_where_spark_has_given_up,
    a_stream_is_exact_after_pods_were_lost,
    epochs_run_and_nothing_is_left,
    nothing_is_left,
)
from tests.spark.cluster.driver_process import Driver
from tests.spark.cluster.kubernetes_node import RealKubernetes, real_kubernetes
from tests.spark.cluster.split_tables import another_disk_is_refused, more_is_shown
from tests.spark.epoch.small_pipeline import Feed
from tests.spark.lake.deployment import Places

pytestmark = pytest.mark.platform


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[RealKubernetes]:
    """An API server without pods, for all tests of a module."""
    with started(real_kubernetes()) as running:
        yield running


@pytest.fixture(autouse=True)
def cleared(kubernetes: RealKubernetes) -> Iterator[None]:
    """What a driver that is killed leaves at the API server is not found by the next test."""
    yield
    kubernetes.clear()


@pytest.fixture
def pods_driver(kubernetes: RealKubernetes, tmp_path: Path) -> Iterator[Driver]:
    made = Driver(kubernetes, tmp_path / "driver.log")
    yield made
    made.kill()


def test_epochs_run_on_pods_and_all_that_spark_made_goes_with_the_session(
    kubernetes: RealKubernetes, pods_driver: Driver, feed: Feed, tmp_path: Path
) -> None:
    epochs_run_and_nothing_is_left(kubernetes, pods_driver, feed, tmp_path / "lab")
    assert not kubernetes.denied()


def test_a_path_that_is_a_disk_of_each_pods_own_is_refused(
    kubernetes: RealKubernetes, pods_driver: Driver, feed: Feed, tmp_path: Path
) -> None:
    another_disk_is_refused(kubernetes, pods_driver, feed, tmp_path)


def test_tables_of_a_stream_are_exact_after_pods_ran_out_of_memory_and_were_evicted(
    kubernetes: RealKubernetes, pods_driver: Driver, feed: Feed, tmp_path: Path
) -> None:
    a_stream_is_exact_after_pods_were_lost(kubernetes, pods_driver, feed, tmp_path / "lab")
    assert not kubernetes.denied()


def test_a_stream_begins_another_java_where_too_many_executors_have_failed(
    kubernetes: RealKubernetes, pods_driver: Driver, feed: Feed, tmp_path: Path
) -> None:
    a_stream_goes_on_where_spark_has_given_up(kubernetes, pods_driver, feed, tmp_path / "lab")


def test_executors_of_a_killed_driver_go_with_the_pod_that_it_ran_in(
    kubernetes: RealKubernetes, pods_driver: Driver, feed: Feed, tmp_path: Path
) -> None:
    kubernetes.create_driver("the-run")
    own = {"spark.kubernetes.driver.pod.name": "the-run"}
    pods_driver.begin(feed, tmp_path / "lab", pipeline="split", stream=True, conf=own)
    more_is_shown(kubernetes, pods_driver, feed, tmp_path / "lab", "at the start")
    pods_driver.kill()
    assert kubernetes.left()
    kubernetes.delete_pod("the-run")
    nothing_is_left(kubernetes)


def test_a_driver_without_rights_is_told_what_its_account_needs(
    kubernetes: RealKubernetes, pods_driver: Driver, feed: Feed, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    conf = {"spark.kubernetes.authenticate.oauthTokenFile": str(token)}
    forbidden = (
        "Kubernetes does not let the driver do what Spark does: configmaps is forbidden: User "
        '"system:serviceaccount:pipelines:nobody" cannot create resource "configmaps"'
    )
    told = {
        "nonsense": "Kubernetes does not know who asks for ",
        kubernetes.new_account("nobody"): forbidden,
    }
    for written, said in told.items():
        token.write_text(written)
        answer = pods_driver.run(feed, tmp_path / "lab", pipeline="split", conf=conf)
        assert answer["failed"] == "InvalidRequest", answer
        assert answer["said"].startswith(said)


def test_a_run_in_a_namespace_whose_quota_is_used_up_fails_as_one_that_may_be_repeated(
    kubernetes: RealKubernetes, pods_driver: Driver, feed: Feed, tmp_path: Path
) -> None:
    with kubernetes.no_room():
        answer = pods_driver.run(feed, tmp_path / "lab", pipeline="split")
    assert answer["failed"] == "Unavailable", answer
    assert "has refused pod after pod" in answer["said"]
    # Spark has ended the driver's Java: the same process begins another one
    again = pods_driver.run(feed, tmp_path / "lab", pipeline="split")
    assert again["said"].endswith("split/chk-1"), again


def test_pods_without_a_shared_volume_hand_rows_over_in_a_bucket(
    kubernetes: RealKubernetes,
    tmp_path: Path,
    feed: Feed,
    postgres_server: PostgresCluster,
    s3_apart: S3Server,
) -> None:
    places = Places.new(feed.folder, postgres_server, s3_apart).all_in_the_bucket
    a_stream_dies_with_its_disk_and_an_epoch_goes_on(kubernetes, tmp_path, places, feed, pipeline="stateless")
