"""A streaming run in a process of its own, as Dagster has it: ``python -m tests.spark.streaming.kill_child <dir>``."""

from __future__ import annotations

import sys
from pathlib import Path

import dagster as dg
from dagster._utils.interrupts import setup_interrupt_handlers

from dagster_ckpt import CheckpointCoordinatorResource, SparkSessionResource, build_pipeline_definitions
from tests.lab.child import SPARK
from tests.spark.streaming.pipelines import diamond


def coordinator(folder: Path) -> CheckpointCoordinatorResource:
    return CheckpointCoordinatorResource(
        base_dir=str(folder), table_dir=str(folder / "tables"), interval=1.0, tolerable_failed_checkpoints=100
    )


def definitions() -> dg.Definitions:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    return build_pipeline_definitions(
        diamond(folder / "numbers"),
        coordinator=coordinator(folder / "lab"),
        spark=SparkSessionResource(master="local[2,3]", conf=SPARK),
    )


def streaming_job() -> dg.JobDefinition:
    return definitions().resolve_job_def("diamond_streaming")


def main() -> int:
    setup_interrupt_handlers()
    with (
        dg.DagsterInstance.from_config(f"{sys.argv[1]}/home") as instance,
        dg.execute_job(dg.reconstructable(streaming_job), instance=instance, raise_on_error=False) as result,
    ):
        return 0 if result.success else 1


if __name__ == "__main__":
    sys.exit(main())
