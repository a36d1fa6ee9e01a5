"""Projects of Spark declarative pipelines in folders of their own, with feeds that tests fill."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    CheckpointedPipeline,
    pipeline_from_spark_project,
    run_epoch,
)
from dagster_ckpt.programs import EpochEnd
from tests.spark_session import temporary_views
from tests.tables import rows_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROJECTS = Path(__file__).with_name("projects")
Rows = list[tuple[Any, ...]]


def rows_of(folder: Path, suffix: str = "") -> Rows:
    """Return what readers find in a table, by column name, sorted; ``suffix``: of files that Spark itself has left."""
    files = folder.glob(f"part-*{suffix}.parquet")
    left = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    found = rows_in(folder) if (folder / "_delta_log").is_dir() and not suffix else left
    return sorted((tuple(sorted(row.items())) for row in found), key=repr)


@dataclass
class Project:
    """A copy of a project, and where its checkpoints and tables are."""

    root: Path
    spark: SparkSession
    files: dict[str, int] = field(default_factory=dict)

    def feed(self, name: str, *rows: dict[str, Any]) -> None:
        """Add a file of rows to a feed."""
        folder = self.root / "feed" / name
        folder.mkdir(parents=True, exist_ok=True)
        self.files[name] = number = self.files.get(name, 0) + 1
        staged = folder / f".{number}"
        staged.write_text("".join(json.dumps(row) + "\n" for row in rows))
        staged.rename(folder / f"{number:03}.json")

    @property
    def coordinator(self) -> CheckpointCoordinatorResource:
        return CheckpointCoordinatorResource(base_dir=str(self.root / "lab"), table_dir=str(self.tables))

    @property
    def tables(self) -> Path:
        return self.root / "tables"

    def pipeline(self, **more: Any) -> CheckpointedPipeline:
        return pipeline_from_spark_project(self.root, spark=self.spark, **more)

    def epoch(
        self,
        pipeline: CheckpointedPipeline | None = None,
        where: CheckpointCoordinatorResource | None = None,
        **more: Any,
    ) -> EpochEnd:
        chosen = pipeline or self.pipeline()
        return run_epoch(chosen, coordinator=where or self.coordinator, spark=self.spark, **more)

    def fork_from(self, checkpoint: str, **restore: Any) -> dict[str, Rows]:
        """Run an epoch of a fork that begins with a checkpoint, and return its tables."""
        pipeline, folder = self.pipeline(), self.root / "forks"
        begin = self.root / "lab" / "checkpoints" / pipeline.name / checkpoint
        run_epoch(
            pipeline.fork("forked", table_dir=str(folder)),
            coordinator=CheckpointCoordinatorResource(base_dir=str(self.root / "lab")),
            spark=self.spark,
            restore={"restore_from": str(begin), "fork": True, **restore},
        )
        return {table.name: rows_of(table) for table in folder.iterdir()}

    def rows(self, table: str) -> Rows:
        return rows_of(self.tables / table)

    def all_rows(self) -> dict[str, Rows]:
        return {folder.name: rows_of(folder) for folder in self.tables.iterdir() if folder.is_dir()}


@pytest.fixture
def project(tmp_path: Path, spark: SparkSession) -> Callable[[str], Project]:
    """Returns a copy of one of our example projects."""

    def copied(name: str) -> Project:
        root = tmp_path / name
        shutil.copytree(PROJECTS / name, root)
        return Project(root, spark)

    return copied


def write_project(root: Path, spark: SparkSession, python: str, **files: str) -> Project:
    """Make a project of one Python file, and of further ones by name."""
    (root / "transformations").mkdir(parents=True)
    (root / "feed" / "orders").mkdir(parents=True)
    (root / "spark-pipeline.yml").write_text(
        "name: written\nstorage: file:///unused\nlibraries:\n  - glob:\n      include: transformations/**\n"
    )
    head = "from pyspark import pipelines as dp\nfrom pyspark.sql import functions as F\nfrom pathlib import Path\n"
    (root / "transformations" / "main.py").write_text(head + python)
    for name, text in files.items():
        (root / "transformations" / name.replace("__", ".")).write_text(text)
    return Project(root, spark)


@pytest.fixture
def written(tmp_path: Path, spark: SparkSession) -> Callable[..., Project]:
    """Returns a project of one Python file, and of further ones by name."""
    return partial(write_project, tmp_path / "written", spark)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for the project of every test of a module: what Spark has left names files by their whole path."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture
def written_in_one_place(place: Path, spark: SparkSession) -> Callable[..., Project]:
    """Returns a project, in the folder in which those of other tests of the module were."""
    shutil.rmtree(place / "written", ignore_errors=True)
    return partial(write_project, place / "written", spark)


@pytest.fixture(autouse=True)
def _no_views_left_in_the_session(request: pytest.FixtureRequest) -> Iterator[None]:
    """A project's views are gone from the session after each test."""
    session = request.getfixturevalue("spark") if "spark" in request.fixturenames else None
    before = set() if session is None else temporary_views(session)
    yield
    if session is not None:
        assert temporary_views(session) <= before
