"""What became of files that were read: those of this machine, by the newest entry that names them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dagster_ckpt.spark.plan.files import no_such_columns, why_moved, written_again


def noted(query: Path, entry: str, *files: tuple[str, float]) -> None:
    """Write an entry of a file source's log, as Spark does."""
    log = query / "sources" / "0" / entry
    log.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"path": path, "timestamp": int(time * 1000), "batchId": 0}) for path, time in files]
    log.write_text("\n".join(["v1", *lines]))


def there(file: Path, time: float) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{}")
    os.utime(file, (time, time))
    return file


def test_a_file_of_an_object_store_is_not_one_of_this_machine_under_the_same_path(tmp_path: Path) -> None:
    """``s3a://lake/data/0.json`` was compared with ``/data/0.json``."""
    file = there(tmp_path / "data" / "0.json", 2.0)
    for place in ("s3a://lake", "hdfs://name:8020", "abfss://lake@account"):
        noted(tmp_path / "query", "0", (f"{place}{file}", 1.0))
        assert written_again(tmp_path / "query") == []
    for place in ("file://", "file:", ""):
        noted(tmp_path / "query", "0", (f"{place}{file}", 1.0))
        assert written_again(tmp_path / "query") == [str(file)]


def test_a_file_that_spark_has_read_again_itself_is_as_it_was_read(tmp_path: Path) -> None:
    """Spark forgets files that are older than maxFileAge, and reads what is written there later."""
    file = there(tmp_path / "data" / "0.json", 2.0)
    noted(tmp_path / "query", "0", (str(file), 1.0))
    noted(tmp_path / "query", "1", (str(file), 2.0))
    assert written_again(tmp_path / "query") == []


@pytest.mark.parametrize("folder", ["plain", "a#b", "a b", "100%", "100%20"])
@pytest.mark.parametrize("pattern", ["*.json", "?.json", "{0,1}.json"])
def test_files_are_followed_from_folders_of_any_name(tmp_path: Path, folder: str, pattern: str) -> None:
    """Plans have a source's path as it is, and logs have it quoted."""
    old, new = tmp_path / folder / "0.json", there(tmp_path / "new" / "0.json", 1.0)
    noted(tmp_path / "query", "0", (old.as_uri(), 1.0))
    before, after = f"FileSource[file:{old.parent}/{pattern}]", f"FileSource[{new.parent}/{pattern}]"
    assert why_moved(tmp_path / "query", [before], [after]) == f"{old}, which was read, lies at {new} now"
    there(old, 1.0)
    assert "which was read" in why_moved(tmp_path / "query", [before], [after]), "it was copied"
    old.write_text("another one")
    os.utime(old, (1.0, 1.0))
    assert why_moved(tmp_path / "query", [before], [after]) == ""


@pytest.mark.parametrize(
    ("schema", "feed", "told"),
    [
        (
            "order LONG, amount DOUBLE",
            "json",
            "none of the columns that its source declares (order, amount)",
        ),
        ("order LONG", "parquet", "so that they are null: its own are id, total"),
        (
            "order LONG, day STRING",
            "parquet/day=1",
            "(order), so that they are null: its own are id, total",
        ),
        ("ID LONG, order LONG", "parquet", ""),
        ("total LONG", "json", ""),
        ("order LONG", "csv", ""),
    ],
)
def test_declared_columns_of_which_a_file_has_none_are_told(
    spark: SparkSession, tmp_path: Path, schema: str, feed: str, told: str
) -> None:
    """``total`` is left out of the first row, as JSON leaves out what is null."""
    place, kind = tmp_path / feed, feed.partition("/")[0]
    rows = spark.sql("SELECT 1L id, NULL total UNION ALL SELECT 2L, 7L").coalesce(1)
    getattr(rows.write, kind)(str(place))
    frame = spark.readStream.schema(schema).format(kind).load(str(tmp_path / kind))
    found = "".join(no_such_columns("source 'orders'", frame))
    assert told in found
    assert bool(told) == bool(found)
    assert found.startswith(f"source 'orders': {place}/part-" if told else "")


@pytest.mark.parametrize(
    ("content", "options", "told"),
    [
        (b'{"id": 1}\n{"id":\n', {}, "row 2 of"),
        (b'[\n{"id": 1}\n]\n', {}, "row 1 of"),
        (b'{"id":\n1}\n', {"multiLine": "true"}, ""),
        (b'{"id":\n', {"mode": "FAILFAST"}, ""),
        (b"{'id': 1}\n", {}, ""),
        (b"{id: 1}\n", {"allowUnquotedFieldNames": "true"}, ""),
        (b'{"id": NaN}\n\n', {}, ""),
        (b"\x1f\x8b\x08\x00\xff\n", {}, ""),
    ],
)
def test_a_row_of_which_spark_makes_nulls_is_told(
    spark: SparkSession, tmp_path: Path, content: bytes, options: dict[str, str], told: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_bytes(content)
    for schema, said in (("id INT", told), ("id INT, _corrupt_record STRING", "")):
        reader = spark.readStream.schema(schema).options(**options)
        found = "".join(no_such_columns("source 'orders'", reader.json(str(tmp_path / "in"))))
        assert said in found
        assert bool(said) == bool(found), found
