"""Day-time intervals of a Parquet table, read without Spark: its files hold plain microseconds."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_ckpt.spark.table.buckets import SPARK_SCHEMA
from dagster_ckpt.spark.table.intervals import with_durations
from dagster_ckpt.spark.table.log import create_table
from dagster_ckpt.spark.table.read import ParquetRows
from dagster_ckpt.spark.table.records import Append
from tests.spark.table.tables import PIPELINE

DAY = dt.timedelta(days=1)
MICROSECONDS = 86_400_000_000
DURATION = pa.duration("us")


def schema_of(**kinds: Any) -> str:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    return json.dumps({"type": "struct", "fields": fields})


LIST = {"type": "array", "elementType": "interval second", "containsNull": True}
MAP = {"type": "map", "keyType": "string", "valueType": "interval hour to second", "valueContainsNull": True}
STRUCT = json.loads(schema_of(q="interval minute", n="long"))


@pytest.mark.parametrize(
    ("kind", "carried", "value", "read"),
    [
        ("interval day to second", pa.int64(), MICROSECONDS, DAY),
        ("interval day", pa.int64(), None, None),
        (LIST, pa.list_(pa.int64()), [MICROSECONDS, None], [DAY, None]),
        (MAP, pa.map_(pa.string(), pa.int64()), [("a", MICROSECONDS)], [("a", DAY)]),
        (STRUCT, pa.struct({"q": pa.int64(), "n": pa.int64()}), {"q": -1, "n": 2}, {"q": -DAY / MICROSECONDS, "n": 2}),
        ("interval year to month", pa.int32(), 14, 14),
        ("long", pa.int64(), 7, 7),
    ],
)  # fmt: skip
def test_only_what_spark_calls_a_day_time_interval_becomes_a_duration(
    kind: Any, carried: pa.DataType, value: Any, read: Any
) -> None:
    rows = pa.table({"v": pa.array([value], carried), "other": pa.array([1], pa.int64())})
    found = with_durations(rows, schema_of(v=kind, x="interval day", other="long"))
    assert found.to_pylist() == [{"v": read, "other": 1}]
    assert with_durations(rows, "") is rows


def test_rows_written_at_least_once_are_told_by_the_note_in_their_files(tmp_path: Any) -> None:
    table = create_table(str(tmp_path / "t"), pipeline=PIPELINE, mode=Append())
    with table.locked() as state:
        table.write_state(state.model_copy(update={"written_through": True}))
    schema = pa.schema({"v": pa.int64()}, metadata={SPARK_SCHEMA: schema_of(v="interval day")})
    pq.write_table(pa.table({"v": [MICROSECONDS]}, schema=schema), tmp_path / "t" / "part-0.parquet")
    assert ParquetRows(table, None).to_arrow() == pa.table({"v": pa.array([DAY], DURATION)})
