"""Parts of Dagster's SQLite storages that are made anew for each run and event, and always the same: made once here.

An event takes an engine of its own, which compiles its statements again; a run's log has a database of its own, whose
revision is looked up in two dozen files of migrations. A third of a test's Python was that.
"""

from __future__ import annotations

import functools
from typing import Any

from alembic.config import Config
from alembic.script import ScriptDirectory
from dagster._core.storage.event_log.sqlite import sqlite_event_log
from dagster._core.storage.runs.sqlite import sqlite_run_storage
from dagster._core.storage.schedules.sqlite import sqlite_schedule_storage
from sqlalchemy import Engine, NullPool, create_engine

_ENGINES = 64


def make_once() -> None:
    """Let this process keep engines, which hold no connection, and migrations, which no test changes."""
    for storage in (sqlite_event_log, sqlite_run_storage, sqlite_schedule_storage):
        storage.create_engine = _engine
    ScriptDirectory.from_config = classmethod(_script_directory)  # type: ignore[method-assign,assignment]


def _engine(url: str, *, poolclass: type[NullPool], connect_args: dict[str, Any] | None = None) -> Engine:
    return _kept_engine(url, poolclass, tuple((connect_args or {}).items()))


@functools.lru_cache(_ENGINES)
def _kept_engine(url: str, poolclass: type[NullPool], connect_args: tuple[tuple[str, Any], ...]) -> Engine:
    return create_engine(url, poolclass=poolclass, connect_args=dict(connect_args))


_read = ScriptDirectory.from_config
_kept_directories: dict[str | None, ScriptDirectory] = {}


def _script_directory(_: type[ScriptDirectory], config: Config) -> ScriptDirectory:
    where = config.get_alembic_option("script_location")
    if where not in _kept_directories:
        _kept_directories[where] = _read(config)
    return _kept_directories[where]
