"""A cluster whose machines share no disk: rows go from executor to executor through S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.servers import PostgresCluster, S3Server
from tests.spark.cluster.apart import (
    a_stream_dies_with_its_disk_and_an_epoch_goes_on,
    state_is_refused_without_connector,
)
from tests.spark.cluster.standalone import StandaloneCluster
from tests.spark.epoch.small_pipeline import Feed
from tests.spark.lake.deployment import Places


@pytest.fixture
def places(feed: Feed, postgres_server: PostgresCluster, s3_apart: S3Server) -> Places:
    return Places.new(feed.folder, postgres_server, s3_apart).all_in_the_bucket


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["stateful", "stateless"])
def test_a_stream_is_killed_with_its_disk_and_an_epoch_goes_on_elsewhere(
    cluster: StandaloneCluster, tmp_path: Path, places: Places, feed: Feed, kind: str
) -> None:
    a_stream_dies_with_its_disk_and_an_epoch_goes_on(cluster, tmp_path, places, feed, pipeline=kind)


@pytest.mark.nightly
def test_state_is_refused_where_spark_has_no_connector(
    cluster: StandaloneCluster, tmp_path: Path, places: Places, feed: Feed
) -> None:
    state_is_refused_without_connector(cluster, tmp_path, places, feed)
