"""One epoch run in a process of its own, to be killed.

``python -m tests.spark.epoch.kill_child FOLDER [STORAGE] [ENGINE]``
"""

from __future__ import annotations

import sys
from pathlib import Path

import dagster as dg

from dagster_ckpt import CheckpointCoordinatorResource, SparkSessionResource, build_pipeline_definitions
from dagster_ckpt.spark.snapshot import take
from tests.spark.epoch.small_pipeline import shop


def main(folder: Path, checkpoint_storage: str = "filesystem", warm_engine: str = "") -> int:
    take.INLINE_THRESHOLD = 0
    pipeline = shop(folder / "feed")
    definitions = build_pipeline_definitions(
        pipeline,
        coordinator=CheckpointCoordinatorResource(
            base_dir=str(folder / "lab"),
            table_dir=str(folder / "lab" / "tables"),
            checkpoint_storage=checkpoint_storage,
            concurrent_runs="take_over",  # of the run that was killed before, whose lease is not over
        ),
        spark=SparkSessionResource(
            master="local[2,3]",
            warm_engine=warm_engine,
            conf={
                "spark.driver.memory": "1g",
                "spark.ui.enabled": "false",
                "spark.log.level": "OFF",
                "spark.sql.shuffle.partitions": "2",
            },
        ),
    )
    (folder / "dagster").mkdir(exist_ok=True)
    with dg.DagsterInstance.local_temp(str(folder / "dagster")) as instance:
        result = definitions.resolve_job_def("shop").execute_in_process(
            instance=instance, raise_on_error=False
        )
    return 0 if result.success else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
