"""Auto CDC flows: changes of a source, and of SCD type 1 the newest row of every key, whatever order rows arrive in.

The flow's stage says of each row what its key, its order and its fate are; the sink keeps the newest of each key in its
state, deleted keys among them, so that a late row does not bring one back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.spark_pipelines.elements import FlowElement
from dagster_ckpt.ext.spark_pipelines.schemas import contains
from dagster_ckpt.spark.java.plans import analyzed_plan
from dagster_ckpt.spark.quoting import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "DELETED",
    "END",
    "ORDER",
    "ROW",
    "START",
    "changes",
    "classic",
    "column_names",
    "is_history",
    "kept_columns",
    "key_names",
    "newest_rows",
    "order_by",
    "refuse_unsupported",
    "sequence_of",
    "tracked_names",
    "versions",
    "with_bounds",
]

ROW, ORDER, DELETED = "__row", "__order", "__deleted"


def is_history(flow: FlowElement) -> bool:
    """Tell whether an Auto CDC flow keeps all versions of a row: SCD type 2."""
    return str(flow.cdc.stored_as_scd_type or 1) == "2"


def refuse_unsupported(flow: FlowElement) -> None:
    """Raise InvalidRequest for an Auto CDC flow of another type than 1 and 2, or with options of the other one."""
    cdc = flow.cdc
    if str(cdc.stored_as_scd_type or 1) not in ("1", "2"):
        raise InvalidRequest(
            f"{flow.title} has stored_as_scd_type={cdc.stored_as_scd_type!r}: there are 1 and 2"
        )
    tracks = [
        name
        for name in ("track_history_column_list", "track_history_except_column_list")
        if getattr(cdc, name)
    ]
    if tracks and not is_history(flow):
        raise InvalidRequest(
            f"{flow.title} has {tracks[0]}, and no stored_as_scd_type=2, to which that belongs"
        )
    if len(tracks) > 1:
        raise InvalidRequest(f"{flow.title} has both {' and '.join(tracks)}: give one")


def key_names(flow: FlowElement, rows: DataFrame) -> tuple[str, ...]:
    """Return the key columns. Raises InvalidRequest for keys that are no columns of the source, and for none."""
    names = tuple(column_names(flow, rows, flow.cdc.keys))
    if not names:
        raise InvalidRequest(
            f"{flow.title} has no keys: name the columns of {flow.cdc.source!r} that tell its rows apart"
        )
    return names


def changes(flow: FlowElement, rows: DataFrame) -> DataFrame:
    """Return each row of the source with its key, its order and whether it deletes.

    A row without a key or an order fails the query, as in Spark. Raises InvalidRequest.
    """
    from pyspark.sql import functions as f

    keys, columns = key_names(flow, rows), kept_columns(flow, rows)
    ours = next((name for name in rows.columns if name.lower() in (ROW, ORDER, DELETED)), None)
    if ours is not None:
        raise InvalidRequest(
            f"{flow.title}: its source has a column {ours!r}, a name that is used here: rename it"
        )
    lost = [key for key in keys if key not in columns]
    if lost:
        raise InvalidRequest(f"{flow.title}: its key {lost[0]!r} is not among the columns of its table")
    sequence = classic(flow.cdc.sequence_by)
    deletes = f.lit(False) if flow.cdc.apply_as_deletes is None else classic(flow.cdc.apply_as_deletes)
    empty: Column = reduce(
        lambda a, b: a | b, (f.col(quoted(key)).isNull() for key in keys), sequence.isNull()
    )
    refused = f.raise_error(
        f.lit(f"a row of {flow.cdc.source} has no key ({', '.join(keys)}) or no sequence")
    )
    marked = rows.withColumn(DELETED, f.coalesce(deletes, f.lit(False))).withColumn(
        ORDER, f.when(empty, refused.cast(rows.select(sequence).schema[0].dataType)).otherwise(sequence)
    )
    return marked.select(*map(quoted, keys), f.struct(*map(quoted, columns)).alias(ROW), ORDER, DELETED)


def newest_rows(changed: DataFrame, keys: tuple[str, ...], sequence: str) -> DataFrame:
    """Return the newest row of every key that is not deleted, by what ``sequence_of`` tells.

    Of rows with one order, one that is no deletion wins, and among those always the same one.
    """
    from pyspark.sql import functions as f

    changed = changed.withColumnRenamed(ORDER, order_by(sequence))
    order: list[Column] = [f.col(quoted(order_by(sequence))), ~f.col(DELETED), *_tie_break(changed)]
    newest = f.max_by(f.struct(ROW, DELETED), f.struct(*order)).alias("__newest")
    found = changed.groupBy(*map(quoted, keys)).agg(newest)
    return found.where(~f.col(f"__newest.{DELETED}")).select(f"__newest.{ROW}.*")


def _tie_break(changed: DataFrame) -> list[Column]:
    """Return the columns that order rows of one sequence; Spark hashes neither a map nor a VARIANT (it has a text)."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import MapType, VariantType

    kind = changed.schema[ROW].dataType
    if contains(kind, VariantType):
        return [f.xxhash64(f.to_json(f.col(ROW)))]
    return [] if contains(kind, MapType) else [f.xxhash64(f.col(ROW))]


def kept_columns(flow: FlowElement, rows: DataFrame) -> list[str]:
    """Return the columns of the source that its table has."""
    except_for = column_names(flow, rows, flow.cdc.except_column_list)
    named = column_names(flow, rows, flow.cdc.column_list)
    return named or [column for column in rows.columns if column not in except_for]


def column_names(flow: FlowElement, rows: DataFrame, given: Sequence[Any] | None) -> list[str]:
    """Return the names of columns that an option lists, as the source writes them.

    Raises InvalidRequest for one that the source has not.
    """
    from pyspark.errors import AnalysisException

    own = {name.lower(): name for name in rows.columns}
    try:
        chosen = [rows.select(classic(one)) for one in given or ()]
    except AnalysisException as error:
        raise InvalidRequest(
            f"{flow.title} names a column that {flow.cdc.source!r} does not have: {error.getCondition()}, "
            f"the columns are {rows.columns}"
        ) from error
    written = [one.columns[0] for one in chosen]
    strange = next((one.columns[0] for one in chosen if not _is_own(one)), None)
    if strange is not None:
        raise InvalidRequest(
            f"{flow.title} lists {strange!r}, which is no column of {flow.cdc.source!r} but made of one: compute it in "
            "a temporary view, and list its name"
        )
    return [name if name in rows.columns else own[name.lower()] for name in written]


def _is_own(chosen: DataFrame) -> bool:
    """Tell whether one selected column is a column of the source itself; a field of a struct has a name as well."""
    selected: Any = analyzed_plan(chosen).expressions().head()
    return bool(selected.nodeName() == "AttributeReference")


def sequence_of(flow: FlowElement) -> str:
    """Return the sequence of an Auto CDC flow's rows, as text."""
    return str(classic(flow.cdc.sequence_by)).removeprefix("Column<'").removesuffix("'>")


def order_by(sequence: str) -> str:
    """Return a name for the order of changes that says what it is made of.

    State cannot go on from another one: its plan has this name. New sequences would be compared with those of another
    column that the state has.
    """
    return f"{ORDER} by {sequence}"


def classic(column: Any) -> Column:
    """Return a column of a classic session: what is given as text becomes one of Spark Connect on the way here."""
    from pyspark.sql import functions as f

    if hasattr(column, "_jc"):
        return column
    expression = column._expr
    name = getattr(expression, "_unparsed_identifier", None)
    return f.col(name) if name is not None else f.expr(expression._expr)


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
