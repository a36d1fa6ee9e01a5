"""Values and names in databases are shown as they are, or refused before their checkpoint."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, ClassVar

import pytest

from dagster_ckpt.ext.sql.sink import SqlSink
from dagster_ckpt.ext.sql.target import SqlTable
from dagster_ckpt.spark.sink.port import Sink, SinkContext
from dagster_ckpt.testing import ValueContract
from dagster_ckpt.testing.sinks.values import BEYOND_YEARS, NO_UTF8, RARE_TYPES, VALUES

NESTED = frozenset(name for name in VALUES if name.startswith(("struct", "array", "map")))
NEVER = NO_UTF8 | BEYOND_YEARS | RARE_TYPES | NESTED


class SqlValues(ValueContract):
    url: ClassVar[str]

    def open(self, context: SinkContext) -> Sink:
        return SqlSink(SqlTable(self.url, keep_before_images=True), context)


class TestSqliteValues(SqlValues):
    refuses = NEVER | {"float_nan", "double_nan"}

    @pytest.fixture(autouse=True)
    def _database(self, tmp_path: Any) -> None:
        type(self).url = f"sqlite:///{tmp_path}/shop.db"

    def spelled(self, value: Any) -> Any:
        match value:
            case Decimal():
                return f"{value:f}"
            case dt.datetime():
                return value.replace(tzinfo=None)
            case float():
                return value + 0.0  # one zero
        return value


class TestPostgresValues(SqlValues):
    refuses = NEVER | {"text_nul", "collated_nul", "ctid", "xmin", "é" * 60}

    @pytest.fixture(autouse=True)
    def _database(self, postgres_url: str) -> None:
        type(self).url = postgres_url
