"""Appending and upserting a checkpoint's rows into PostgreSQL and SQLite: python -m benchmarks.sql_sink [rows]."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.ext.sql.sink import SqlSink
from dagster_ckpt.ext.sql.target import SqlTable
from dagster_ckpt.spark.sink.committables import PreparedBatch, TableFile
from dagster_ckpt.spark.sink.port import AttemptId, LaterRows, SinkCut
from dagster_ckpt.testing.sinks.run import context_in
from tests.adapters.servers import postgres_cluster

ATTEMPT = AttemptId("one", CoordinatorEpoch(1))
COLUMNS = {"id": ("long", pa.int64()), "name": ("string", pa.string()), "price": ("double", pa.float64())}


def _staged(folder: Path, number: int, rows: int) -> PreparedBatch:
    name = f"{number}.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    ids = pa.array(range(rows), pa.int64())
    names = pa.array([f"customer {i}" for i in range(rows)])
    prices = pa.array([i * 0.25 + number for i in range(rows)])
    pq.write_table(pa.table({"id": ids, "name": names, "price": prices}), folder / name)
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, (t, _) in COLUMNS.items()]
    schema = json.dumps({"type": "struct", "fields": fields})
    file = TableFile(name=name, staged=name, rows=rows, bytes=(folder / name).stat().st_size)
    return PreparedBatch(batch_id=number, epoch=1, lineage="one", files=(file,), row_schema=schema)


def _measure(label: str, sink: SqlSink, rows: int) -> None:
    times = []
    for number in (1, 2, 3):
        batch = _staged(sink.context.work_dir, number, rows)
        permit = CommitPermit(
            PipelineId("shop"), ATTEMPT.epoch, CheckpointId(number), object(), lineage="one"
        )
        begun = time.perf_counter()
        sink.publish([batch], permit)
        times.append(time.perf_counter() - begun)
    back = "-"
    if sink.keeps_before_images:
        snapshot = TableSnapshot(uri=sink.place, head=1)
        begun = time.perf_counter()
        cut = SinkCut(snapshot=snapshot, batches=(), checkpoint_id=CheckpointId(1))
        sink.roll_back(cut, LaterRows.SET_ASIDE)
        back = f"{time.perf_counter() - begun:.2f} s"
    per_second = [f"{rows / taken:,.0f}" for taken in times]
    print(f"{label:42} rows/s of three publishes: {per_second}; back over two: {back}", flush=True)


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    with tempfile.TemporaryDirectory() as folder, postgres_cluster() as cluster:
        for backend in ("sqlite", "postgresql"):
            for key in ((), ("id",)):
                for keeps in (False, True):
                    place = Path(folder) / f"{backend}-{len(key)}-{keeps}"
                    place.mkdir()
                    url = f"sqlite:///{place}/shop.db" if backend == "sqlite" else cluster.new_database()
                    context = context_in(place, ATTEMPT, key=key)
                    label = (
                        f"{backend}, {'by key' if key else 'appended'}{', before-images' if keeps else ''}"
                    )
                    _measure(label, SqlSink(SqlTable(url, keep_before_images=keeps), context), rows)


if __name__ == "__main__":
    main()
