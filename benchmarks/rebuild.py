"""One of five stages is rebuilt from its history while the pipeline runs epochs: what the others lose, and the rows.

    python -m benchmarks.rebuild [rows]

The pipeline runs epochs in a process of its own, as it is deployed, before and while the stage is rebuilt in another.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    CheckpointedPipeline,
    SparkSessionResource,
    checkpointed_pipeline,
    spark_sink,
    spark_source,
)
from dagster_ckpt.ext.upgrade_plan.rebuild import Rebuilding
from dagster_ckpt.operations.readers.load_table import load_table
from dagster_ckpt.programs import run_epoch

STAGES, KEYS, PER_FILE, PER_EPOCH = 5, 10_000, 100_000, 100_000
EPOCHS_ALONE = 8


def five(folder: Path, figure: str = "sum") -> CheckpointedPipeline:
    """Five sinks, each with a source of its own; the last one's figure is another one in the changed code."""
    from pyspark.sql import functions as f

    def of_number(number: int) -> tuple[Any, Any]:
        @spark_source(uid=f"read_{number}")
        def read(spark: Any) -> Any:
            return spark.readStream.schema("k LONG, v LONG").parquet(str(folder))

        @spark_sink(uid=f"total_{number}", key=["k"], output_mode="update")
        def total(read: Any) -> Any:
            chosen = getattr(f, figure if number == STAGES - 1 else "sum")
            return read.groupBy("k").agg(chosen("v").alias("v"))

        return read, total

    @checkpointed_pipeline(name="five")
    def pipeline() -> None:
        for number in range(STAGES):
            read, total = of_number(number)
            total(read())

    return pipeline  # type: ignore[no-any-return]


def write(folder: Path, first: int, rows: int) -> None:
    """Add rows; each file is there at once."""
    folder.mkdir(exist_ok=True)
    for start in range(first, first + rows, PER_FILE):
        numbers = range(start, min(start + PER_FILE, first + rows))
        table = pa.table({"k": [n % KEYS for n in numbers], "v": [n % 1000 for n in numbers]})
        hidden = folder / f".{start}"
        pq.write_table(table, hidden)
        hidden.rename(folder / f"{start:012d}.parquet")


def places(base: Path) -> CheckpointCoordinatorResource:
    """Return where everything of the pipeline is."""
    return CheckpointCoordinatorResource(base_dir=str(base), table_dir=str(base / "tables"))


SESSION = SparkSessionResource(master="local[1,3]", conf={"spark.sql.shuffle.partitions": "2"})


def deployed(base: Path, rows: int) -> None:
    """Run epochs of the old code until told to stop; say how long each took."""
    folder, coordinator = base / "rows", places(base)
    with SESSION.process_config_and_initialize_cm() as session:
        run_epoch(five(folder), coordinator=coordinator, spark=session.session)
        first = rows
        while not (base / "stop").exists():
            write(folder, first, PER_EPOCH)
            first += PER_EPOCH
            began = time.perf_counter()
            run_epoch(five(folder), coordinator=coordinator, spark=session.session)
            with (base / "epochs").open("a") as said:
                said.write(f"{time.perf_counter() - began}\n")


def epochs_of(base: Path) -> list[float]:
    """Return how long the epochs took so far."""
    file = base / "epochs"
    return [float(line) for line in file.read_text().split()] if file.exists() else []


def rebuilt(base: Path, running: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Rebuild the last stage beside the process that runs the pipeline."""
    alone = epochs_of(base)[2:]
    os.nice(19)  # as `dagster-ckpt upgrade` does
    with SESSION.process_config_and_initialize_cm() as session:
        rebuilding = Rebuilding.of(
            five(base / "rows", "max"),
            f"total_{STAGES - 1}",
            coordinator=places(base),
            spark=session.session,
        )
        began, before = time.perf_counter(), len(epochs_of(base))
        rebuilding.catch_up()
        caught_up = time.perf_counter() - began
        meanwhile = epochs_of(base)[before:]
        (base / "stop").touch()
        running.wait()
        began = time.perf_counter()
        rebuilding.carry_out()
        taken_over = time.perf_counter() - began
    slow, fast = statistics.median(meanwhile), statistics.median(alone)
    return {
        "epochs alone": len(alone),
        "median alone, s": round(fast, 3),
        "epochs meanwhile": len(meanwhile),
        "median meanwhile, s": round(slow, 3),
        "throughput of the others": round(fast / slow, 3),
        "caught up, s": round(caught_up, 1),
        "taken over, with the last epochs, s": round(taken_over, 1),
    }


def is_true(base: Path) -> bool:
    """Tell whether every table holds what the rows say."""
    everything = pq.read_table(base / "rows").group_by("k")
    for number in range(STAGES):
        figure = "max" if number == STAGES - 1 else "sum"
        wanted = everything.aggregate([("v", figure)]).rename_columns(["k", "v"]).sort_by("k")
        found = load_table(five(base / "rows"), f"total_{number}", coordinator=places(base)).to_arrow()
        if found.select(["k", "v"]).sort_by("k").to_pylist() != wanted.select(["k", "v"]).to_pylist():
            return False
    return True


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        write(base / "rows", 0, rows)
        command = [sys.executable, "-m", "benchmarks.rebuild", "--deployed", str(base), str(rows)]
        with (base / "log").open("wb") as log:
            running = subprocess.Popen(command, stdout=log, stderr=log)
        while len(epochs_of(base)) < EPOCHS_ALONE:
            assert running.poll() is None, (base / "log").read_text()[-2000:]
            time.sleep(0.2)
        found = rebuilt(base, running)
        print(json.dumps({"rows": rows, **found, "as from scratch": is_true(base)}, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--deployed"]:
        deployed(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
