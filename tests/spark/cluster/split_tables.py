"""Pipeline ``split`` on a cluster: what its tables show and are to show, and what every kind of cluster is asked."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.progress import Sampled, wait_until, work_of
from tests.spark.cluster.driver_process import Cluster, Driver
from tests.spark.epoch.small_pipeline import Feed
from tests.tables import rows_in

Rows = tuple[Counter[tuple[int, str]], Counter[tuple[str, int, int]]]


def truth(feed: Feed) -> Rows:
    """Return what both tables hold once everything is published."""
    names = {order["customer"] for order in feed.orders}
    amounts = {who: [o["amount"] for o in feed.orders if o["customer"] == who] for who in names}
    return (
        Counter((order["number"], order["customer"]) for order in feed.orders),
        Counter((who, len(given), sum(given)) for who, given in amounts.items()),
    )


def shown(lab: Path) -> Rows:
    """Return what both tables show."""
    tables = lab / "tables" / "split"
    return (
        Counter((row["number"], row["customer"]) for row in rows_in(tables / "lines")),
        Counter((row["customer"], row["orders"], row["amount"]) for row in rows_in(tables / "totals")),
    )


def more_is_shown(cluster: Cluster, driver: Driver, feed: Feed, lab: Path, when: str) -> None:
    """Order more of a stream that runs, and wait until both tables show all of it."""
    feed.order(("ann", 2), ("bob", 3))
    feed.order(("ann", 4))
    wait_until(
        lambda: shown(lab) == truth(feed),
        f"the tables show all orders {when}",
        moves=Sampled(lambda: [work_of(pid) for pid in (driver.process.pid, *cluster.pids)]),
        check=driver.refuse_if_over,
        every=0.2,
    )


def another_disk_is_refused(cluster: Cluster, driver: Driver, feed: Feed, folder: Path) -> None:
    """Run with a working directory that is another disk on each machine."""
    elsewhere = {"work_dir": str(cluster.private / folder.name)}
    answer = driver.run(feed, folder / "lab", pipeline="split", coordinator=elsewhere)
    assert answer["failed"] == "InvalidRequest", answer
    assert "does not see what the driver has written to work_dir (" in answer["said"]
