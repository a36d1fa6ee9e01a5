"""Tables of SQLite and PostgreSQL pass the contract of sinks."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
import sqlalchemy

from dagster_ckpt.authoring.targets import SqlTable
from dagster_ckpt.spark.sink.port import Sink, SinkContext
from dagster_ckpt.spark.sql.positions import Positions
from dagster_ckpt.spark.sql.sink import SqlSink
from dagster_ckpt.spark.sql.table import SqlTable as SqlTransactionTable
from dagster_ckpt.testing.sink_contract import SinkContract


class SqlContract(SinkContract):
    can_fork = False
    can_load = True
    can_be_raced = False  # a transaction holds the position's row
    keeps: ClassVar[bool] = True

    def steps(self) -> Sequence[tuple[object, str]]:
        return [(SqlTransactionTable, "execute"), (Positions, "write"), (sqlalchemy.Connection, "commit")]


class TestSqliteWithBeforeImages(SqlContract):
    def open(self, context: SinkContext) -> Sink:
        context.table_dir.mkdir(parents=True, exist_ok=True)
        url = f"sqlite:///{context.table_dir}/shop.db"
        return SqlSink(SqlTable(url, keep_before_images=self.keeps), context)

    def rows(self, place: str) -> list[tuple[int, int]]:
        path, _, table = place.removeprefix("sqlite:///").partition("#")
        with contextlib.closing(sqlite3.connect(path)) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [table]).fetchall():
                return []
            return connection.execute(f"SELECT k, v FROM {table}").fetchall()


class TestSqlite(TestSqliteWithBeforeImages):
    keeps = False
    can_roll_back = False


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
        return SqlSink(SqlTable(self._url, f"{schema}.orders", keep_before_images=self.keeps), context)

    def rows(self, place: str) -> list[tuple[int, int]]:
        schema, _, table = place.partition("#")[2].partition(".")
        with self._engine.connect() as connection:
            if not sqlalchemy.inspect(connection).has_table(table, schema=schema):
                return []
            found = connection.exec_driver_sql(f'SELECT k, v FROM "{schema}"."{table}"').all()
        return [(row.k, row.v) for row in found]


class TestPostgres(TestPostgresWithBeforeImages):
    keeps = False
    can_roll_back = False
