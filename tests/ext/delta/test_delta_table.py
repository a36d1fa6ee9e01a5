"""Delta tables beside the contract: others' commits, promises a table makes, statistics, versions that go."""

from __future__ import annotations

import datetime
import decimal
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable as Reader
from deltalake import write_deltalake

from dagster_ckpt.core.ids import CoordinatorEpoch, PipelineId
from dagster_ckpt.errors import Corrupt, InvalidRequest, Unavailable
from dagster_ckpt.ext.delta.columns import COLUMNS, accepted, statistics, wanted_bounds
from dagster_ckpt.ext.delta.lake import Outside, entries_of
from dagster_ckpt.ext.delta.sink import DeltaSink
from dagster_ckpt.ext.delta.target import DeltaTable
from dagster_ckpt.ext.delta.upkeep import Garbage
from dagster_ckpt.ext.delta.version import retention_hours
from dagster_ckpt.ext.tables.staged_files import STAGED, partition_values
from dagster_ckpt.spark.sink.port import AttemptId, LaterRows, Sink, SinkContext
from dagster_ckpt.testing import SinkRun, Staging
from dagster_ckpt.testing.sinks.run import AtStep, context_in, crash_points
from tests.spark.sink.lake_keys import (
    NAMES,
    a_fork_by_another_key_is_refused,
    a_key_and_a_column_have_any_name,
    a_restore_shows_rows_by_the_key_they_were_written_by,
    rows_like,
    rows_that_are_written_again_keep_what_is_missing_in_them,
    rows_that_replace_all_keep_their_partitions,
)

FIRST = AttemptId("first", CoordinatorEpoch(1))
THEIRS = pa.table({"k": pa.array([100], pa.int64()), "v": pa.array([100], pa.int64())})


def staging(sink: Sink, context: SinkContext) -> Staging:
    return Staging(
        Path(sink.place),
        Path(sink.place) / STAGED / context.pipeline / context.uid / str(context.attempt().epoch),
    )


def begun(folder: Path, target: DeltaTable | None = None, **options: Any) -> SinkRun:
    def opened(context: SinkContext) -> Sink:
        return DeltaSink(target or DeltaTable("orders"), context)

    context = context_in(folder, FIRST, **options)
    run = SinkRun(open=opened, staging=staging, context=context, attempt=FIRST, sink=opened(context))
    run.sink.take_over()
    return run


def place_in(folder: Path) -> str:
    return begun(folder).sink.place


def keys(run: SinkRun, version: int | None = None) -> list[int]:
    return sorted(Reader(run.sink.place, version=version).to_pyarrow_table()["k"].to_pylist())


# --- beside others ----------------------------------------------------------------------------------------------


def test_rows_that_were_there_first_stay(tmp_path: Path) -> None:
    write_deltalake(place_in(tmp_path), THEIRS)
    run = begun(tmp_path)
    assert (run.sink.position() or run).head is None  # type: ignore[union-attr]
    run.batch([(1, 1)])
    run.publish(1)
    assert keys(run) == [1, 100]
    back = run.restored(None)
    assert keys(run) == [100]
    back.batch([(2, 2)])
    back.publish(2)
    assert keys(run) == [2, 100]


@pytest.mark.parametrize("limit", [None, 1, 2])
def test_commits_that_come_while_the_log_is_read_change_no_number_of_another(
    tmp_path: Path, limit: int | None
) -> None:
    """delta-rs counts them in, from the version that was read: a cut got the rows of another version."""
    run = begun(tmp_path)
    for number in (1, 2, 3):
        run.batch([(number, number)])
        run.publish(number)
    read = Reader(run.sink.place)
    for number in (4, 5):
        run.batch([(number, number)])
        run.publish(number)
    found = [(entry["version"], entry["dagster_ckpt.head"]) for entry in entries_of(read, limit)]
    assert found == [(3, 3), (2, 2), (1, 1), (0, None)][:limit]


def test_others_rows_are_never_taken_back_with_ours(tmp_path: Path) -> None:
    run = begun(tmp_path)
    run.batch([(1, 1)])
    run.publish(1)
    at = run.cut(2)
    run.batch([(2, 2)])
    run.publish(2)
    write_deltalake(run.sink.place, THEIRS, mode="append")
    version = Reader(run.sink.place).version()
    run.batch([(3, 3)])
    run.publish(3)
    newer = run.successor()
    for cut in (at.cut, None):
        assert f"version {version} (WRITE) is not of this pipeline" in newer.sink.cannot_roll_back(cut)
    with pytest.raises(InvalidRequest, match=f"version {version} "):
        newer.roll_back(at)
    assert keys(run) == [1, 2, 3, 100]
    newer.roll_back(at, LaterRows.KEEP)
    assert newer.sink.cannot_roll_back(run.cut(4).cut) == ""  # later than theirs


def test_a_column_that_somebody_renamed_is_told_and_not_made_again(tmp_path: Path) -> None:
    """All rows were written again for it; the values of before would be null under the old name."""
    run = begun(tmp_path)
    run.batch([(1, 1)])
    run.publish(1)
    rows = Reader(run.sink.place).to_pyarrow_table().rename_columns(["k", "amount"])
    write_deltalake(run.sink.place, rows, mode="overwrite", schema_mode="overwrite")
    run.batch([(2, 2)])
    with pytest.raises(InvalidRequest, match="column 'v', which earlier rows of the sink have, is gone"):
        run.publish(2)
    assert keys(run) == [1]
    run.batch([(3, 3, "c")], types={"new": pa.string()})
    write_deltalake(
        run.sink.place, rows.rename_columns(["k", "v"]), mode="overwrite", schema_mode="overwrite"
    )
    run.publish(3)
    assert keys(run) == [1, 2, 3]


def test_files_that_others_compacted_are_no_others_rows(tmp_path: Path) -> None:
    run = begun(tmp_path)
    for number in (1, 2):
        run.batch([(number, number)])
        run.publish(number)
    at = run.cut(3)
    run.batch([(3, 3)])
    run.publish(3)
    assert Reader(run.sink.place).optimize.compact()["numFilesRemoved"] == 3
    assert "can be read at version" in run.successor().roll_back(at).text
    assert keys(run) == [1, 2]


def test_a_constraint_that_somebody_adds_leaves_the_rows_of_the_newest_cut(tmp_path: Path) -> None:
    """No run succeeded any more, nor once the constraint was dropped: the restore would have undone both."""
    run = begun(tmp_path)
    run.batch([(1, 1)])
    run.publish(1)
    early = run.cut(2)
    run.batch([(2, 2)])
    run.publish(2)
    at = run.cut(3)
    Reader(run.sink.place).alter.add_constraint({"small": "v < 100"})
    newer = run.successor()
    assert newer.sink.cannot_roll_back(at.cut) == ""
    assert "(ADD CONSTRAINT) is not of this pipeline" in newer.sink.cannot_roll_back(early.cut)
    newer.roll_back(at)
    assert newer.sink.rows().to_arrow().num_rows == 2


def test_properties_that_somebody_set_outlive_a_roll_back_that_stopped_anywhere(tmp_path: Path) -> None:
    found: list[SinkRun] = []

    def work() -> Callable[[], object]:
        run = begun(tmp_path / str(len(found)))
        run.batch([(1, 1)])
        run.publish(1)
        at = run.cut(2)
        run.batch([(2, 2)])
        run.publish(2)
        theirs = {"delta.deletedFileRetentionDuration": "interval 3 days", "delta.checkpointInterval": "7"}
        Reader(run.sink.place).alter.set_table_properties(theirs)
        newer = run.successor()
        found.append(newer)
        assert newer.sink.cannot_roll_back(at.cut) == ""
        return lambda: newer.roll_back(at)

    for where in crash_points(work, [(Outside, "restore"), (Outside, "set_properties")]):
        run = found[-1]
        run.successor(epoch=9).sink.take_over()
        table = Reader(run.sink.place)
        assert table.metadata().configuration["delta.deletedFileRetentionDuration"] == "interval 3 days", (
            where
        )
        assert table.metadata().configuration["delta.checkpointInterval"] == "7", where
    assert keys(found[-1]) == [1]
    said = [entry["operation"] for entry in Reader(found[-1].sink.place).history()]
    assert said.count("SET TBLPROPERTIES") == 2, "what is set again is set once"


def test_others_that_commit_in_between_are_only_waited_for(tmp_path: Path) -> None:
    run = begun(tmp_path)
    run.batch([(1, 1)])
    run.publish(1)
    run.batch([(2, 2)])
    theirs = AtStep(1, lambda: write_deltalake(run.sink.place, THEIRS, mode="append"))
    with theirs.among([(Outside, "write")]):
        run.publish(2)
    assert theirs.was_reached
    assert keys(run) == [1, 2, 100]


def test_a_publish_reads_on_where_the_last_one_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begun(tmp_path)
    opened: list[str] = []

    def counted(uri: str, **options: Any) -> Reader:
        opened.append(uri)
        return Reader(uri, **options)

    for number in (1, 2, 3):
        run.batch([(number, number)])
        if number == 2:
            monkeypatch.setattr("deltalake.DeltaTable", counted)
        run.publish(number)
        write_deltalake(run.sink.place, THEIRS, mode="append")
    monkeypatch.undo()
    assert opened == []
    assert keys(run) == [1, 2, 3, 100, 100, 100]


def test_the_log_gets_its_checkpoints_when_they_are_due(tmp_path: Path) -> None:
    run = begun(tmp_path)
    run.batch([(0, 0)])
    run.publish(1)
    Reader(run.sink.place).alter.set_table_properties({"delta.checkpointInterval": "4"})
    for number in range(2, 8):
        run.batch([(number, number)])
        run.publish(number)
    log = Path(run.sink.place) / "_delta_log"
    assert {path.name[:20].lstrip("0") for path in log.glob("*.checkpoint.parquet")} == {"3", "7"}


def test_a_log_that_was_put_back_between_two_publishes_is_read_anew(tmp_path: Path) -> None:
    """Also where others have brought it to the version that the last publish had read."""
    run = begun(tmp_path)
    run.batch([(1, 1)])
    run.publish(1)
    log = Path(run.sink.place) / "_delta_log"
    shutil.copytree(log, tmp_path / "older")
    newest = Reader(run.sink.place).version()
    for number in (2, 3):
        run.batch([(number, number)])
        run.publish(number)
    shutil.rmtree(log)
    shutil.move(tmp_path / "older", log)
    while Reader(run.sink.place).version() < newest + 2:
        write_deltalake(run.sink.place, THEIRS, mode="append")
    run.publish(4)
    assert keys(run) == [1, 2, 3, 100, 100]


def test_a_position_tells_that_somebody_else_has_changed_rows_and_stays_that_one(tmp_path: Path) -> None:
    run = begun(tmp_path)
    told = []
    for number in (1, 2, 3):
        run.batch([(number, number)])
        run.publish(number)
        told.append(run.sink.position().others)  # type: ignore[union-attr]
        if number == 1:
            Reader(run.sink.place).delete("k = 1")
            told.append(run.sink.position().others)  # type: ignore[union-attr]
        Reader(run.sink.place).optimize.compact()
    assert told == [None, 2, 2, 2]


def test_an_older_version_that_somebody_restores_shows_less(tmp_path: Path) -> None:
    """Our newest commit is still in the log: the table passed for showing it, and its rows were gone for good."""
    run = begun(tmp_path)
    cuts, versions = [], []
    for number in (1, 2, 3):
        run.batch([(number, number)])
        run.publish(number)
        cuts.append(run.cut(number))
        versions.append(Reader(run.sink.place).version())

    def shown() -> tuple[int | None, int | None, int | None]:
        position = run.sink.position()
        assert position is not None
        assert position.epoch == FIRST.epoch
        return position.checkpoint_id, position.head, position.through_batch

    Reader(run.sink.place).restore(versions[0])
    write_deltalake(run.sink.place, THEIRS, mode="append")
    assert shown() == (3, 1, 0)
    newer = run.successor()
    assert "(RESTORE) is not of this pipeline" in newer.sink.cannot_roll_back(cuts[2].cut)
    assert newer.sink.cannot_roll_back(cuts[0].cut) == ""
    Reader(run.sink.place).restore(versions[2])
    assert shown() == (3, 3, 2)
    assert newer.sink.cannot_roll_back(cuts[2].cut) == ""
    Reader(run.sink.place).restore(0)
    assert shown() == (3, None, None)
    Reader(run.sink.place).restore(dt_of(run, versions[1]))
    assert shown() == (3, None, None)  # which version that is, the log does not say


def dt_of(run: SinkRun, version: int) -> datetime.datetime:
    found = next(entry for entry in Reader(run.sink.place).history() if entry["version"] == version)
    return datetime.datetime.fromtimestamp(found["timestamp"] / 1000, datetime.UTC)


def test_two_pipelines_share_a_table(tmp_path: Path) -> None:
    shared = DeltaTable(str(tmp_path / "shared"), shared_with=("one", "two"))
    one, two = (begun(tmp_path, shared, pipeline=pipeline) for pipeline in ("one", "two"))
    one.batch([(1, 1)])
    one.publish(5)
    renamed = begun(tmp_path, shared, pipeline="one").context
    alone = DeltaSink(DeltaTable(shared.uri), replace(renamed, pipeline=PipelineId("uno")))
    with pytest.raises(InvalidRequest, match=r"of pipeline 'one'.* twice .* shared_with=\('one',\)"):
        alone.take_over()
    two.sink.take_over()
    two.batch([(2, 2)])
    two.publish(1)
    one.batch([(3, 3)])
    one.publish(6)
    assert keys(one) == [1, 2, 3]
    found = [run.sink.position() for run in (one, two)]
    assert [position.head for position in found if position is not None] == [6, 1]


def test_a_pipeline_that_cleans_up_leaves_what_another_one_has_staged(tmp_path: Path) -> None:
    shared = DeltaTable(str(tmp_path / "shared"), shared_with=("one", "two"))
    one, two = (begun(tmp_path / name, shared, pipeline=name) for name in ("one", "two"))
    one.batch([(1, 1)])
    two = two.successor(epoch=5)  # newer than the attempt of the other pipeline
    two.sink.take_over()
    two.batch([(2, 2)])
    two.publish(1)
    two.sink.collect_garbage([], [])
    one.publish(1)
    assert keys(one) == [1, 2]


def test_commits_say_whose_they_are(tmp_path: Path) -> None:
    run = begun(tmp_path)
    run.batch([(1, 1)])
    run.publish(4)
    entry = Reader(run.sink.place).history(1)[0]
    said = {name.removeprefix("dagster_ckpt."): v for name, v in entry.items() if "dagster_ckpt." in name}
    assert said | {"staged": 1} == {
        "format_version": 1,
        "pipeline": "shop",
        "sink": "orders",
        "lineage": "first",
        "epoch": 1,
        "checkpoint": 4,
        "head": 4,
        "through_batch": 0,
        "base": None,
        "batches": "1:0",
        "origin": "",
        "key": "[]",
        "staged": 1,
    }
    assert Reader(run.sink.place).transaction_version("dagster_ckpt/shop/orders/first") == 4


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ((), ("k",), r"written without a key, and the sink has the key \['k'\] now"),
        (("k",), ("v", "k"), r"by the key \['k'\], and the sink has the key \['k', 'v'\] now"),
        (("v", "k"), (), r"by the key \['k', 'v'\], and the sink has none now"),
    ],
)
def test_rows_of_another_key_are_not_written_beside_those_of_the_old_one(
    tmp_path: Path, before: tuple[str, ...], now: tuple[str, ...], said: str
) -> None:
    """Those that were appended before stayed there, several of one key."""
    run = begun(tmp_path, key=before)
    run.batch([(1, 1)])
    run.publish(1)
    rows = rows_like(run)
    begun(tmp_path, key=before[::-1]).sink.check(rows)
    other = begun(tmp_path, key=now).sink
    with pytest.raises(InvalidRequest, match=said):
        other.check(rows)
    run.successor().sink.roll_back(None, LaterRows.SET_ASIDE)
    other.check(rows)


def test_a_restore_across_a_change_of_the_key_shows_rows_by_the_key_they_were_written_by(
    tmp_path: Path,
) -> None:
    a_restore_shows_rows_by_the_key_they_were_written_by(begun(tmp_path))


@pytest.mark.parametrize("name", NAMES)
def test_a_key_and_a_column_have_any_name(tmp_path: Path, name: str) -> None:
    a_key_and_a_column_have_any_name(begun(tmp_path, key=("k", name)), name)


def test_rows_by_key_that_replace_all_keep_their_partitions(tmp_path: Path) -> None:
    run = begun(tmp_path, DeltaTable("orders", partition_by=("p",)), key=("k",), is_complete=True)
    rows_that_replace_all_keep_their_partitions(run)


def test_rows_by_key_that_are_written_again_keep_what_is_missing_in_them(tmp_path: Path) -> None:
    rows_that_are_written_again_keep_what_is_missing_in_them(begun(tmp_path, key=("k",)))


def test_rows_by_key_lie_in_partitions_of_any_name_however_many_there_are(tmp_path: Path) -> None:
    names = ("a/b", "a%20b")
    run = begun(tmp_path, DeltaTable("orders", partition_by=names), key=("k",))
    types = dict.fromkeys(names, pa.string())
    run.batch([(k, k, f"{k}/%", None) for k in range(1_030)], types=types)
    run.publish(1)
    run.batch([(7, -7, "x y", "z")], types=types)
    run.publish(2)
    found = run.sink.rows().to_arrow().sort_by("k").to_pydict()
    assert found["a/b"] == [f"{k}/%" if k != 7 else "x y" for k in range(1_030)]
    assert [value for value in found["a%20b"] if value] == ["z"]
    assert sum(found["v"]) == sum(range(1_030)) - 14


def test_a_fork_by_another_key_than_its_origins_rows_have_is_refused(tmp_path: Path) -> None:
    keyed = begun(tmp_path, DeltaTable("fork"), key=("k",), pipeline="blue")
    same = begun(tmp_path, DeltaTable("fork"), pipeline="blue")
    a_fork_by_another_key_is_refused(begun(tmp_path), keyed, same)


# --- whose folder it is -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["my project", "übung", "a#b", "a?b", "50%", "a+b", "日本"])
def test_a_folder_of_any_name_goes_back(tmp_path: Path, name: str) -> None:
    run = begun(tmp_path / name, key=("k",))
    run.batch([(1, 1)])
    run.publish(1)
    at = run.cut(1)
    run.batch([(1, 2)])
    run.publish(2)
    assert run.successor().sink.cannot_roll_back(at.cut) == ""
    run.restored(at)
    assert Reader(run.sink.place).to_pyarrow_table()["v"].to_pylist() == [1]
    assert (tmp_path / name / "tables" / "shop" / "orders" / "_delta_log").is_dir()


@pytest.mark.parametrize("name", ["a[1]", "a|b", "a^b", "a%20b", "a\\b", "a\nb"])
def test_a_folder_that_delta_rs_does_not_reach_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match="delta-rs cannot write to a folder with"):
        begun(tmp_path / name)


# --- what a table promises --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"schema": pa.schema([pa.field("k", pa.int64(), nullable=False)])}, "column k must not be null"),
        ({"configuration": {"delta.enableDeletionVectors": "true"}}, "it uses deletionVectors"),
        ({"configuration": {"delta.columnMapping.mode": "name"}}, "mapped to other names"),
        ({"partition_by": ["k"]}, r"partitioned by \['k'\] and not by \[\]"),
    ],
)
def test_a_table_whose_promises_staged_files_would_break_is_refused(
    tmp_path: Path, options: dict[str, Any], why: str
) -> None:
    run = begun(tmp_path)
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    Reader.create(run.sink.place, **({"schema": schema} | options))
    run.sink.take_over()
    run.batch([(1, 1)])
    with pytest.raises(InvalidRequest, match=why):
        run.publish(1)


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.decimal128(9, 2), pa.float64(), pa.timestamp("us")], ids=str
)
def test_a_table_with_a_partition_that_delta_rs_reads_otherwise_takes_no_rows_by_key(
    tmp_path: Path, kind: pa.DataType
) -> None:
    run = begun(tmp_path, key=("k",))
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("p", kind)])
    Reader.create(run.sink.place, schema=schema, partition_by=["p"])
    run.batch([(1, 1, None)], types={"p": kind})
    with pytest.raises(InvalidRequest, match="is partitioned by p, which is"):
        run.sink.check(rows_like(run))


_KINDS = [
    pa.list_(pa.field("element", pa.int64(), nullable=False)),
    pa.struct([pa.field("a", pa.int64(), nullable=False)]),
    pa.map_(pa.string(), pa.field("value", pa.list_(pa.field("element", pa.int64(), nullable=False)))),
]


@pytest.mark.parametrize("kind", _KINDS)
def test_a_column_that_needs_values_in_its_parts_is_refused_when_the_stage_starts(
    tmp_path: Path, kind: pa.DataType
) -> None:
    run = begun(tmp_path)
    Reader.create(run.sink.place, schema=pa.schema([("k", pa.int64()), ("v", pa.int64()), ("x", kind)]))
    run.batch([(1, 1, None)], types={"x": kind})
    with pytest.raises(InvalidRequest, match="needs a value in every x"):
        run.sink.check(rows_like(run))


def test_a_table_that_checks_values_is_refused(tmp_path: Path) -> None:
    run = begun(tmp_path)
    run.batch([(1, 1)])
    run.publish(1)
    Reader(run.sink.place).alter.add_constraint({"positive": "v > 0"})
    run.batch([(2, -1)])
    with pytest.raises(InvalidRequest, match=r"delta\.constraints\.positive"):
        run.publish(2)
    assert keys(run) == [1]


def test_a_table_that_only_takes_appends_takes_them_and_says_that_it_cannot_go_back(tmp_path: Path) -> None:
    run = begun(tmp_path)
    Reader.create(
        run.sink.place,
        pa.schema([("k", pa.int64()), ("v", pa.int64())]),
        configuration={"delta.appendOnly": "true"},
    )
    run.sink.take_over()
    run.batch([(1, 1)])
    run.publish(1)
    assert "only takes appends" in run.successor().sink.cannot_roll_back(None)
    keyed = begun(tmp_path, key=("k",)).successor()
    keyed.next_batch = 1
    keyed.batch([(2, 2)])
    with pytest.raises(InvalidRequest, match="only takes appends"):
        keyed.publish(2)


TWICE = [{"name": "a", "type": "long"}, {"name": "A", "type": "string"}]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ([{"name": "v", "type": "variant"}], "column 'v' is variant"),
        ([{"name": "v", "type": "void"}], "column 'v' is void"),
        ([{"name": "s", "type": {"type": "struct", "fields": [{"name": "t", "type": "time(6)"}]}}], r"s\.t"),
        (
            [{"name": "s", "type": {"type": "array", "elementType": {"type": "struct", "fields": TWICE}}}],
            r"'s\.a' is there twice",
        ),
        ([{"name": "Id", "type": "long"}, {"name": "id", "type": "long"}], "'Id' is there twice"),
        ([{"name": "a b", "type": "long"}], "'a b' has a character"),
        ([{"name": "a\0b", "type": "long"}], r"'a.x00b' has a character"),
    ],
)
def test_columns_that_a_delta_table_cannot_have_are_named(fields: list[dict[str, Any]], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        accepted(()).refuse_columns("the table", json.dumps({"type": "struct", "fields": fields}))


def test_text_that_is_no_schema_is_damage() -> None:
    with pytest.raises(Corrupt):
        COLUMNS.of("{}")


# --- versions that go -------------------------------------------------------------------------------------------


def test_a_version_whose_files_are_gone_is_told_before_anything_changes(tmp_path: Path) -> None:
    run = begun(tmp_path, key=("k",))
    run.batch([(1, 1)])
    run.publish(1)
    at = run.cut(2)
    lost = Path(Reader(run.sink.place).file_uris()[0])
    run.batch([(1, 2)])
    run.publish(2)
    lost.unlink()
    newer = run.successor()
    assert lost.name in newer.sink.cannot_roll_back(at.cut)
    with pytest.raises(Corrupt, match=lost.name):
        newer.roll_back(at)
    assert keys(run) == [1]


def test_a_log_that_was_cleaned_up_is_told(tmp_path: Path) -> None:
    run = begun(tmp_path)
    run.batch([(1, 1)])
    run.publish(1)
    at = run.cut(2)
    for number in (2, 3):
        run.batch([(number, number)])
        run.publish(number)
    Reader(run.sink.place).create_checkpoint()
    log = Path(run.sink.place) / "_delta_log"
    for version in range(Reader(run.sink.place).version()):
        (log / f"{version:020d}.json").unlink()
    newer = run.successor()
    assert "no version that shows checkpoint 1" in newer.sink.cannot_roll_back(at.cut)
    write_deltalake(run.sink.place, THEIRS, mode="append")
    Reader(run.sink.place).create_checkpoint()
    (log / f"{Reader(run.sink.place).version() - 1:020d}.json").unlink()
    with pytest.raises(Corrupt, match="no longer tells what was published"):
        newer.sink.take_over()


def test_cuts_pin_versions(tmp_path: Path) -> None:
    run = begun(tmp_path, key=("k",))
    cuts = []
    for number in (1, 2, 3):
        run.batch([(1, number)])
        run.publish(number)
        cuts.append(run.cut(number))
    sink = run.sink
    assert isinstance(sink, DeltaSink)
    pinned = sink.pinned_versions([cuts[1].cut.snapshot])
    assert [Reader(sink.place, version=v).to_pyarrow_table()["v"].to_pylist() for v in pinned] == [[2]]
    Reader(sink.place).vacuum(0, dry_run=False, enforce_retention_duration=False, keep_versions=pinned)
    assert run.successor().sink.cannot_roll_back(cuts[1].cut) == ""
    assert run.successor().sink.cannot_roll_back(cuts[0].cut) != ""
    run.restored(cuts[1])
    assert Reader(sink.place).to_pyarrow_table()["v"].to_pylist() == [2]


def test_rows_that_left_the_table_go_when_the_table_says_so(tmp_path: Path) -> None:
    week = DeltaTable("orders", properties={"delta.deletedFileRetentionDuration": "interval 1 week"})
    run = begun(tmp_path, week, is_complete=True)
    cuts = []
    for number in (1, 2, 3):
        run.batch([(number, number)], replaces=True)
        run.publish(number)
        cuts.append(run.cut(number))
    sink = run.sink
    assert isinstance(sink, DeltaSink)
    staged = lambda: len(sink.staged.folders())  # noqa: E731 - read again each time

    def collect(after_days: float, *needed: Any) -> int:
        now = time.time() + after_days * 86400
        snapshots = [at.cut.snapshot for at in needed]
        return Garbage(sink._engine, FIRST, now, snapshots, []).collect()

    assert (collect(6), staged()) == (0, 3)
    assert (collect(8, *cuts), staged()) == (0, 3)
    assert (collect(8, cuts[1], cuts[2]), staged()) == (1, 2)
    assert (collect(8), staged()) == (1, 1)
    assert keys(run) == [3]


@pytest.mark.parametrize(
    ("text", "hours"), [("interval 2 days", 48), ("interval 1 week", 168), ("12 hours", 12), ("?", 168)]
)
def test_a_tables_own_retention_is_read(text: str, hours: float) -> None:
    assert retention_hours({"delta.deletedFileRetentionDuration": text}) == hours


def test_others_that_never_stop_committing_are_not_waited_for_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_ckpt.ext.tables.engine._TRIES", 2)
    run = begun(tmp_path)
    run.batch([(1, 1)])
    run.publish(1)
    run.batch([(2, 2)])
    write = Outside.write

    def always_late(*arguments: Any, **named: Any) -> None:
        write_deltalake(run.sink.place, THEIRS, mode="append")
        write(*arguments, **named)

    monkeypatch.setattr(Outside, "write", always_late)
    with pytest.raises(Unavailable, match="others committed 2 times"):
        run.publish(2)


# --- what readers see -------------------------------------------------------------------------------------------


MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC)
AT = "2026-01-02T03:04:05"
PRICES = decimal.Decimal("0.10"), decimal.Decimal("999999999999999999.99")
BOUNDS: dict[str, tuple[Any, Any]] = {
    "whole": (pa.array([3, None, -7], pa.int64()), (-7, 3)),
    "flag": ([True, None, False], (False, True)),
    "price": (pa.array([PRICES[1], None, PRICES[0]], pa.decimal128(20, 2)), PRICES),
    "text": (["b", "a" * 99, None], ("a" * 32, "b")),
    "long": (["", "ä" * 99, None], ("", "ä" * 31 + "å")),
    "edge": (["x" + "\ud7ff" * 40, "x", None], ("x", "x" + "\ud7ff" * 30 + "\ue000")),
    "last": (["y" + "\U0010ffff" * 40, "y", None], ("y", "z")),
    "day": (pa.array([datetime.date(2026, 1, 2), None, None], pa.date32()), ("2026-01-02", "2026-01-02")),
    "at": (pa.array([MOMENT, None, None], pa.timestamp("us", "UTC")), (f"{AT}.678Z", f"{AT}.679Z")),
    "nothing": (pa.array([None, None, None], pa.int64()), (None, None)),
}  # fmt: skip
UNKNOWN = {
    "real": pa.array([1.5, float("nan"), 2.5], pa.float64()),
    "greatest text": ["\U0010ffff" * 40, "y", None],
    "endless text": ["x" * 5_000, "y", None],
    "text that is no UTF-8": pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")]
    ),
    "last moment": pa.array([datetime.datetime.max, None, None], pa.timestamp("us")),  # noqa: DTZ901
    "a day that Python has not": pa.array([10**7, None, None], pa.int32()).cast(pa.date32()),
    "inner": [{"x": 1}, {"x": 2}, None],
}


def footer_of(folder: Path, **columns: Any) -> pq.FileMetaData:
    pq.write_table(pa.table(columns), folder / "f.parquet")
    return pq.read_metadata(folder / "f.parquet")


def test_bounds_are_never_narrower_than_the_rows(tmp_path: Path) -> None:
    footer = footer_of(tmp_path, **{name: rows for name, (rows, _) in BOUNDS.items()})
    found = json.loads(statistics(footer, [*BOUNDS, "new"]), parse_float=decimal.Decimal)
    assert found["numRecords"] == 3
    assert found["nullCount"] == {name: pa.array(rows).null_count for name, (rows, _) in BOUNDS.items()} | {
        "new": 3
    }
    for name, (_, bounds) in BOUNDS.items():
        assert (found["minValues"].get(name), found["maxValues"].get(name)) == bounds, name
    assert json.loads(statistics(footer, [])) == {"numRecords": 3, "nullCount": {}}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_file_has_bounds_of_all_columns_that_readers_want_them_of_or_of_none(
    tmp_path: Path, name: str
) -> None:
    """delta-rs takes one that is missing beside others for a bound that no value fulfills."""
    footer = footer_of(tmp_path, k=list(range(len(UNKNOWN[name]))), unknown=UNKNOWN[name])
    assert json.loads(statistics(footer, ["k", "unknown"])).keys() == {"numRecords", "nullCount"}
    assert "minValues" in json.loads(statistics(footer, ["k"]))


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ((), {"delta.dataSkippingStatsColumns": "k,day"}),
        (("text",), {"delta.dataSkippingStatsColumns": "text,k,day"}),
    ],
)
def test_bounds_are_wanted_of_columns_that_every_writer_gets_right(
    key: tuple[str, ...], wanted: dict[str, str]
) -> None:
    kinds = {
        "k": "long",
        "x": "double",
        "at": "timestamp",
        "day": "date",
        "text": "string",
        "a.b": "long",
        "ü": "long",
    }
    columns = [{"name": name, "type": kind} for name, kind in kinds.items()]
    assert wanted_bounds(columns, key) == wanted
    assert wanted_bounds(columns[1:3], key) == {"delta.dataSkippingNumIndexedCols": "0"}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("_dagster_ckpt/staged/1/batch-1/part.parquet", {}),
        ("s/country=DE/day=2026-01-02/p.parquet", {"country": "DE", "day": "2026-01-02"}),
        ("s/c=a%2Fb%3Dc/d=__HIVE_DEFAULT_PARTITION__/p.parquet", {"c": "a/b=c", "d": None}),
    ],
)
def test_folders_of_spark_say_the_partition(path: str, values: dict[str, str | None]) -> None:
    assert partition_values(path) == values


def test_every_reader_finds_the_same_rows_also_with_a_condition(tmp_path: Path) -> None:
    run = begun(tmp_path)
    run.batch([(1, 10)], [(2, 20)])
    run.batch([(3, 30, "x")], types={"w": pa.string()})
    run.publish(1)
    place = run.sink.place
    orders = Reader(place).to_pyarrow_dataset()
    assert sorted(polars.scan_delta(place).filter(polars.col("v") > 15).collect()["k"].to_list()) == [2, 3]
    assert duckdb.sql("select sum(v), count(w) from orders where k >= 2").fetchall() == [(50, 1)]
    assert sorted(Reader(place).to_pandas(filters=[("k", ">", 1)])["v"]) == [20, 30]
    assert orders.count_rows() == 3
    description = run.sink.describe()
    assert description.columns == (("k", "long"), ("v", "long"), ("w", "string"))
    assert (description.rows, description.version) == (3, str(Reader(place).version()))
