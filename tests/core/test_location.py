"""Places as URIs, and back."""

from __future__ import annotations

import pytest
from sqlalchemy.engine import make_url

from dagster_ckpt.core.paths import sqlite_path, sqlite_url


@pytest.mark.parametrize("path", ["/data/store.db", "/my data/%20.db", "/what?one/a#b.db", "/ü/100%.db"])
def test_a_sqlite_file_is_itself_in_its_url(path: str) -> None:
    assert sqlite_path(sqlite_url(path)) == path
    assert make_url(sqlite_url(path)).database == path
