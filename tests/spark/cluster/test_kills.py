"""A stream on a standalone cluster whose machines die one after the other, and one that joins with another disk."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.progress import Sampled, wait_until, work_of
from tests.spark.cluster.driver_process import Driver
from tests.spark.cluster.standalone import StandaloneCluster
from tests.spark.epoch.small_pipeline import Feed, read_lines


@pytest.fixture
def own_driver(cluster: StandaloneCluster) -> Iterator[Driver]:
    """A driver that may be killed."""
    started = Driver(cluster, cluster.folder / "own-driver.log")
    yield started
    started.kill()


class Shop:
    """A stream of orders, and what its table shows."""

    def __init__(self, cluster: StandaloneCluster, feed: Feed, folder: Path) -> None:
        self.cluster, self.feed, self.lab = cluster, feed, folder / "lab"
        self.tables = self.lab / "tables" / "shop"

    def begin(self, driver: Driver) -> None:
        driver.begin(self.feed, self.lab, stream=True, restarts=True)

    def shown(self) -> Counter[tuple[int, str]]:
        """Lines of the table, which a publish may be just changing."""
        with suppress(OSError):
            return read_lines(self.tables)
        return Counter()

    def more(self, driver: Driver, what: str) -> None:
        """Let orders come in, and wait until the table shows them."""
        self.feed.order(("ann", 2), ("bob", 3))
        self.feed.order(("ann", 4))

        def moves() -> object:
            running = [driver.process.pid, *self.cluster.pids]
            # os.walk, unlike rglob, passes over a folder that the stream removes meanwhile
            files = sum(len(names) for _, _, names in os.walk(self.lab))
            return ([work_of(pid) for pid in running], files)

        wait_until(
            lambda: self.shown() == self.feed.expected_lines(),
            f"the table shows all orders {what}",
            moves=Sampled(moves),
            check=driver.refuse_if_over,
            every=0.2,
        )


@pytest.mark.nightly
def test_tables_are_exact_after_worker_disk_master_and_driver_were_killed(
    cluster: StandaloneCluster, driver: Driver, own_driver: Driver, feed: Feed, tmp_path: Path
) -> None:
    shop = Shop(cluster, feed, tmp_path)
    shop.begin(own_driver)
    shop.more(own_driver, "at the start")

    cluster.kill_worker("one")
    shutil.rmtree(cluster.folder / "one", ignore_errors=True)  # with its disk
    shop.more(own_driver, "with one worker left")
    cluster.start_worker("one")
    shop.more(own_driver, "with a worker that came back")

    assert cluster.master is not None
    cluster.master.kill()
    shop.more(own_driver, "without a master")
    cluster.start_master()

    feed.order(("ann", 9), ("bob", 9))
    own_driver.kill()
    shop.begin(driver)
    shop.more(driver, "with another driver")
    driver.interrupt()
    assert "failed" not in driver.answer()
    feed.check(shop.tables)


@pytest.mark.nightly
def test_a_worker_that_joins_late_with_another_disk_costs_no_rows(
    cluster: StandaloneCluster, driver: Driver, feed: Feed, tmp_path: Path
) -> None:
    shop = Shop(cluster, feed, tmp_path)
    shop.begin(driver)
    shop.more(driver, "at the start")
    cluster.start_worker("late", masked=(tmp_path,))
    while not driver.has_answered:
        with suppress(AssertionError):
            shop.more(driver, "or the run gives up")
    answer = driver.answer()
    assert answer["failed"] == "InvalidRequest", answer
    assert "does not see what the driver has written to work_dir" in answer["said"]

    cluster.kill_worker("late")
    assert driver.run(feed, shop.lab)["said"]
    feed.check(shop.tables)
