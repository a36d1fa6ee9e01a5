"""What executors in pods are asked, whoever serves the API that Spark asks for them."""

from __future__ import annotations

from pathlib import Path

from tests.progress import Sampled, wait_until
from tests.spark.cluster.driver_process import Driver
from tests.spark.cluster.pods import Pods
from tests.spark.cluster.split_tables import more_is_shown, shown, truth
from tests.spark.epoch.small_pipeline import Feed


def epochs_run_and_nothing_is_left(cluster: Pods, driver: Driver, feed: Feed, lab: Path) -> None:
    """Run two epochs: pods, and whatever else Spark made, go with the session."""
    first = driver.run(feed, lab, pipeline="split")
    assert first["said"].endswith("split/chk-1"), first
    assert first["probed"] >= 1
    assert shown(lab) == truth(feed)
    nothing_is_left(cluster)

    feed.order(("ann", 3), ("eve", 4))
    second = driver.run(feed, lab, pipeline="split")
    assert second["said"].endswith("split/chk-2"), second
    assert shown(lab) == truth(feed)
    nothing_is_left(cluster)


def nothing_is_left(cluster: Pods) -> None:
    """Wait until the last pod has ended; a kubelet gives it time for that."""
    wait_until(
        lambda: not cluster.running() and not cluster.left(),
        "the pods are gone",
        moves=Sampled(lambda: (cluster.running(), cluster.left())),
        every=0.1,
    )


def a_stream_goes_on_where_spark_has_given_up(cluster: Pods, driver: Driver, feed: Feed, lab: Path) -> None:
    """Lose more executors than Spark allows, upon which it ends the driver's Java."""
    few = {"spark.executor.maxNumFailures": "1"}
    driver.begin(feed, lab, pipeline="split", stream=True, restarts=True, patience=20.0, conf=few)
    more_is_shown(cluster, driver, feed, lab, "at the start")
    for name in cluster.running():
        cluster.run_out_of_memory(name)
    more_is_shown(cluster, driver, feed, lab, "with another Java")
    driver.interrupt()
    answer = driver.answer()
    assert "failed" not in answer, answer
    assert shown(lab) == truth(feed)


def a_stream_is_exact_after_pods_were_lost(cluster: Pods, driver: Driver, feed: Feed, lab: Path) -> None:
    """Take one pod of a stream after the other, then all at once."""
    driver.begin(feed, lab, pipeline="split", stream=True, restarts=True, patience=20.0)

    def more(when: str) -> None:
        more_is_shown(cluster, driver, feed, lab, when)

    more("at the start")
    cluster.run_out_of_memory(cluster.running()[0])
    more("with a pod out of memory")
    cluster.evict(cluster.running()[0])
    more("with a pod evicted")
    for name in cluster.running():
        cluster.evict(name)
    more("with all pods evicted at once")
    feed.order(("eve", 9))
    more("at the end")
    assert len(cluster.started) >= 4
    driver.interrupt()
    answer = driver.answer()
    assert "failed" not in answer, answer
    assert shown(lab) == truth(feed)
