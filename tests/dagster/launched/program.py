"""The program that tests launch: runs the small shop for the Dagster run that launched it, or does something else."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dagster_ckpt import CheckpointCoordinatorResource, SparkSessionResource, run_launched
from tests.spark.epoch.small_pipeline import shop

SESSION = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
}


def coordinator(lab: Path) -> CheckpointCoordinatorResource:
    """Return where checkpoints live, for the program and for the code location."""
    return CheckpointCoordinatorResource(
        base_dir=str(lab), table_dir=str(lab / "tables"), interval=0.5, snapshot_retry_delay=0.1
    )


def main(feed: Path, lab: Path, engine: str) -> None:
    """Run what the launching run wants; tell the test which process that is."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)  # it differs from test to test, and so would the engine
    lab.mkdir(parents=True, exist_ok=True)
    (lab / "pid").write_text(str(os.getpid()))
    run_launched(
        shop(feed),
        coordinator=coordinator(lab),
        spark=SparkSessionResource(master="local[2,3]", warm_engine=engine, conf=SESSION),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
