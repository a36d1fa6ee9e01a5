"""A pipeline on YARN, in client mode: bare paths mean HDFS to Spark, and a folder that all nodes mount to us."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.started import started
from tests.progress import Sampled, wait_until, work_of
from tests.spark.cluster.driver_process import Driver
from tests.spark.cluster.split_tables import shown, truth
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
    elsewhere = {"work_dir": str(yarn.private / tmp_path.name)}
    answer = driver.run(feed, tmp_path / "lab", pipeline="split", coordinator=elsewhere)
    assert answer["failed"] == "InvalidRequest", answer
    assert "does not see what the driver has written to work_dir (" in answer["said"]


def test_tables_of_a_stream_are_exact_after_both_nodes_were_killed_in_turn(
    yarn: YarnCluster, driver: Driver, feed: Feed, tmp_path: Path
) -> None:
    lab = tmp_path / "lab"
    driver.begin(feed, lab, pipeline="split", stream=True, restarts=True, patience=20.0)

    def more(what: str) -> None:
        feed.order(("ann", 2), ("bob", 3))
        feed.order(("ann", 4))
        wait_until(
            lambda: shown(lab) == truth(feed),
            f"the tables show all orders {what}",
            moves=Sampled(lambda: [work_of(pid) for pid in (driver.process.pid, *yarn.pids)]),
            check=driver.refuse_if_over,
            every=0.2,
        )

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
