"""Machines that are lost with their disks: another one goes on from PostgreSQL and S3, and the tables are exact."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dagster_ckpt import run_epoch, run_stream
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.ports import SystemClock
from dagster_ckpt.runtime.mailbox import Posted, post
from tests.adapters.servers import PostgresCluster, S3Server
from tests.progress import Sampled, join, wait_until
from tests.removal import remove_tree
from tests.spark.epoch.small_pipeline import Feed
from tests.spark.lake.deployment import NAME, Places, truth
from tests.spark.lake.machines import a_machine_dies


@pytest.fixture
def places(feed: Feed, postgres_server: PostgresCluster, s3_apart: S3Server) -> Places:
    return Places.new(feed.folder, postgres_server, s3_apart)


class Stream:
    """A stream in a thread of this process, on a machine of its own."""

    def __init__(self, places: Places, machine: Path, spark: SparkSession) -> None:
        self._places, self._machine = places, machine
        self._stopping = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=lambda: self._run(spark), daemon=True)

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        join(self._thread, "the stream ends")
        assert not self._failed, self._failed

    def _run(self, spark: SparkSession) -> None:
        try:
            run_stream(
                self._places.pipeline(),
                coordinator=self._places.coordinator(self._machine),
                spark=spark,
                settings={"interval": 0.5},
                stopping=self._stopping,
            )
        except BaseException as error:
            self._failed.append(error)

    def wait(self, holds: Callable[[], object], what: str) -> None:
        def check() -> None:
            assert self._thread.is_alive(), f"the stream has ended before {what}: {self._failed}"

        wait_until(holds, what, moves=Sampled(self._places.shown, every=10.0), check=check, every=0.5)

    def ask_for_savepoint(self, name: str) -> None:
        request = CheckpointRequest(kind=CheckpointKind.SAVEPOINT, name=name, request_id=name)
        with closing(self._places.coordinator(self._machine).store()) as store:
            assert isinstance(post(store, NAME, request, clock=SystemClock()), Posted)


@pytest.mark.nightly
def test_epochs_go_on_from_machine_to_machine(
    tmp_path: Path, feed: Feed, places: Places, spark: SparkSession
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    run_epoch(places.pipeline(), coordinator=places.coordinator(first), spark=spark)
    assert places.shown() == truth(feed)

    feed.order(("ann", 3))
    feed.order(("eve", 1))
    a_machine_dies(second, places, "epoch", "publish", 2)  # one table has the rows, two have not
    shown = places.shown()
    assert sum(shown[name] == truth(feed)[name] for name in shown) == 1

    # The first machine is back, with what it knew then.
    run_epoch(places.pipeline(), coordinator=places.coordinator(first), spark=spark)
    assert places.shown() == truth(feed)
    assert [path.name for path in (first / "work" / "orders").glob("attempt-*")] == ["attempt-3"]


@pytest.mark.nightly
def test_a_stream_goes_on_elsewhere_and_its_savepoint_on_a_third_machine(
    tmp_path: Path, feed: Feed, places: Places, spark: SparkSession
) -> None:
    for number in range(12):
        feed.order(("ann", number), ("eve", 1))
    a_machine_dies(tmp_path / "first", places, "stream", "publish", 5)

    second = tmp_path / "second"
    with Stream(places, second, spark) as stream:
        stream.wait(lambda: places.shows(truth(feed)), "all rows are published")
        stream.ask_for_savepoint("by hand")
        stream.wait(lambda: places.record(second).savepoints, "the savepoint is complete")
        feed.order(("bob", 4))
        stream.wait(lambda: places.shows(truth(feed)), "later rows are published")
    remove_tree(second)

    third = tmp_path / "third"
    [savepoint] = places.record(third).savepoints
    run_epoch(
        places.pipeline(),
        coordinator=places.coordinator(third),
        spark=spark,
        restore={"restore_from": savepoint.location.uri},
    )
    assert places.shown() == truth(feed)
