"""A code location with a pipeline and its fork, whose tables a test has written: it needs no Spark."""

import os
from pathlib import Path

from dagster_ckpt import CheckpointCoordinatorResource, build_pipeline_definitions
from tests.operations.readers.test_blue_green import GREEN, sales

folder = Path(os.environ["SALES"])
blue = sales()
green = blue.fork(GREEN, table_dir=str(folder / "green"))
defs = build_pipeline_definitions(
    blue,
    green,
    coordinator=CheckpointCoordinatorResource(base_dir=os.environ["BASE"], table_dir=str(folder / "tables")),
)
