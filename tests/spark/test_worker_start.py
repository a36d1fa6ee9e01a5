"""Spark's Python processes import the installed pyspark, which is compiled, and not the zip Spark puts before it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.spark.worker_start.sitecustomize import without_zipped_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder of packages with an installed pyspark, its zip inside."""
    home = tmp_path / "site-packages" / "pyspark"
    (home / "python" / "lib").mkdir(parents=True)
    (home / "__init__.py").touch()
    return home.parent


def test_only_a_zip_whose_package_can_be_imported_instead_is_left_out(packages: Path, tmp_path: Path) -> None:
    zipped = str(packages / "pyspark" / "python" / "lib" / "pyspark.zip")
    py4j = str(packages / "pyspark" / "python" / "lib" / "py4j-src.zip")
    others = ["", str(tmp_path), py4j, str(packages)]
    assert without_zipped_pyspark([zipped, *others]) == others
    assert without_zipped_pyspark([zipped, py4j]) == [zipped, py4j], "the package is not on the path"
    elsewhere = str(tmp_path / "spark-4" / "python" / "lib" / "pyspark.zip")
    assert without_zipped_pyspark([elsewhere, *others]) == [elsewhere, *others], (
        "a Spark that is not a package"
    )


def test_workers_of_a_session_import_the_package(spark: SparkSession) -> None:
    def place(rows):  # type: ignore[no-untyped-def]
        import sys

        import pyspark

        for _ in rows:
            yield f"{pyspark.__file__}\n{sys.path}"

    found, path = spark.sparkContext.parallelize([1], 1).mapPartitions(place).collect()[0].split("\n")
    assert "pyspark.zip" not in found
    assert "worker_start" not in path
    assert "worker_start" not in os.environ.get("PYTHONPATH", "")
