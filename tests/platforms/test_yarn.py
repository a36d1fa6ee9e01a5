"""A pipeline on YARN, in client mode: bare paths mean HDFS to Spark, and a folder that all nodes mount to us."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.started import started
from tests.spark.cluster.driver_process import Driver
from tests.spark.cluster.split_tables import another_disk_is_refused, more_is_shown, shown, truth
from tests.spark.cluster.yarn import YarnCluster, yarn_cluster
from tests.spark.epoch.small_pipeline import Feed

pytestmark = pytest.mark.platform


@pytest.fixture(scope="module")
def yarn() -> Iterator[YarnCluster]:
    """A ResourceManager, two nodes and an HDFS, for all tests of a module."""
    with started(yarn_cluster("one", "two")) as running:
        yield running


@pytest.fixture(scope="module")
def driver(yarn: YarnCluster) -> Iterator[Driver]:
    """A driver that starts one JVM for all tests of a module."""
    made = Driver(yarn, yarn.folder / "driver.log")
    yield made
    made.kill()


def test_an_epoch_leaves_nothing_of_ours_in_hdfs_and_the_next_goes_on_from_it(
    yarn: YarnCluster, driver: Driver, feed: Feed, tmp_path: Path
) -> None:
    lab = tmp_path / "lab"
    first = driver.run(feed, lab, pipeline="split")
    assert first["said"].endswith("split/chk-1"), first
    assert first["probed"] >= 1
    assert shown(lab) == truth(feed)

    feed.order(("ann", 3), ("eve", 4))
    assert driver.run(feed, lab, pipeline="split")["said"].endswith("split/chk-2")
    assert shown(lab) == truth(feed)
    in_hdfs = yarn.hdfs_paths()
    assert any("/.sparkStaging" in path for path in in_hdfs), "HDFS is what Spark writes bare paths to"
    assert not [path for path in in_hdfs if str(tmp_path) in path or "split" in path]


def test_a_path_that_is_another_disk_on_the_nodes_is_refused(
    yarn: YarnCluster, driver: Driver, feed: Feed, tmp_path: Path
) -> None:
    another_disk_is_refused(yarn, driver, feed, tmp_path)


def test_tables_of_a_stream_are_exact_after_both_nodes_were_killed_in_turn(
    yarn: YarnCluster, driver: Driver, feed: Feed, tmp_path: Path
) -> None:
    lab = tmp_path / "lab"
    driver.begin(feed, lab, pipeline="split", stream=True, restarts=True, patience=20.0)

    def more(when: str) -> None:
        more_is_shown(yarn, driver, feed, lab, when)

    more("at the start")
    for name in ("one", "two"):  # the application's master is on one of them
        yarn.kill_worker(name)
        more(f"without node {name}")
        yarn.start_worker(name)
        yarn.wait_for_workers()
    feed.order(("eve", 9))
    more("with both nodes back")
    driver.interrupt()
    assert "failed" not in driver.answer()
    assert shown(lab) == truth(feed)
