"""One epoch of a project in a process of its own, ended at a call: ``-m tests.ext.spark_pipelines.kill_child``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    SparkSessionResource,
    pipeline_from_spark_project,
    run_epoch,
)
from dagster_ckpt.ext.delta.lake import Outside
from dagster_ckpt.ext.spark_pipelines import published
from dagster_ckpt.spark.attempt.sinks import PipelineSinks
from tests.ext.spark_pipelines.ended import end_at
from tests.spark_session import BRIEF_JVM

CALLS: dict[str, tuple[Any, str]] = {
    "before computing": (PipelineSinks, "follow"),
    "before noting": (published, "replace_whole"),
    "before a commit": (Outside, "write"),
}


def main(root: Path, call: str, number: int) -> None:
    end_at(*CALLS[call], number)
    conf = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.driver.memory": "1g"}
    run_epoch(
        pipeline_from_spark_project(root),
        coordinator=CheckpointCoordinatorResource(
            base_dir=str(root / "lab"), table_dir=str(root / "tables"), concurrent_runs="take_over"
        ),
        spark=SparkSessionResource(master="local[2,3]", conf=conf),
    )


if __name__ == "__main__":
    os.environ.setdefault("SPARK_SUBMIT_OPTS", BRIEF_JVM)
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
