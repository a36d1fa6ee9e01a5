"""What the platforms' tests share: orders, a cluster whose machines have disks of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.started import started
from tests.spark.cluster.standalone import StandaloneCluster, standalone_cluster
from tests.spark.epoch.small_pipeline import Feed


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    """Orders of two customers, where all machines see them."""
    made = Feed(tmp_path / "feed")
    made.order(("ann", 5), ("bob", 7))
    return made


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandaloneCluster]:
    """A master and two workers, for all tests of a module."""
    with started(standalone_cluster("one", "two")) as running:
        yield running
