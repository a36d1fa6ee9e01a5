"""One epoch run with a hook in a process of its own: ``python -m tests.spark.epoch.hook_child FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

import dagster as dg

from dagster_ckpt import CheckpointCoordinatorResource, SparkSessionResource, build_pipeline_definitions
from tests.spark.hooked import hooked
from tests.spark.streaming.kill_child import SPARK


def main(folder: Path) -> int:
    definitions = build_pipeline_definitions(
        hooked(folder),
        coordinator=CheckpointCoordinatorResource(
            base_dir=str(folder / "lab"),
            table_dir=str(folder / "lab" / "tables"),
            concurrent_runs="take_over",  # of the run that was killed before, whose lease is not over
        ),
        spark=SparkSessionResource(master="local[2,3]", conf=SPARK),
    )
    (folder / "dagster").mkdir(exist_ok=True)
    with dg.DagsterInstance.local_temp(str(folder / "dagster")) as instance:
        result = definitions.resolve_job_def("hooked").execute_in_process(
            instance=instance, raise_on_error=False
        )
    return 0 if result.success else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
