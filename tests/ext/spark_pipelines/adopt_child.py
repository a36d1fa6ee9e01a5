"""An adoption of a project in a process of its own, ended at a call: ``-m tests.ext.spark_pipelines.adopt_child``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from dagster_ckpt import CheckpointCoordinatorResource, adopt_spark_project
from dagster_ckpt.ext.delta.sink import DeltaSink
from dagster_ckpt.operations.snapshots import adopt
from dagster_ckpt.spark.session import build_session
from tests.ext.spark_pipelines.ended import end_at
from tests.spark_session import BRIEF_JVM

CALLS: dict[str, tuple[Any, str]] = {
    "rows of a table": (DeltaSink, "flush"),
    "files of a stage": (adopt, "upload_stage"),
    "registration": (adopt, "register_or_remove"),
}


def main(root: Path, call: str, number: int) -> None:
    end_at(*CALLS[call], number)
    conf = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.driver.memory": "1g"}
    adopt_spark_project(
        root,
        coordinator=CheckpointCoordinatorResource(base_dir=str(root / "lab"), table_dir=str(root / "tables")),
        spark=build_session("adopt", master="local[2,3]", conf=conf),
        checkpoints=str(root / "storage"),
    )


if __name__ == "__main__":
    os.environ.setdefault("SPARK_SUBMIT_OPTS", BRIEF_JVM)
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
