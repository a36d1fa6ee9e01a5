"""Names of tables and columns: all that a database can have work, and the others are refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_ckpt.core.ids import CoordinatorEpoch
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.sql.columns import DIALECTS, column_types
from dagster_ckpt.ext.sql.sink import SqlSink
from dagster_ckpt.ext.sql.target import SqlTable
from dagster_ckpt.spark.channel.schema import parsed_schema
from dagster_ckpt.spark.sink.port import LaterRows
from dagster_ckpt.testing.sinks.run import context_in, in_attempt, row_schema
from tests.ext.sql.tables import FIRST, LONGS, Columns, Run, cut_at, permit, staged

KEYS = ("newest", 'k "1"')
VALUES = (
    *("r", "t", "o", "excluded", "order", "group", "user", "select", "key", "value", "rowid", "oid", "v"),
    *("a'b", "a`b", "a\\b", "50 %", "%s", "100%%", ":x", "$1", "?", "a.b", "a b", "Größe", "checkpoint", "1"),
)
TABLES = ("excluded", "t", "order", "we \"say\" 'so', 50 % :x", "o" * 35, "o" * 39, "o" * 63, "ä" * 31)


@pytest.mark.parametrize("table", TABLES)
def test_any_name_of_a_column_or_a_table_is_the_users_own(
    url: str, tmp_path: Path, run_sql: Run, table: str
) -> None:
    """Of a table with a column `newest` an upsert wrote only rows in which it was 1."""
    context = context_in(tmp_path, FIRST, key=KEYS)
    sink = SqlSink(SqlTable(url, table, keep_before_images=True), context)
    columns: Columns = dict.fromkeys((*KEYS, *VALUES), LONGS["v"])

    def rows(*keys: int, value: int) -> list[tuple[int, ...]]:
        return [(key, key, *range(value, value + len(VALUES))) for key in keys]

    def shown() -> list[tuple[int, ...]]:
        return sorted(tuple(row.values()) for row in sink.rows().to_arrow().to_pylist())

    sink.publish([staged(context.work_dir, 0, columns, rows(0, 1, 2, value=5))], permit(1))
    sink.publish([staged(context.work_dir, 1, columns, [*rows(1, 3, value=6), *rows(1, value=7)])], permit(2))
    assert shown() == [*rows(0, value=5), *rows(1, value=7), *rows(2, value=5), *rows(3, value=6)]
    sink.publish([staged(context.work_dir, 2, columns, rows(2, 4, value=8))], permit(3))
    sink.roll_back(cut_at(sink, 1), LaterRows.SET_ASIDE)
    assert shown() == rows(0, 1, 2, value=5)
    fork = SqlSink(SqlTable(url, "forked"), context_in(tmp_path, FIRST, pipeline="fork", key=KEYS))
    fork.fork(cut_at(sink, 3))
    assert len(fork.rows().to_arrow()) == 5


@pytest.mark.parametrize(
    ("database", "columns", "reason"),
    [
        (
            "postgresql",
            ["k", "ctid"],
            "'ctid' is one of the columns that every table of PostgreSQL has itself",
        ),
        ("postgresql", ["k", "Xmin"], "'Xmin' is one of the columns"),
        ("postgresql", ["k", "ä" * 32], "has more than the 63 bytes that PostgreSQL keeps of a name"),
        ("postgresql", [f"c{number}" for number in range(1_591)], "1,591 columns, and .* room for 1,590"),
        ("sqlite", ["k", "a", "A"], "'a' is there twice, as 'a' and 'A'"),
        ("sqlite", ["k", ""], "is none that a database can have"),
        ("sqlite", ["k", "_Dagster_ckpt_x"], "which is ours"),
        ("postgresql", ["k", "a", "A", "ä" * 31], ""),
        ("sqlite", ["k", "ctid", "ä" * 64], ""),
    ],
)
def test_columns_that_a_database_cannot_have_are_refused_by_name(
    database: str, columns: list[str], reason: str
) -> None:
    schema = parsed_schema(row_schema(pa.schema([(name, pa.int64()) for name in columns])))
    if not reason:
        assert list(column_types(DIALECTS[database], "db#t", schema)) == columns
        return
    with pytest.raises(InvalidRequest, match=reason):
        column_types(DIALECTS[database], "db#t", schema)


@pytest.mark.parametrize(
    ("database", "table", "reason"),
    [
        ("postgresql://me@db/shop", "dagster_ckpt_positions", "keeps beside others"),
        ("postgresql://me@db/shop", "orders__dagster_ckpt_undo", "keeps beside others"),
        ("postgresql://me@db/shop", "_dagster_ckpt_rows", "keeps beside others"),
        ("postgresql://me@db/shop", "o" * 64, "64 bytes"),
        ("postgresql://me@db/shop", "o" * 64 + ".orders", "64 bytes"),
        ("postgresql://me@db/shop", "pg_temp.orders", "PostgreSQL keeps for itself"),
        ("sqlite:////shop.db", "temp.orders", "SQLite has no schemas"),
        ("sqlite:////shop.db", "sqlite_orders", "SQLite keeps for itself"),
        ("sqlite:////shop.db", "Dagster_ckpt_publishes", "keeps beside others"),
    ],
)
def test_tables_that_a_database_keeps_for_itself_are_refused_before_anything_runs(
    tmp_path: Path, database: str, table: str, reason: str
) -> None:
    """Rows of `temp.orders` were gone with the connection, in runs that succeeded."""
    with pytest.raises(InvalidRequest, match=reason):
        SqlSink(SqlTable(database, table), context_in(tmp_path, FIRST))


def test_one_table_is_one_place_in_every_spelling(tmp_path: Path) -> None:
    """SQLite takes `orders` and `Orders` for one table: a restore of the one lost rows of the other."""
    (tmp_path / "linked").symlink_to(tmp_path)
    context = context_in(tmp_path, FIRST)
    sink = SqlSink(SqlTable(f"sqlite:///{tmp_path}/shop.db", "Orders"), context)
    for folder, table in (("", "orders"), ("/linked", "ORDERS"), ("", "main.Orders"), ("", "")):
        other = SqlSink(SqlTable(f"sqlite:///{tmp_path}{folder}/shop.db", table), context)
        assert other.place == sink.place == f"sqlite:///{tmp_path}/shop.db#orders"
    sink.publish([staged(context.work_dir, 0, LONGS, [(1, 1)])], permit(1))
    theirs = context_in(tmp_path, FIRST, pipeline="other")
    with pytest.raises(InvalidRequest, match="is written by pipeline 'shop'"):
        SqlSink(SqlTable(f"sqlite:///{tmp_path}/shop.db", "ORDERS"), theirs).take_over()
    renamed = in_attempt(context, replace(FIRST, epoch=CoordinatorEpoch(2)))
    position = SqlSink(SqlTable(f"sqlite:///{tmp_path}/shop.db", "oRDERS"), renamed).position()
    assert position is not None
    assert position.head == 1
