"""A deployment on disk (SQLite, local folders), and the program run against it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dagster_ckpt.adapters.fsspec_storage import open_storage
from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore
from dagster_ckpt.cli.app import main
from tests.operations.world import BASE, SAVEPOINTS, World


@dataclass
class Program:
    """Runs ``dagster-ckpt``."""

    base: Path

    def __call__(self, *arguments: str, code: int = 0) -> Result:
        """Run it on the deployment and insist on the exit code."""
        return self.bare(*arguments, "--base", str(self.base), code=code)

    def bare(self, *arguments: str, code: int = 0) -> Result:
        """Run it without locations."""
        result = CliRunner().invoke(main, list(arguments))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, f"exit code {result.exit_code}\n{result.output}"
        return result

    def json(self, *arguments: str, code: int = 0) -> Any:
        """Run it with --json and return the document."""
        return json.loads(self(*arguments, "--json", code=code).stdout)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("DAGSTER_HOME", "DAGSTER_CKPT_BASE", "DAGSTER_CKPT_STORE", "DAGSTER_CKPT_STORAGE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "base"


@pytest.fixture
def world(tmp_path: Path, base: Path) -> Iterator[World]:
    """The same hand-made snapshots as in the tests of operations, on disk."""
    store = SqlCoordinatorStore(f"sqlite:///{base / 'coordinator.db'}")
    world = World(tmp_path / "queries", store=store)
    world.storages[BASE] = open_storage(str(base / "checkpoints"))
    world.storages[SAVEPOINTS] = open_storage(str(base / "savepoints"))
    yield world
    store.close()


@pytest.fixture
def run(base: Path) -> Program:
    return Program(base)
