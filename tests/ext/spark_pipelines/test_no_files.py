"""A pattern or relative path that finds no file is told in the run's log: Spark waits, and the run has no rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ext.spark_pipelines.conftest import Project
from tests.ext.spark_pipelines.test_projects import as_rows


def test_a_path_that_finds_no_file_is_told_when_a_run_starts(
    written: Callable[..., Project], caplog: pytest.LogCaptureFixture
) -> None:
    project = written(
        """
FEED = Path.cwd() / "feed"
def rows(path):
    return spark.readStream.schema("k STRING").json(str(path))
@dp.table
def there():
    return rows(FEED / "orders" / "*.json").union(rows(FEED / "empty"))
@dp.table
def elsewhere():
    return rows(FEED / "n*ne" / "*.json").union(rows("feed-of-nobody/*.json"))
"""
    )
    (project.root / "feed" / "empty").mkdir()
    project.feed("orders", {"k": "a"})
    pipeline = project.pipeline()

    def told() -> list[str]:
        caplog.clear()
        project.epoch(pipeline)
        return sorted(said for said in caplog.messages if "no file matches" in said)

    here, wanted = Path.cwd(), "(transformations/main.py:"
    relative, whole = sorted(told(), key=lambda said: "relative" not in said)
    assert whole.startswith(f"flow 'elsewhere' {wanted}")
    assert whole.endswith(
        f"no file matches {project.root}/feed/n*ne/*.json, and there are no rows until one does"
    )
    assert f"no file matches {here}/feed-of-nobody/*.json" in relative
    assert relative.endswith(f"; relative paths are those of the process, {here}")
    project.feed("none", {"k": "b"})
    assert told() == [relative]
    assert project.rows("elsewhere") == as_rows({"k": "b"})
