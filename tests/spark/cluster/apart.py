"""Executors that share no disk: a stream hands rows and state over in a bucket and is killed, an epoch goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.progress import Sampled, wait_until
from tests.spark.cluster.driver_process import Cluster, Driver
from tests.spark.epoch.small_pipeline import Feed
from tests.spark.lake.deployment import Places, truth


@contextmanager
def driver_apart(cluster: Cluster, log: Path, name: str) -> Iterator[tuple[Driver, Path]]:
    """A driver, and its only disk, which no executor sees."""
    disk = cluster.private / name
    disk.mkdir()
    driver = Driver(cluster, log, temporary=disk)
    try:
        yield driver, disk
    finally:
        driver.kill()


def a_stream_dies_with_its_disk_and_an_epoch_goes_on(
    cluster: Cluster, folder: Path, places: Places, feed: Feed, *, pipeline: str = "stateful"
) -> None:
    """``pipeline``: with state, which Spark's own connector to the bucket writes, or ``stateless``."""
    has_state = pipeline == "stateful"
    if has_state:
        skip_without_connector(places)
    how = {"pipeline": pipeline, "places": places.text, "conf": places.connector if has_state else {}}

    def shown() -> dict[str, Any]:
        found = {"lines": places.lines(), "bills": places.bills()}
        return {**found, "totals": places.totals()} if has_state else found

    def expected() -> dict[str, Any]:
        return {name: rows for name, rows in truth(feed).items() if has_state or name != "totals"}

    with driver_apart(cluster, folder / "driver.log", f"{folder.name}-first") as (driver, disk):
        driver.begin(feed, disk, stream=True, **how)

        def published(what: str) -> None:
            wait_until(
                lambda: places.shows(expected()),
                what,
                moves=Sampled(shown, every=10.0),
                check=driver.refuse_if_over,
                every=0.5,
            )

        published("rows are published")
        assert any("/log/data/" in key for key in places.keys("work/orders"))
        assert has_state is any("/query/state/" in key for key in places.keys("work/orders"))
        for number in range(4):
            feed.order(("ann", number), ("eve", 1))
        published("more is published")
        feed.order(("bob", 1))

    with driver_apart(cluster, folder / "other.log", f"{folder.name}-second") as (driver, disk):
        answer = driver.run(feed, disk, **how)
    assert "failed" not in answer, answer
    assert answer["probed"] >= 1
    assert shown() == expected()


def state_is_refused_without_connector(cluster: Cluster, folder: Path, places: Places, feed: Feed) -> None:
    """Spark has no word for the bucket's scheme: the run says so in a sentence, and nothing is published."""
    with driver_apart(cluster, folder / "driver.log", f"{folder.name}-alone") as (driver, disk):
        answer = driver.run(feed, disk, pipeline="stateful", places=places.text)
    assert answer["failed"] == "InvalidRequest", answer
    assert "stage 'totals' keeps state, which executors write through Spark's own connector" in answer["said"]
    assert not places.totals()


def skip_without_connector(places: Places) -> None:
    """Skip the test where Spark's own connector to the bucket is not installed."""
    if not places.connector["spark.jars"]:
        pytest.skip(
            f"Spark's connector is not installed: scripts/bootstrap python spark_{places.kind}, which needs Maven"
        )
