"""Rows of a write are those its tasks counted, and what is wrong with an executor is said in one sentence."""

from __future__ import annotations

import shutil
import zipfile
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from dagster_ckpt import CheckpointCoordinatorResource, InvalidRequest, Unavailable
from dagster_ckpt.dagster.checks import dry_run
from dagster_ckpt.spark.channel import sink
from dagster_ckpt.spark.channel.sink import write_staged
from dagster_ckpt.spark.cluster import counted, probe
from dagster_ckpt.spark.cluster.sent import PACKAGE, zipped
from dagster_ckpt.spark.files import DataFile, parquet_files
from dagster_ckpt.spark.java.sessions import is_local
from dagster_ckpt.version import __version__


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the session's tasks for those of other processes."""
    monkeypatch.setattr(counted, "is_local", lambda spark: False)


def rows(spark: SparkSession, number: int) -> DataFrame:
    return spark.range(number, numPartitions=2).selectExpr("id", "id % 2 AS part")


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("partition_by", [(), ("part",)])
@pytest.mark.parametrize("number", [0, 1, 1000])
def test_the_rows_that_are_found_are_those_that_were_counted(
    spark: SparkSession, tmp_path: Path, number: int, partition_by: tuple[str, ...]
) -> None:
    files = write_staged(rows(spark, number), tmp_path / "batch", tmp_path, partition_by)
    assert sum(file.rows for file in files) == number


@pytest.mark.usefixtures("elsewhere")
def test_a_listing_that_this_machine_has_cached_is_looked_at_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Path] = []

    def cached_at_first(root: Path, folder: Path) -> tuple[DataFile, ...]:
        looked.append(folder)
        return parquet_files(root, folder) if len(looked) > 1 else ()

    monkeypatch.setattr(sink, "parquet_files", cached_at_first)
    files = write_staged(rows(spark, 7), tmp_path / "batch", tmp_path)
    assert sum(file.rows for file in files) == 7
    assert {path.suffix for path in (tmp_path / "batch").iterdir()} <= {".parquet", ".crc"}


@pytest.mark.usefixtures("elsewhere")
def test_files_that_are_not_found_are_no_empty_batch(spark: SparkSession, tmp_path: Path) -> None:
    wrote = counted.CountedRows(rows(spark, 7))
    wrote.frame.write.parquet(str(tmp_path / "batch"))
    shutil.rmtree(tmp_path / "batch")
    with pytest.raises(
        Unavailable, match=r"wrote 7 rows to .*, and the driver finds 0 of them there: to an executor"
    ):
        wrote.compare((), tmp_path / "batch")


@pytest.mark.usefixtures("elsewhere")
def test_files_that_a_repeated_task_has_left_are_not_appended(spark: SparkSession, tmp_path: Path) -> None:
    wrote = counted.CountedRows(rows(spark, 7))
    wrote.frame.write.parquet(str(tmp_path / "batch"))
    rows(spark, 2).write.mode("append").parquet(str(tmp_path / "batch"))
    found = parquet_files(tmp_path, tmp_path / "batch")
    with pytest.raises(
        Unavailable, match=r"wrote 7 rows to .*, and the driver finds 9 there: a task that was repeated"
    ):
        wrote.compare(found, tmp_path / "batch")


@pytest.mark.usefixtures("elsewhere")
def test_a_count_that_never_comes_is_not_waited_for_without_end(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counted, "PATIENCE", 0.0)
    with pytest.raises(Unavailable, match="Spark has not said how many rows it wrote to "):
        counted.CountedRows(rows(spark, 7)).compare((), tmp_path)


def test_tasks_of_this_process_are_neither_counted_nor_probed(spark: SparkSession, tmp_path: Path) -> None:
    assert is_local(spark)
    frame = rows(spark, 7)
    assert counted.CountedRows(frame).frame is frame
    assert probe.prove_executors(spark, {"work_dir": tmp_path / "work"}) == 0
    assert not (tmp_path / "work").exists()


def test_a_restore_that_executors_cannot_try_says_nothing_of_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> int:
        raise InvalidRequest("executor 3 does not see work_dir")

    monkeypatch.setattr(dry_run, "prove_executors", refuse)
    resources = SimpleNamespace(spark=SimpleNamespace(session=None))
    where = CheckpointCoordinatorResource(base_dir=str(tmp_path))
    nothing: Any = None
    with pytest.raises(Unavailable, match="the restore was not tried: executor 3 does not see work_dir"):
        dry_run.try_restore(resources, nothing, where, nothing)


# --- sentences --------------------------------------------------------------------------------------------------

ANSWER: dict[str, Any] = {
    "number": 0,
    "host": "node-7",
    "user": "yarn",
    "python": "/usr/bin/python3",
    "package": __version__,
    "pyarrow": "22.0.0",
    "places": {},
}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            {"package": "! No module named 'dagster_ckpt'"},
            "cannot import dagster_ckpt with /usr/bin/python3 (No ",
        ),
        ({"package": "0.0.1"}, f"has dagster_ckpt 0.0.1 and the driver {__version__}: set ship_package"),
        ({"pyarrow": "! [UNSUPPORTED_PACKAGE_VERSION] x\nmore"}, "has no pyarrow that PySpark can use with "),
        (
            {"places": {"work_dir": {"unread": ""}}},
            "does not see what the driver has written to work_dir ({place}). ",
        ),
        (
            {"places": {"work_dir": {"unread": "Permission denied"}}},
            "to work_dir ({place}): Permission denied. ",
        ),
        (
            {"places": {"work_dir": {"unwritten": "Permission denied"}}},
            ", as user yarn, cannot write to a folder that",
        ),
        (
            {"places": {"work_dir": {"wrote": "gone"}}},
            "the driver does not see what executor 3 on node-7 has written",
        ),
    ],
)
def test_what_is_wrong_with_an_executor_is_one_sentence(
    tmp_path: Path, answer: dict[str, Any], said: str
) -> None:
    folders = {"work_dir": tmp_path / ".probe-1"}
    folders["work_dir"].mkdir()
    with pytest.raises(InvalidRequest) as refused:
        probe._refuse({**ANSWER, **answer}, "executor 3 on node-7", folders, "token")
    assert said.format(place=tmp_path) in str(refused.value)
    assert "executor 3 on node-7" in str(refused.value)


def test_another_python_on_executors_is_told() -> None:
    spark_says = (
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different "
        "version: 3.9 than that in driver: 3.12, PySpark cannot run with different minor versions."
    )
    assert "executors run Python 3.9 and the driver 3.12" in str(probe._without_python(spark_says))
    nothing_there = 'java.io.IOException: Cannot run program "python9": error=2, No such file or directory'
    assert "there is no Python called 'python9' where executors run" in str(
        probe._without_python(nothing_there)
    )
    assert probe._without_python("anything else") is None


def test_the_package_that_is_sent_is_the_same_for_the_same_modules() -> None:
    content = zipped(PACKAGE)
    assert content == zipped(PACKAGE)
    names = zipfile.ZipFile(BytesIO(content)).namelist()
    assert {"dagster_ckpt/__init__.py", "dagster_ckpt/spark/channel/source.py"} <= set(names)
    assert all(name.endswith(".py") for name in names)
