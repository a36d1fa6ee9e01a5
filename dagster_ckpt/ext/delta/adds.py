"""Files as actions of a commit: path, size, partition values, statistics."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from dagster_ckpt.ext.delta.bounds import bounded_columns, statistics
from dagster_ckpt.spark.sink.committables import TableFile
from dagster_ckpt.spark.sink.table_files import StagedFiles, partition_values

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction


def add_actions(table: DeltaTable, staged: StagedFiles, files: Sequence[TableFile]) -> list[AddAction]:
    """Return the actions that add staged files where they lie. Raises Corrupt when one is gone."""
    footers = staged.footers(files)
    return adds(
        table, [(file.staged, file.bytes, footer) for file, footer in zip(files, footers, strict=True)]
    )


def adds(table: DeltaTable, files: Sequence[tuple[str, int, pq.FileMetaData]]) -> list[AddAction]:
    """Return the actions that add files: their paths below the table, bytes and footers."""
    from deltalake.transaction import AddAction

    now, bounded = int(time.time() * 1000), bounded_columns(table)
    return [
        AddAction(
            path=path,
            size=size,
            partition_values=partition_values(path),
            modification_time=now,
            data_change=True,
            stats=statistics(footer, bounded),
        )
        for path, size, footer in files
    ]
