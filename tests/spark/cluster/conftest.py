"""One cluster for all tests of a module, and a driver in a process of its own: this one may have a session already."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.adapters.started import started
from tests.needs import needs
from tests.spark.cluster.driver_process import Driver
from tests.spark.cluster.standalone import StandaloneCluster, standalone_cluster
from tests.spark.epoch.small_pipeline import feed

__all__ = ["feed"]


@pytest.fixture(scope="module")
@needs("spark")
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
