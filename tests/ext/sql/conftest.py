"""A fresh database of each kind, and SQL in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from tests.ext.sql.tables import Run


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def run_sql(url: str) -> Iterator[Run]:
    address = url.replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(address, poolclass=sqlalchemy.NullPool)

    def run(statement: str) -> list[Any]:
        with engine.begin() as connection:
            done = connection.execute(sqlalchemy.text(statement))
            return [tuple(row) for row in done] if done.returns_rows else []

    yield run
    engine.dispose()
