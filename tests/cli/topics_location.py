"""A code location whose pipeline ``sales`` reads a topic; nothing of it is ever run."""

import os
import time
from typing import Any

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    build_pipeline_definitions,
    spark_sink,
    spark_source,
)
from dagster_ckpt.core.restore.horizon import DAY
from dagster_ckpt.testing import MemoryTopics
from tests.lab.pipelines import wired

topics = MemoryTopics()
topics.create("orders", 2, retention=7 * DAY)
topics.append("orders", 0, 12, at=time.time() - 5 * DAY)
topics.append("orders", 1, 9, at=time.time() - 1 * DAY)
topics.expire("orders", 0, 3)


@spark_source(reads=topics)
def orders(spark: Any) -> Any:
    """Declared only."""
    raise NotImplementedError


@spark_sink
def totals(orders: Any) -> Any:
    """Declared only."""
    raise NotImplementedError


sales = wired("sales", orders, totals)


defs = build_pipeline_definitions(
    sales, coordinator=CheckpointCoordinatorResource(base_dir=os.environ["TOPICS_BASE"])
)
