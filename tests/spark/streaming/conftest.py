"""A lab for streaming runs; the session is shared by the whole test process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.streaming.lab import StreamLab, stream_lab


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Iterator[StreamLab]:
    with stream_lab(tmp_path / "lab", spark) as made:
        yield made
