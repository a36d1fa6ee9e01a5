"""Tables of SQLite and PostgreSQL pass the contract of sinks."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import sqlalchemy

from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.sql.positions import Positions
from dagster_ckpt.ext.sql.sink import SqlSink
from dagster_ckpt.ext.sql.table import TableTransaction as SqlTransactionTable
from dagster_ckpt.ext.sql.target import SqlTable
from dagster_ckpt.spark.sink.port import Sink, SinkContext
from dagster_ckpt.testing.sink_contract import SinkContract


class SqlContract(SinkContract):
    says_whose = True
    can_load = can_load_shown = changes_together = goes_back_together = True
    can_be_raced = False  # a transaction holds the position's row
    keys_not_taken = frozenset({"null"})
    keeps: ClassVar[bool] = True

    def steps(self) -> Sequence[tuple[object, str]]:
        return [(SqlTransactionTable, "execute"), (Positions, "write"), (sqlalchemy.Connection, "commit")]


class WithoutBeforeImages(SqlContract):
    keeps = False
    can_roll_back = False
    can_fork = False  # but from what the table shows
    can_load_shown = False

    def test_a_sink_that_cannot_fork_says_what_to_do(self, tmp_path: Path) -> None:
        run = self.begun(tmp_path)
        run.batch([(1, 1)])
        run.publish(1)
        early = run.cut(2)
        run.batch([(2, 2)])
        late = run.cut(3)
        with pytest.raises(InvalidRequest, match=r"never published .* sinks="):
            self.fork_of(run, tmp_path).sink.fork(late.cut)
        run.publish(3)
        with pytest.raises(InvalidRequest, match=r"keep_before_images=True.* sinks="):
            self.fork_of(run, tmp_path).sink.fork(early.cut)
        fork = self.fork_of(run, tmp_path)
        fork.sink.fork(late.cut)
        assert self.shown(fork) == late.rows
        with pytest.raises(InvalidRequest, match="of its own database only"):
            fork.sink.fork(replace(late.cut, snapshot=TableSnapshot(uri="sqlite:////other.db#orders")))


class TestSqliteWithBeforeImages(SqlContract):
    keys_not_taken = frozenset({"null", "NaN"})

    def open(self, context: SinkContext) -> Sink:
        is_fork = context.table_dir.name != "shop"  # another table of the same database
        folder = context.table_dir.parent / "shop" if is_fork else context.table_dir
        folder.mkdir(parents=True, exist_ok=True)
        target = SqlTable(
            f"sqlite:///{folder}/shop.db",
            f"forked_{context.pipeline}_{context.name}" if is_fork else "",
            self.keeps,
        )
        return SqlSink(target, context)

    def rows(self, place: str) -> list[tuple[int, int]]:
        path, _, table = place.removeprefix("sqlite:///").partition("#")
        with contextlib.closing(sqlite3.connect(path)) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [table]).fetchall():
                return []
            return connection.execute(f"SELECT k, v FROM {table}").fetchall()


class TestSqlite(WithoutBeforeImages, TestSqliteWithBeforeImages):
    pass


class TestPostgresWithBeforeImages(SqlContract):
    """Each place is a schema of one database: databases take long to make."""

    @pytest.fixture(autouse=True)
    def _database(self, postgres_url: str) -> None:
        self._url = postgres_url.replace("postgresql://", "postgresql+psycopg://")
        self._engine = sqlalchemy.create_engine(self._url, poolclass=sqlalchemy.NullPool)
        self._schemas: dict[Path, str] = {}

    def open(self, context: SinkContext) -> Sink:
        schema = self._schemas.get(context.table_dir)
        if schema is None:
            schema = self._schemas[context.table_dir] = f"Place {len(self._schemas)}"
            with self._engine.begin() as connection:
                connection.exec_driver_sql(f'CREATE SCHEMA "{schema}"')
        return SqlSink(
            SqlTable(self._url, f"{schema}.{context.name}", keep_before_images=self.keeps), context
        )

    def rows(self, place: str) -> list[tuple[int, int]]:
        schema, _, table = place.partition("#")[2].partition(".")
        with self._engine.connect() as connection:
            if not sqlalchemy.inspect(connection).has_table(table, schema=schema):
                return []
            found = connection.exec_driver_sql(f'SELECT k, v FROM "{schema}"."{table}"').all()
        return [(row.k, row.v) for row in found]


class TestPostgres(WithoutBeforeImages, TestPostgresWithBeforeImages):
    pass
