"""What is written reads right in every reader: a condition that is pushed down gives what filtering all rows gives.

One table of values, written as rows that are appended and as rows by key, and asked by each reader. What is right is
what the same reader finds among the same rows in memory: readers differ in NaN and in zeros of both signs.
"""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable as DeltaReader
from deltalake import QueryBuilder
from pyiceberg import expressions as iceberg
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import visitors as iceberg_visitors
from pyiceberg.io.pyarrow import expression_to_pyarrow

from dagster_ckpt.core.ids import BatchId, CheckpointId, CoordinatorEpoch
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.ext.delta.sink import DeltaSink
from dagster_ckpt.ext.delta.target import DeltaTable
from dagster_ckpt.ext.iceberg.sink import IcebergSink
from dagster_ckpt.ext.iceberg.target import IcebergTable
from dagster_ckpt.ext.tables.staged_files import STAGED
from dagster_ckpt.spark.channel.batch_input import read_rows
from dagster_ckpt.spark.sink.port import AttemptId, Sink, SinkContext
from dagster_ckpt.testing import SinkRun, Staging
from dagster_ckpt.testing.sinks.run import context_in, stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST = AttemptId("first", CoordinatorEpoch(1))
NAN, INFINITE = float("nan"), float("inf")
LONG = "a note of more than thirty-two characters, number "
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678_901)  # noqa: DTZ001
FIRST_MOMENT, LAST_MOMENT = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001


def utc(moment: dt.datetime) -> dt.datetime:
    return moment.replace(tzinfo=dt.UTC)


class Values(NamedTuple):
    type: pa.DataType
    ordinary: list[Any]
    odd: list[Any]
    """The first of them has no bounds in a group of rows of its own, where there are such values."""


VALUES = {
    "flag": Values(pa.bool_(), [True, True], [False]),
    "tiny": Values(pa.int8(), [1, 2], [-128, 127, 0]),
    "small": Values(pa.int16(), [1, 2], [-(2**15), 2**15 - 1, 0]),
    "whole": Values(pa.int32(), [1, 2], [-(2**31), 2**31 - 1, 0]),
    "great": Values(pa.int64(), [1, 2], [-(2**63), 2**63 - 1, 0, 2**53 + 1]),
    "real": Values(pa.float32(), [1.5, 0.25], [NAN, 0.0, -0.0, INFINITE, -INFINITE, 3.4028234663852886e38]),
    "ratio": Values(pa.float64(), [1.5, 0.25], [NAN, 0.0, -0.0, INFINITE, -INFINITE, 5e-324, 0.1]),
    "price": Values(
        pa.decimal128(10, 2), [Decimal("1.50"), Decimal("3.00")], [Decimal("99999999.99"), Decimal("0.00")]
    ),
    "exact": Values(
        pa.decimal128(38, 18),
        [Decimal("1.500000000000000000"), Decimal("3.000000000000000001")],
        [Decimal("12345678901234567890.123456789012345678"), Decimal("-0.000000000000000001")],
    ),
    "note": Values(
        pa.string(),
        ["b", "a"],
        [
            "x" * 5_000,
            "",
            f"{LONG}1",
            f"{LONG}2",
            "ä" * 40,
            "\U0010ffff" * 40,
            "e" * 15 + "\uffff\U00010000" * 20,
        ],
    ),
    "bytes": Values(pa.binary(), [b"b", b"a"], [b"x" * 5_000, b"", b"\xff" * 40, b"\x00"]),
    "day": Values(
        pa.date32(),
        [dt.date(2026, 1, 2), dt.date(2026, 1, 3)],
        [dt.date.min, dt.date.max, dt.date(1969, 12, 31)],
    ),
    "at": Values(pa.timestamp("us", "UTC"), [utc(MOMENT)], [utc(FIRST_MOMENT), utc(LAST_MOMENT)]),
    "plain": Values(pa.timestamp("us"), [MOMENT], [FIRST_MOMENT, LAST_MOMENT]),
    "pair": Values(
        pa.struct([("x", pa.int64()), ("y", pa.string())]), [{"x": 1, "y": "a"}], [{"x": None, "y": LONG}]
    ),
    "tags": Values(pa.list_(pa.string()), [["a"]], [[], [None]]),
    "named": Values(pa.map_(pa.string(), pa.int64()), [[("a", 1)]], [[]]),
}
_NESTED = ("pair", "tags", "named")
SIZES = [2, 8, 2, 8, 4]


def files() -> list[pa.Table]:
    """Ordinary values; odd ones beside nulls; no value; groups of rows with bounds and without; a zero of each sign."""
    columns: dict[str, list[list[Any]]] = {}
    for name, (_, ordinary, odd) in VALUES.items():
        two = [ordinary[0], ordinary[-1]]
        columns[name] = [
            two,
            [*odd, *[None] * (8 - len(odd))],
            [None, None],
            [*two, odd[0], odd[0], None, None, *two],
            [odd[1], odd[2], odd[0], odd[1]] if name in ("real", "ratio") else [*two, odd[0], odd[-1]],
        ]
    schema = pa.schema({"id": pa.int64()} | {name: values.type for name, values in VALUES.items()})
    found, first = [], 0
    for number, size in enumerate(SIZES):
        of_file = {name: parts[number] for name, parts in columns.items()}
        found.append(pa.table({"id": list(range(first, first + size)), **of_file}, schema=schema))
        first += size
    return found


def write(rows: pa.Table, path: Path) -> None:
    """Write a file as Spark does: bounds of no column that has NaN; groups of two rows."""
    bounded = [
        name
        for name in rows.column_names
        if not pa.types.is_floating(rows[name].type) or not pc.any(pc.is_nan(rows[name])).as_py()
    ]
    pq.write_table(rows, path, row_group_size=2, write_statistics=bounded)


class Delta:
    """A Delta table, and how rows are staged for it."""

    @staticmethod
    def open(context: SinkContext) -> Sink:
        return DeltaSink(DeltaTable("t"), context)

    @staticmethod
    def staging(sink: Sink, context: SinkContext) -> Staging:
        root = Path(sink.place)
        return Staging(root, root / STAGED / context.pipeline / context.uid / "1", write=write)

    @staticmethod
    def asked(sink: Sink) -> None:
        every_reader_of_a_delta_table_finds_what_is_there(sink.place)


class Iceberg:
    """An Iceberg table, likewise."""

    @staticmethod
    def open(context: SinkContext) -> Sink:
        return IcebergSink(IcebergTable("db.t"), context)

    @staticmethod
    def staging(sink: Sink, context: SinkContext) -> Staging:
        assert isinstance(sink, IcebergSink)
        return Staging(sink.staged.root, sink.staged.folder(CoordinatorEpoch(1)), write=write)

    @staticmethod
    def asked(sink: Sink) -> None:
        catalog = SqlCatalog("default", uri=sink.place.partition("#")[0])
        every_reader_of_an_iceberg_table_finds_what_is_there(catalog.load_table("db.t"))


def written(kind: type[Delta | Iceberg], folder: Path, key: tuple[str, ...]) -> Sink:
    """Return a sink that shows all files, published in two checkpoints; by key some of them once more."""
    context = context_in(folder, FIRST, key=key)
    sink = kind.open(context)
    run = SinkRun(open=kind.open, staging=kind.staging, context=context, attempt=FIRST, sink=sink)
    sink.take_over()
    parts = [files()[:2], files()[2:], *([files()[1:4]] if key else [])]
    for checkpoint, tables in enumerate(parts, start=1):
        batch = stage(kind.staging(sink, context), FIRST, checkpoint, tables)
        run.batches.append(batch)
        sink.flush([batch])
        run.publish(checkpoint)
    return sink


# --- conditions -------------------------------------------------------------------------------------------------


class Condition(NamedTuple):
    column: str
    operator: str
    value: Any = None


COMPARISONS = {"=": operator.eq, "!=": operator.ne, ">": operator.gt}


def conditions(names: Iterable[str]) -> Iterator[Condition]:
    for name in names:
        if name in _NESTED:
            continue
        _, ordinary, odd = VALUES[name]
        for value in {repr(v): v for v in (*ordinary, *odd) if v is not NAN}.values():
            for comparison in COMPARISONS:
                yield Condition(name, comparison, value)
    for name in names:
        yield Condition(name, "is null")
        yield Condition(name, "is not null")


def in_arrow(said: Condition) -> Any:
    field = pc.field(said.column)
    if said.operator in COMPARISONS:
        return COMPARISONS[said.operator](field, pa.scalar(said.value, VALUES[said.column].type))
    return field.is_null() if said.operator == "is null" else field.is_valid()


def in_polars(said: Condition) -> Any:
    column = polars.col(said.column)
    if said.operator in COMPARISONS:
        kind = polars.from_arrow(pa.array([], VALUES[said.column].type)).dtype  # type: ignore[union-attr]
        return COMPARISONS[said.operator](column, polars.lit(said.value, dtype=kind))
    return column.is_null() if said.operator == "is null" else column.is_not_null()


def in_duckdb(rows: Any, said: Condition) -> list[int]:
    if said.operator in COMPARISONS:
        found = duckdb.execute(f'select id from rows where "{said.column}" {said.operator} ?', [said.value])
    else:
        found = duckdb.execute(f'select id from rows where "{said.column}" {said.operator}')
    return sorted(number for (number,) in found.fetchall())


_IN_SQL = {
    "flag": "Boolean", "tiny": "Int8", "small": "Int16", "whole": "Int32", "great": "Int64", "real": "Float32",
    "ratio": "Float64", "price": "Decimal128(10, 2)", "exact": "Decimal128(38, 18)", "note": "Utf8", "day": "Date32",
    "at": 'Timestamp(Microsecond, Some("UTC"))', "plain": "Timestamp(Microsecond, None)",
}  # fmt: skip


def in_sql(said: Condition) -> str:
    if said.operator not in COMPARISONS:
        return f"{said.column} {said.operator}"
    text = format(said.value, "f") if isinstance(said.value, Decimal) else str(said.value)
    literal = f"arrow_cast('{text}', '{_IN_SQL[said.column]}')"
    return f"{said.column} {said.operator} {literal}"


def in_iceberg(said: Condition) -> Any:
    if said.operator in COMPARISONS:
        kinds = ("EqualTo", "NotEqualTo", "GreaterThan")
        return getattr(iceberg, dict(zip(COMPARISONS, kinds, strict=True))[said.operator])(
            said.column, said.value
        )
    return iceberg.IsNull(said.column) if said.operator == "is null" else iceberg.NotNull(said.column)


def ids(rows: Any) -> list[int]:
    return sorted(rows["id"].to_pylist() if isinstance(rows, pa.Table) else rows["id"].to_list())


def mismatches(
    found: Callable[[Condition], list[int]],
    right: Callable[[Condition], list[int]],
    names: Iterable[str] = VALUES,
) -> list[Any]:
    return [(said, f, r) for said in conditions(names) if (f := found(said)) != (r := right(said))]


# --- readers ----------------------------------------------------------------------------------------------------


def every_reader_of_a_delta_table_finds_what_is_there(place: str) -> None:
    table = DeltaReader(place)
    dataset, whole = table.to_pyarrow_dataset(), table.to_pyarrow_table()
    in_memory = polars.from_arrow(whole)
    assert isinstance(in_memory, polars.DataFrame)
    lazy = polars.scan_delta(place)
    sql = QueryBuilder().register("t", table)

    def asked(text: str) -> pa.Table:
        return pa.table(sql.execute(text).read_all())

    assert sorted(whole["id"].to_pylist()) == list(range(sum(SIZES)))
    for found, right, names in (
        (
            lambda c: ids(dataset.to_table(filter=in_arrow(c))),
            lambda c: ids(whole.filter(in_arrow(c))),
            VALUES,
        ),
        (lambda c: in_duckdb(dataset, c), lambda c: in_duckdb(whole, c), VALUES),
        (
            lambda c: ids(lazy.filter(in_polars(c)).collect()),
            lambda c: ids(in_memory.filter(in_polars(c))),
            VALUES,
        ),
        (
            lambda c: ids(asked(f"select id from t where {in_sql(c)}")),
            lambda c: ids(asked(f"select id, {in_sql(c)} as holds from t").filter(pc.field("holds"))),
            [name for name in _IN_SQL if name != "at"],
        ),
    ):
        assert not mismatches(found, right, names)


def every_reader_of_an_iceberg_table_finds_what_is_there(table: Any) -> None:
    whole = table.scan().to_arrow()

    def right(said: Condition) -> list[int]:
        bound = iceberg_visitors.bind(table.schema(), in_iceberg(said), case_sensitive=True)
        return ids(whole.filter(expression_to_pyarrow(bound)))

    assert sorted(whole["id"].to_pylist()) == list(range(sum(SIZES)))
    names = [name for name in VALUES if name not in _NESTED]
    assert not mismatches(lambda c: ids(table.scan(row_filter=in_iceberg(c)).to_arrow()), right, names)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("key", [(), ("real", "id", "note")], ids=["appended", "by key"])
def test_a_condition_hides_no_row(tmp_path: Path, key: tuple[str, ...]) -> None:
    for kind in (Delta, Iceberg):
        kind.asked(written(kind, tmp_path, key))


def test_a_condition_hides_no_row_that_spark_has_written(spark: SparkSession, tmp_path: Path) -> None:
    for number, rows in enumerate(files()):
        write(rows, tmp_path / f"{number}.parquet")
    for kind in (Delta, Iceberg):
        context = context_in(tmp_path / kind.__name__, FIRST)
        sink = kind.open(context)
        sink.take_over()
        batches = []
        for number in range(len(SIZES)):
            frame = spark.read.parquet(str(tmp_path / f"{number}.parquet")).coalesce(1)
            batches.append(sink.prepare(frame, BatchId(number)))
        sink.flush(batches)
        permit = CommitPermit(context.pipeline, FIRST.epoch, CheckpointId(1), object(), lineage=FIRST.lineage)
        sink.publish(batches, permit)
        kind.asked(sink)


def test_a_condition_of_spark_finds_zeros_of_both_signs(spark: SparkSession, tmp_path: Path) -> None:
    """By a file's list of values Spark passed over all rows with the other sign: in tables and between stages."""
    table = written(Delta, tmp_path / "table", ()).rows()
    path = tmp_path / "0.parquet"
    pq.write_table(pa.table({"ratio": [-0.0] * 9}), path)
    between_stages = read_rows(spark, [path], spark.read.parquet(str(path)).schema)
    for rows in (table.to_spark(spark), between_stages):
        for said in ("ratio = 0.0", "ratio = -0.0D", "ratio IN (0.0, 7.0)", "ratio >= 0.0 AND ratio < 1.0"):
            right = rows.localCheckpoint().where(said).count()
            assert right
            assert rows.where(said).count() == right


def test_times_without_a_zone_are_as_they_are_in_a_session_of_any_zone(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = written(Iceberg, tmp_path, ()).rows()
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    found = rows.to_spark(session).select("id", "plain").toArrow()
    assert found.schema.field("plain").type == pa.timestamp("us")
    right = rows.to_arrow().select(["id", "plain"])
    assert found.sort_by("id").to_pydict() == right.sort_by("id").to_pydict()
