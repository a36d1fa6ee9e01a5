"""Rows by key: the latest of each, merged into the table in one commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_ckpt.ext.delta.lake import Outside
from dagster_ckpt.spark.sink.committables import TableFile
from dagster_ckpt.spark.sink.table_files import StagedFiles

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable


def upsert(
    table: DeltaTable,
    staged: StagedFiles,
    files: Sequence[TableFile],
    *,
    key: Sequence[str],
    properties: CommitProperties,
) -> None:
    """Merge the rows of these files, the last of each key, into the table."""
    rows = staged.latest_rows(files, key)
    for column in pa.schema(table.schema().to_arrow()):
        if column.name not in rows.column_names:  # it stayed away: the row that wins has no value there
            rows = rows.append_column(column.name, pa.nulls(rows.num_rows, column.type))
    Outside.merge(table, rows, _same_key(rows, key), properties)


def _same_key(rows: pa.Table, key: Sequence[str]) -> str:
    """Return the condition of a match. Only a plain ``=`` lets files be passed over, and it never matches a null."""
    operators = {name: "IS NOT DISTINCT FROM" if rows[name].null_count else "=" for name in key}
    return " AND ".join(f't."{name}" {operator} s."{name}"' for name, operator in operators.items())
