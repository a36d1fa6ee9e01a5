"""One cluster for all tests of a module, and a driver in a process of its own: this one may have a session already."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.adapters.servers import ServerMissing
from tests.spark.cluster.driver_process import Driver
from tests.spark.cluster.standalone import StandaloneCluster, standalone_cluster
from tests.spark.epoch.small_pipeline import Feed

T = TypeVar("T")


@contextmanager
def started(cluster: AbstractContextManager[T]) -> Iterator[T]:
    """Start a cluster; where it cannot be had, skip the test, but not in CI."""
    try:
        with cluster as running:
            yield running
    except ServerMissing as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandaloneCluster]:
    """A master and two workers, for all tests of a module."""
    with started(standalone_cluster("one", "two")) as running:
        yield running


@pytest.fixture(scope="module")
def driver(cluster: StandaloneCluster) -> Iterator[Driver]:
    """A driver that starts one JVM for all tests of a module."""
    made = Driver(cluster, cluster.folder / "driver.log")
    yield made
    made.kill()


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    """Customers and orders where all machines see them."""
    made = Feed(tmp_path / "feed")
    made.customer("ann", "fr")
    made.customer("bob", "de")
    made.order(("ann", 5), ("bob", 7))
    return made
