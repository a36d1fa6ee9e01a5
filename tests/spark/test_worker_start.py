"""Spark's Python processes import the installed pyspark, which is compiled, and not the zip Spark puts before it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dagster_ckpt.spark.worker_start.sitecustomize import without_zips


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder of packages with an installed pyspark, its zip inside."""
    home = tmp_path / "site-packages" / "pyspark"
    (home / "python" / "lib").mkdir(parents=True)
    (home / "__init__.py").touch()
    return home.parent


def test_only_a_zip_whose_package_can_be_imported_instead_is_left_out(packages: Path, tmp_path: Path) -> None:
    lib = packages / "pyspark" / "python" / "lib"
    (packages / "py4j-0.10.dist-info").mkdir()
    zipped, py4j, other_py4j = (
        str(lib / name) for name in ("pyspark.zip", "py4j-0.10-src.zip", "py4j-0.9-src.zip")
    )
    others = ["", str(tmp_path), other_py4j, str(packages)]
    assert without_zips([zipped, py4j, *others]) == others
    assert without_zips(["", zipped, py4j]) == ["", zipped, py4j], "the packages are not on the path"
    (tmp_path / "linked").symlink_to(packages)  # Spark gives the real path
    assert without_zips([zipped, str(tmp_path / "linked")]) == [str(tmp_path / "linked")]
    elsewhere = str(tmp_path / "spark-4" / "python" / "lib" / "pyspark.zip")
    assert without_zips([elsewhere, *others]) == [elsewhere, *others], "a Spark that is not a package"


def test_workers_of_a_session_import_the_package(spark: SparkSession) -> None:
    def place(rows):  # type: ignore[no-untyped-def]
        import sys

        import py4j
        import pyspark

        for _ in rows:
            yield f"{pyspark.__file__} {py4j.__file__}\n{sys.path}"

    found, path = spark.sparkContext.parallelize([1], 1).mapPartitions(place).collect()[0].split("\n")
    assert ".zip" not in found
    assert "worker_start" not in path
    assert "worker_start" not in os.environ.get("PYTHONPATH", "")
