"""What machines with nothing but a bucket and PostgreSQL read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.epoch.small_pipeline import Feed


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    """Orders of two customers."""
    made = Feed(tmp_path / "feed")
    made.order(("ann", 5), ("bob", 7))
    return made
