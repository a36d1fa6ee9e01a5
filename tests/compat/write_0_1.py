"""Write what version 0.1 (commit 740c2e8) left on a disk: run with that version, ``python write_0_1.py``.

``git worktree add ../before 740c2e8`` and, with ``PYTHONPATH=../before``, a Python in which this project is installed.
Only public names of that version are used. It writes ``written_by_0_1``.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    SparkSessionResource,
    build_pipeline_definitions,
)

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from kept_pipeline import FILES, PLACE, PROVIDERS, put, shop  # noqa: E402  # both versions import it from this folder

SPARK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.sql.streaming.stateStore.maintenanceInterval": "500ms",
}


def run(folder: Path, job: str = "shop", provider: str = "rocksdb", **settings: Any) -> None:
    """Run one job of that version to its end."""
    definitions = build_pipeline_definitions(
        shop(),
        coordinator=CheckpointCoordinatorResource(
            base_dir=str(folder), table_dir=str(folder / "tables"), **settings
        ),
        spark=SparkSessionResource(master="local[2,3]", conf={**SPARK, **PROVIDERS[provider]}),
    )
    with dg.DagsterInstance.ephemeral() as instance:
        result = definitions.resolve_job_def(job).execute_in_process(instance=instance, raise_on_error=True)
        assert result.success


def write(folder: Path, provider: str) -> None:
    """Two checkpoints, a savepoint, a third checkpoint."""
    shutil.rmtree(PLACE, ignore_errors=True)
    for number in range(FILES):
        put(number)
        run(folder, provider=provider)
        if number == 1:
            run(folder, "shop_savepoint", provider=provider)


if __name__ == "__main__":
    for name in PROVIDERS:
        write(PLACE / name, name)
        with tarfile.open(HERE / "written_by_0_1" / f"{name}.tgz", "w:gz") as kept:
            kept.add(PLACE / name, name)
