"""Files of checksums that Hadoop writes on a local disk: left out unless they are asked for, read where they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dagster_ckpt.spark.session import LOCAL_CHECKSUMS, follow_local_checksums


@contextmanager
def checksums(spark: SparkSession) -> Iterator[None]:
    """What a session has whose settings ask for them; the session's own setting comes back with the fixture's."""
    spark.conf.set(LOCAL_CHECKSUMS, "TRUE")
    follow_local_checksums(spark)
    try:
        yield
    finally:
        spark.conf.set(LOCAL_CHECKSUMS, "false")
        follow_local_checksums(spark)


def written(spark: SparkSession, folder: Path, rows: int = 10) -> Path:
    """Write ``rows`` rows as one file; return the file."""
    spark.range(rows).coalesce(1).selectExpr("cast(id AS STRING) AS line").write.text(str(folder))
    (file,) = folder.glob("part-*")
    return file


def sum_of(file: Path) -> Path:
    return file.with_name(f".{file.name}.crc")


def test_a_local_session_writes_none_unless_its_settings_ask_for_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert not sum_of(written(spark, tmp_path / "without")).exists()
    with checksums(spark):
        assert sum_of(written(spark, tmp_path / "with")).exists()
    assert not sum_of(written(spark, tmp_path / "again")).exists()


def test_those_that_are_there_are_read_and_those_of_a_replaced_file_go_with_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    with checksums(spark):
        damaged, replaced = written(spark, tmp_path / "damaged"), written(spark, tmp_path / "replaced")
    damaged.write_text(damaged.read_text().replace("7", "8"))
    with pytest.raises(Exception, match="Checksum"):
        spark.read.text(str(tmp_path / "damaged")).collect()
    jvm = spark._jvm
    assert jvm is not None
    path = jvm.org.apache.hadoop.fs.Path(str(replaced))
    path.getFileSystem(spark._jsc.hadoopConfiguration()).create(path, True).close()
    assert not sum_of(replaced).exists()
    assert spark.read.text(str(tmp_path / "replaced")).count() == 0
