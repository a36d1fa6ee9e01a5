"""A cluster whose machines share no disk: rows go from executor to executor through S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.servers import PostgresCluster, S3Server, spark_s3_jars
from tests.progress import wait_until
from tests.spark.cluster.driver_process import Driver
from tests.spark.cluster.standalone import StandaloneCluster
from tests.spark.epoch.small_pipeline import Feed
from tests.spark.lake.deployment import Places, truth

pytestmark = [pytest.mark.s3, pytest.mark.postgres]


@pytest.fixture
def places(feed: Feed, postgres_server: PostgresCluster, s3_apart: S3Server) -> Places:
    return Places.new(feed.folder, postgres_server, s3_apart).all_in_the_bucket


@pytest.fixture
def alone(cluster: StandaloneCluster, tmp_path: Path) -> Iterator[Driver]:
    """A driver whose only disk no executor sees."""
    disk = cluster.private / tmp_path.name
    disk.mkdir()
    driver = Driver(cluster, tmp_path / "driver.log", temporary=disk)
    yield driver
    driver.kill()


@pytest.mark.parametrize("kind", ["stateless", "stateful"])
def test_a_stream_is_killed_with_its_disk_and_an_epoch_goes_on_elsewhere(
    cluster: StandaloneCluster, alone: Driver, feed: Feed, *, places: Places, tmp_path: Path, kind: str
) -> None:
    if kind == "stateful" and not spark_s3_jars():
        pytest.skip("Spark's connector to S3 is not installed: scripts/bootstrap spark_s3, which needs Maven")
    how = {"pipeline": kind, "places": places.text, "conf": places.connector if kind == "stateful" else {}}

    def shown() -> dict[str, Any]:
        found = {"lines": places.lines(), "bills": places.bills()}
        return {**found, "totals": places.totals()} if kind == "stateful" else found

    def expected() -> dict[str, Any]:
        return {name: rows for name, rows in truth(feed).items() if name in shown()}

    lab = cluster.private / "lab"
    alone.begin(feed, lab, stream=True, **how)
    wait_until(
        lambda: shown() == expected(),
        "rows are published",
        moves=shown,
        check=alone.refuse_if_over,
        every=0.5,
    )
    assert any("/log/data/" in key for key in places.keys("work/orders"))
    assert (kind == "stateful") is any("/query/state/" in key for key in places.keys("work/orders"))
    for number in range(4):
        feed.order(("ann", number), ("eve", 1))
    wait_until(
        lambda: shown() == expected(), "more is published", moves=shown, check=alone.refuse_if_over, every=0.5
    )
    feed.order(("bob", 1))
    alone.kill()

    disk = cluster.private / f"another-{kind}"
    disk.mkdir()
    other = Driver(cluster, tmp_path / "other.log", temporary=disk)
    try:
        answer = other.run(feed, disk, **how)
    finally:
        other.kill()
    assert "failed" not in answer, answer
    assert answer["probed"] >= 1
    assert shown() == expected()


def test_state_is_refused_where_spark_has_no_connector(
    cluster: StandaloneCluster, alone: Driver, feed: Feed, places: Places
) -> None:
    answer = alone.run(feed, cluster.private / "lab", pipeline="stateful", places=places.text)
    assert answer["failed"] == "InvalidRequest", answer
    assert "stage 'totals' keeps state, which executors write through Spark's own connector" in answer["said"]
    assert not places.totals()
