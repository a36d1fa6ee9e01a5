"""What tests of databases share: rows that are staged with any types, and a permit to publish them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.spark.sink.committables import PreparedBatch, TableFile
from dagster_ckpt.spark.sink.port import AttemptId, Sink, SinkCut

Run = Callable[[str], list[Any]]
Columns = dict[str, tuple[str, pa.DataType]]

FIRST = AttemptId("first", CoordinatorEpoch(1))
LONGS: Columns = {"k": ("long", pa.int64()), "v": ("long", pa.int64())}


def staged(folder: Path, batch_id: int, columns: Columns, rows: list[Any]) -> PreparedBatch:
    """Stage a micro-batch as ``prepare`` does, with any types."""
    name = f"staged/1/batch-{batch_id:010d}-{'0' * 12}/0.parquet"
    (folder / name).parent.mkdir(parents=True)
    schema = pa.schema([(column, of) for column, (_, of) in columns.items()])
    table = pa.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in rows], schema)
    pq.write_table(table, folder / name)
    fields = [
        {"name": column, "type": of, "nullable": True, "metadata": {}} for column, (of, _) in columns.items()
    ]
    size = (folder / name).stat().st_size
    return PreparedBatch(
        batch_id=batch_id,
        epoch=1,
        lineage="first",
        files=(TableFile(name=f"{batch_id}.parquet", staged=name, rows=len(rows), bytes=size),),
        row_schema=json.dumps({"type": "struct", "fields": fields}),
    )


def permit(checkpoint: int) -> CommitPermit:
    return CommitPermit(
        PipelineId("shop"), FIRST.epoch, CheckpointId(checkpoint), object(), lineage=FIRST.lineage
    )


def cut_at(sink: Sink, checkpoint: int) -> SinkCut:
    """Return a checkpoint that the sink shows, with nothing that waits."""
    snapshot = TableSnapshot(uri=sink.place, head=checkpoint)
    return SinkCut(snapshot=snapshot, batches=(), checkpoint_id=CheckpointId(checkpoint))
