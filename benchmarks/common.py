"""What the benchmarks share: a keyed count over files, checkpoints of it, and how results are shown."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.adapters.fsspec_storage import Durability, FsspecCheckpointStorage
from dagster_ckpt.core.ids import CheckpointId, PipelineId, StageUid
from dagster_ckpt.core.model import FileEntry
from dagster_ckpt.spark.session import LOCAL_CHECKSUMS, build_session, follow_local_checksums
from dagster_ckpt.spark.snapshot.capture import (
    CapturePlan,
    pin_files,
    plan_capture,
    release_pins,
    uploaded_already,
)
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot
from dagster_ckpt.spark.snapshot.upload import StageUpload, UploadMode, upload_stage
from tests.snapshots import complete, folder_of, snapshot_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PIPELINE = PipelineId("bench")
UID = StageUid("totals")
_HOW_FILES_ARE_WRITTEN = (
    LOCAL_CHECKSUMS,
    "spark.sql.streaming.checkpoint.fileChecksum.enabled",
    "spark.sql.streaming.checkpointFileManagerClass",
)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder of this run, removed at the end. TMPDIR chooses the file system."""
    with tempfile.TemporaryDirectory(prefix="dagster-ckpt-bench-") as folder:
        yield Path(folder)


@contextmanager
def spark_session(folder: Path, **conf: str) -> Iterator[SparkSession]:
    """Our default session, quiet, its scratch space in ``folder``."""
    settings = {
        "spark.driver.memory": "3g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **conf,
    }
    session = build_session("dagster-ckpt-benchmark", conf=settings)
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def as_spark_writes(spark: SparkSession) -> Iterator[None]:
    """Files of checkpoints and outputs as a session of Spark's own writes them: what a bare query has without us."""
    ours = {name: spark.conf.get(name) for name in _HOW_FILES_ARE_WRITTEN}
    for name in ours:
        spark.conf.unset(name)
    follow_local_checksums(spark)
    try:
        yield
    finally:
        for name, value in ours.items():
            spark.conf.set(name, value)
        follow_local_checksums(spark)


def show(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table for people, then the same as one line of JSON."""
    shown = [{key: _rounded(value) for key, value in row.items()} for row in rows]
    columns = list(shown[0])
    widths = {c: max(len(c), *(len(str(row[c])) for row in shown)) for c in columns}
    print(f"\n{title}  (load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)")
    print("  ".join(c.rjust(widths[c]) for c in columns))
    for row in shown:
        print("  ".join(str(row[c]).rjust(widths[c]) for c in columns))
    print(json.dumps({"benchmark": title, "rows": shown}))


def _rounded(value: Any) -> Any:
    return round(value, 2 if abs(value) < 100 else 1) if isinstance(value, float) else value


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def p95(values: Sequence[float]) -> float:
    return sorted(values)[max(0, round(0.95 * len(values)) - 1)]


# --- a keyed count ------------------------------------------------------------------------------------------


def write_keys(folder: Path, number: int, keys: Sequence[int]) -> None:
    """Add input file ``number`` with one row per key."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".tmp-{number}"
    table = pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array([number] * len(keys), pa.int64())})
    pq.write_table(table, partial)
    os.utime(partial, (1.7e9 + number, 1.7e9 + number))
    partial.rename(folder / f"part-{number:06d}.parquet")


def changed_keys(keys: int, number: int) -> list[int]:
    """One in a hundred keys, others for each number, spread over all partitions."""
    return list(range(number % 100, keys, 100))


def keyed_count(spark: SparkSession, folder: Path) -> DataFrame:
    import pyspark.sql.functions as sf

    rows = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1)
    return (
        rows.option("maxFileAge", "100000d")
        .parquet(str(folder))
        .groupBy("k")
        .agg(sf.count("*").alias("c"), sf.sum("v").alias("s"))
    )


def start(frame: DataFrame, stage_dir: Path) -> StreamingQuery:
    return (
        frame.writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(stage_dir / "query"))
        .start()
    )


# --- checkpoints of it --------------------------------------------------------------------------------------


@dataclass
class Checkpoints:
    """Takes checkpoints of one stage, the way the stage runner does, and keeps the time."""

    storage: FsspecCheckpointStorage
    stage_dir: Path
    number: int = 0
    previous: tuple[FileEntry, ...] = ()
    sync_ms: list[float] = field(default_factory=list)
    async_ms: list[float] = field(default_factory=list)

    @classmethod
    def at(cls, folder: Path, stage_dir: Path, durability: Durability = Durability.POWER_LOSS) -> Checkpoints:
        return cls(FsspecCheckpointStorage(folder.as_uri(), durability=durability), stage_dir)

    def take(self, mode: UploadMode = UploadMode.INCREMENTAL) -> tuple[CapturePlan, StageUpload]:
        self.number += 1
        number = CheckpointId(self.number)
        began = time.perf_counter()
        plan = plan_capture(self.stage_dir / "query")
        files = pin_files(
            plan.files,
            stage_dir=self.stage_dir,
            checkpoint_id=number,
            uploaded=uploaded_already(self.previous),
        )
        pinned = time.perf_counter()
        upload = upload_stage(
            files=files,
            stage_dir=self.stage_dir,
            storage=self.storage,
            pipeline=PIPELINE,
            uid=UID,
            checkpoint_id=number,
            folder=self.folder(mode),
            mode=mode,
            previous=self.previous,
        )
        self.async_ms.append((time.perf_counter() - pinned) * 1e3)
        self.sync_ms.append((pinned - began) * 1e3)
        release_pins(self.stage_dir, number)
        self.previous = upload.entries
        return plan, upload

    def folder(self, mode: UploadMode) -> str:
        return folder_of(PIPELINE, self.number, mode)

    def complete(self, plan: CapturePlan, upload: StageUpload) -> StoredSnapshot:
        """Write ``_metadata``, so that the checkpoint can be restored."""
        snapshot = snapshot_of(UID, plan, upload)
        folder = self.folder(UploadMode.INCREMENTAL)
        return complete(self.storage, folder, self.number, snapshot, pipeline=PIPELINE)
