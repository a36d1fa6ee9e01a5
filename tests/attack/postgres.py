"""The database of a played pipeline in PostgreSQL: what stands for each table's file, copied and put back with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from dagster_ckpt.authoring.targets import SinkTarget
from dagster_ckpt.ext.sql.target import SqlTable
from tests.attack import deployment, judge, outsides, played
from tests.attack.deployment import Deployment
from tests.attack.outsides import Kind, Row


@dataclass
class Database:
    """One database for all tables of a deployment, and its copies."""

    url: str
    copies: dict[Path, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    def copy_to(self, folder: Path) -> None:
        """Keep a copy by the name of a folder."""
        self.copies[folder] = f"{self.name}_copy_{len(self.copies)}"
        self._admin(f"CREATE DATABASE {self.copies[folder]} TEMPLATE {self.name}")

    def put_back(self, folder: Path) -> None:
        """Make it as it was in a copy."""
        self._admin(f"DROP DATABASE {self.name} WITH (FORCE)")
        self._admin(f"CREATE DATABASE {self.name} TEMPLATE {self.copies[folder]}")

    def _admin(self, statement: str) -> None:
        closed = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        with psycopg.connect(f"{self.url.rpartition('/')[0]}/postgres", autocommit=True) as connection:
            connection.execute(closed, (self.name,))
            connection.execute(statement)  # type: ignore[arg-type]

    def records(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table; none where it was not made."""
        with psycopg.connect(self.url, row_factory=dict_row) as connection:
            try:
                return connection.execute(f'SELECT * FROM "{table}"').fetchall()  # type: ignore[arg-type]
            except psycopg.errors.UndefinedTable:
                return []

    # --- in place of SQLite's --------------------------------------------------------------------------------------

    def target_of(self, kind: Kind, table: str, folder: Path, *given: Any) -> SinkTarget:
        if kind is not Kind.SQL:
            return outsides.target_of(kind, table, folder, *given)
        return SqlTable(self.url, table, keep_before_images=True)

    def rows_of(self, kind: Kind, place: Path) -> list[Row]:
        if kind is not Kind.SQL:
            return outsides.rows_of(kind, place)
        return sorted((row["k"], row["v"]) for row in self.records(place.name))

    def records_of(self, kind: Kind, place: Path) -> list[dict[str, Any]]:
        return self.records(place.name) if kind is Kind.SQL else outsides.records_of(kind, place)


@contextmanager
def in_postgres(url: str) -> Iterator[None]:
    """Let the database of played pipelines be one of PostgreSQL."""
    database = Database(url)
    copy, put_back = Deployment.copy_to, Deployment.put_back_all

    def copied(self: Deployment, target: Path) -> Path:
        database.copy_to(target)
        return copy(self, target)

    def was_put_back(self: Deployment, folder: Path) -> None:
        if self.root.name == "ours":
            database.put_back(folder)
        put_back(self, folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(played, "target_of", database.target_of)
        patch.setattr(deployment, "rows_of", database.rows_of)
        patch.setattr(judge, "records_of", database.records_of)
        patch.setattr(Deployment, "copy_to", copied)
        patch.setattr(Deployment, "put_back_all", was_put_back)
        yield
