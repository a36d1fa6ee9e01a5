"""Auto CDC flows, SCD type 2: every version of a key's row, with the sequences from and until which it was valid.

The sink keeps all changes of every key in its state, equal ones once, and makes the versions of all of them again: a
late change may divide any version that was published before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.spark_pipelines.auto_cdc import (
    DELETED,
    ORDER,
    ROW,
    classic,
    column_names,
    kept_columns,
    key_names,
    order_by,
)
from dagster_ckpt.ext.spark_pipelines.elements import FlowElement
from dagster_ckpt.spark.quoting import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["END", "START", "tracked_names", "versions", "with_bounds"]

START, END = "__START_AT", "__END_AT"
"""Spark's names."""


def tracked_names(flow: FlowElement, rows: DataFrame) -> tuple[str, ...]:
    """Return the columns whose change begins a new version. Raises InvalidRequest for what has no versions."""
    taken = next((name for name in rows.columns if name.upper() in (START, END)), None)
    if taken is not None:
        raise InvalidRequest(
            f"{flow.title}: its source has a column {taken!r}, which is Spark's own in SCD type 2: rename it"
        )
    columns, keys = kept_columns(flow, rows), key_names(flow, rows)
    blurred = next(
        (rows.schema[name] for name in columns if not _is_comparable(rows.schema[name].dataType)), None
    )
    if blurred is not None:
        raise InvalidRequest(
            f"{flow.title}: {blurred.name!r} is {blurred.dataType.simpleString()}, whose values Spark cannot compare "
            "here: leave the column out of SCD type 2 (except_column_list), or cast it (collate(..., 'UTF8_BINARY'))"
        )
    order = rows.select(classic(flow.cdc.sequence_by)).schema[0].dataType
    if isinstance(order.jsonValue(), dict) or not _is_comparable(order):
        raise InvalidRequest(
            f"{flow.title} is put in order by {order.simpleString()}, which cannot be part of a key, as {START} is: "
            "give one column of numbers, text or times"
        )
    eligible = [name for name in columns if name not in keys]
    only, but = (
        column_names(flow, rows, given)
        for given in (flow.cdc.track_history_column_list, flow.cdc.track_history_except_column_list)
    )
    lost = [name for name in (*only, *but) if name not in eligible]
    if lost:
        raise InvalidRequest(
            f"{flow.title}: {lost[0]!r}, of which history is to be tracked or not, is no column of its table beside "
            f"the keys: {eligible}"
        )
    return tuple(name for name in only or eligible if name not in but)


def _is_comparable(kind: Any) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    match kind:
        case StringType():
            return bool(kind.isUTF8BinaryCollation())  # a set of rows has no others
        case StructType():
            return all(_is_comparable(column.dataType) for column in kind.fields)
        case ArrayType():
            return _is_comparable(kind.elementType)
        case _:
            return not isinstance(kind, MapType) and kind.typeName() not in ("variant", "interval")


def with_bounds(changed: DataFrame) -> DataFrame:
    """Return the columns of the table, of changes whose versions are not made yet."""
    from pyspark.sql import functions as f

    return changed.select(f"{ROW}.*", f.col(ORDER).alias(START), f.col(ORDER).alias(END))


def versions(changed: DataFrame, keys: tuple[str, ...], tracked: tuple[str, ...], sequence: str) -> DataFrame:
    """Return all versions of the row of every key, in output mode complete; ``sequence``: as ``sequence_of`` tells.

    Of changes with one sequence a deletion wins, as in Spark, and else always the same one. Consecutive rows with
    equal tracked columns are one version, which has the values of the last of them.
    """
    from pyspark.sql import functions as f

    by = [f.col(quoted(key)) for key in keys]
    change = f.struct(
        f.col(quoted(order_by(sequence))).alias("at"),
        f.col(DELETED).alias("gone"),
        f.xxhash64(f.col(ROW)).alias("tie"),
        f.col(ROW).alias("row"),
    )
    changed = changed.withColumnRenamed(ORDER, order_by(sequence))
    found = changed.groupBy(*by).agg(f.array_sort(f.collect_set(change)).alias("all"))

    def is_last_of_its_sequence(one: Column, at: Column) -> Column:
        return ~one["at"].eqNullSafe(_at(f.col("all"), at + 1)["at"])

    found = found.select(f.filter("all", is_last_of_its_sequence).alias("each"))

    def linked(one: Column, at: Column) -> Column:
        before, after = _at(f.col("each"), at - 1), _at(f.col("each"), at + 1)
        return f.struct(
            one["at"].alias("at"),
            one["row"].alias("row"),
            after["at"].alias("until"),
            (~one["gone"] & ~_goes_on(before, one, tracked)).alias("begins"),
            (~one["gone"] & ~_goes_on(one, after, tracked)).alias("ends"),
        )

    found = found.select(f.transform("each", linked).alias("linked"))
    found = found.select(
        f.filter("linked", lambda one: one["begins"]).alias("heads"),
        f.filter("linked", lambda one: one["ends"]).alias("tails"),
    )

    def version(tail: Column, at: Column) -> Column:
        return f.struct(
            tail["row"].alias("row"),
            _at(f.col("heads"), at)["at"].alias("from"),
            tail["until"].alias("until"),
        )

    found = found.select(f.explode(f.transform("tails", version)).alias("one"))
    return found.select("one.row.*", f.col("one.from").alias(START), f.col("one.until").alias(END))


def _goes_on(before: Column, after: Column, tracked: tuple[str, ...]) -> Column:
    """Tell whether a row continues the version of the one before it; of none before or after: no."""
    from pyspark.sql import functions as f

    same: Any = ~before["gone"] & ~after["gone"]
    for name in tracked:
        same = same & before["row"][name].eqNullSafe(after["row"][name])
    return f.coalesce(same, f.lit(False))


def _at(array: Column, index: Column) -> Column:
    from pyspark.sql import functions as f

    return f.get(array, index.cast("int"))
