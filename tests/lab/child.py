"""An epoch of a pipeline in a process of its own, to be killed: ``python -m tests.lab.child FOLDER MADE OPTIONS``.

``MADE`` names a function (``module:name``) that makes the pipeline of the folder; ``OPTIONS`` are settings of the
coordinator as JSON, with ``warm_engine`` beside them.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_ckpt import CheckpointCoordinatorResource, SparkSessionResource, build_pipeline_definitions
from dagster_ckpt.spark.snapshot import take
from tests.progress import Sampled, wait_until, work_of
from tests.root import ROOT

SPARK = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
}
"""Of sessions beside the shared one."""


def begin(
    log: Path, module: str, *arguments: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a module of the tests as a program, in a process group of its own; ``log`` gets what it says."""
    own = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    with log.open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=cwd,
            env=own,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )


def begin_epoch(folder: Path, made: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start an epoch in the folder's lab."""
    return begin(folder / "child.log", __name__, str(folder), made, json.dumps(options))


def kill_epoch_when(folder: Path, made: str, reached: Callable[[], bool], what: str, **options: Any) -> None:
    """Start an epoch and kill it, with its JVM, at a point of its work."""
    child = begin_epoch(folder, made, **options)

    def check() -> None:
        said = (folder / "child.log").read_text()[-3000:]
        assert child.poll() is None, f"ended before {what!r}: {said}"

    moves = Sampled(lambda: work_of(child.pid))
    try:
        wait_until(reached, f"the run comes to {what!r}", moves=moves, check=check, every=0.002)
    finally:
        kill(child)


def kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a program with all that it has started, such as its JVM."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def main(folder: Path, made: str, options: dict[str, Any]) -> int:
    take.INLINE_THRESHOLD = 0
    module, _, name = made.partition(":")
    pipeline = getattr(importlib.import_module(module), name)(folder)
    spark = SparkSessionResource(master="local[2,3]", warm_engine=options.pop("warm_engine", ""), conf=SPARK)
    lab, instances = folder / "lab", folder / "dagster"
    coordinator = CheckpointCoordinatorResource(
        base_dir=str(lab),
        table_dir=str(lab / "tables"),
        concurrent_runs="take_over",  # of the run that was killed before, whose lease is not over
        **options,
    )
    job = build_pipeline_definitions(pipeline, coordinator=coordinator, spark=spark).resolve_job_def(
        pipeline.name
    )
    instances.mkdir(exist_ok=True)
    with dg.DagsterInstance.local_temp(str(instances)) as instance:
        return 0 if job.execute_in_process(instance=instance, raise_on_error=False).success else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])))
