"""Iceberg tables beside the contract: others' commits, put-back tables, promises a table makes, snapshots that go."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import time
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import EqualTo, IsNull
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import BinaryType, DateType, DoubleType, ListType, LongType, NestedField, StructType

from dagster_ckpt.core.ids import CoordinatorEpoch
from dagster_ckpt.errors import Corrupt, Fenced, InvalidRequest, Unavailable
from dagster_ckpt.ext.iceberg.backend import files_of
from dagster_ckpt.ext.iceberg.catalogs import identifier_of, settings_at, settings_of
from dagster_ckpt.ext.iceberg.columns import COLUMNS, PART, accepted
from dagster_ckpt.ext.iceberg.lake import Outside
from dagster_ckpt.ext.iceberg.sink import IcebergSink
from dagster_ckpt.ext.iceberg.target import IcebergTable
from dagster_ckpt.ext.iceberg.upkeep import Garbage, ReadManifests
from dagster_ckpt.ext.tables.columns import spelt
from dagster_ckpt.spark.sink.accepts import NO_VALUE
from dagster_ckpt.spark.sink.port import AttemptId, LaterRows, Sink, SinkContext, SinkCut
from dagster_ckpt.testing import SinkRun, Staging
from dagster_ckpt.testing.sinks.run import AtStep, context_in
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
NAME = "db.orders"
TAG = "dagster_ckpt/shop/orders"


def sink_of(run: SinkRun) -> IcebergSink:
    assert isinstance(run.sink, IcebergSink)
    return run.sink


def staging(sink: Sink, context: SinkContext) -> Staging:
    assert isinstance(sink, IcebergSink)

    def write(rows: pa.Table, path: Path) -> None:
        """Write rows of one partition below its folders, as Spark does."""
        for number, name in enumerate(sink.partition_by):
            value = rows[name][0].as_py()
            path = path.parent / f"{PART}{number}={NO_VALUE if value is None else f'v{value}'}" / path.name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path)

    return Staging(sink.staged.root, sink.staged.folder(context.attempt().epoch), write=write)


def begun(folder: Path, target: IcebergTable | None = None, **options: Any) -> SinkRun:
    def opened(context: SinkContext) -> Sink:
        return IcebergSink(target or IcebergTable(NAME), context)

    context = context_in(folder, FIRST, **options)
    run = SinkRun(open=opened, staging=staging, context=context, attempt=FIRST, sink=opened(context))
    run.sink.take_over()
    return run


def catalog_of(run: SinkRun) -> Catalog:
    return sink_of(run)._backend.lake.settings.open()


def table_of(run: SinkRun) -> Table:
    return catalog_of(run).load_table(NAME)


def made(run: SinkRun, **options: Any) -> Table:
    """Make the table as somebody else would."""
    catalog = catalog_of(run)
    catalog.create_namespace_if_not_exists("db")
    return catalog.create_table(NAME, **({"schema": THEIRS.schema} | options))


def current(run: SinkRun) -> int:
    snapshot = table_of(run).current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def put_back(run: SinkRun, number: int) -> None:
    table_of(run).manage_snapshots().set_current_snapshot(number).commit()


def keys(run: SinkRun, ref: str = "main") -> list[int]:
    table = table_of(run)
    found = (table.scan().use_ref(ref) if table.snapshots() else table.scan()).to_arrow()
    return sorted(found["k"].to_pylist())


def published(run: SinkRun, *numbers: int) -> None:
    for number in numbers:
        run.batch([(number, number)])
        run.publish(number)


def why(run: SinkRun, cut: SinkCut | None) -> str:
    """Return why the next attempt could not go back."""
    return run.successor().sink.cannot_roll_back(cut)


# --- beside others ----------------------------------------------------------------------------------------------


def test_rows_that_were_there_first_stay(tmp_path: Path) -> None:
    run = begun(tmp_path)
    made(run).append(THEIRS)
    run.sink.take_over()
    published(run, 1)
    assert keys(run) == [1, 100]
    back = run.restored(None)
    assert keys(run) == [100]
    back.batch([(2, 2)])
    back.publish(2)
    assert keys(run) == [2, 100]


def test_others_rows_are_never_taken_back_with_ours(tmp_path: Path) -> None:
    run = begun(tmp_path)
    published(run, 1)
    at = run.cut(2)
    published(run, 2)
    table_of(run).append(THEIRS)
    theirs = current(run)
    published(run, 3)
    newer = run.successor()
    for cut in (at.cut, None):
        assert f"snapshot {theirs} (append) is not of this pipeline" in newer.sink.cannot_roll_back(cut)
    with pytest.raises(InvalidRequest, match=f"snapshot {theirs} "):
        newer.roll_back(at)
    assert keys(run) == [1, 2, 3, 100]
    newer.roll_back(at, LaterRows.KEEP)
    assert newer.sink.cannot_roll_back(run.cut(4).cut) == ""  # later than theirs


def test_others_rows_are_told_also_when_their_snapshot_was_expired(tmp_path: Path) -> None:
    run = begun(tmp_path)
    published(run, 1)
    at = run.cut(2)
    table_of(run).append(THEIRS)
    theirs = current(run)
    published(run, 2)
    table_of(run).maintenance.expire_snapshots().by_id(theirs).commit()
    assert f"snapshot {theirs} (expired) is not of this pipeline" in why(run, at.cut)
    assert keys(run) == [1, 2, 100]


def test_files_that_others_compacted_are_no_others_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(tmp_path)
    published(run, 1, 2)
    at = run.cut(3)
    published(run, 3)
    table = table_of(run)
    rows, files = table.scan().to_arrow(), [task.file for task in table.scan().plan_files()]

    def as_spark_says_it(summary: Summary, previous_summary: Any) -> Summary:
        return Summary(Operation.REPLACE)  # of rewrite_data_files; pyiceberg compacts nothing

    monkeypatch.setattr("pyiceberg.table.update.snapshot.update_snapshot_summaries", as_spark_says_it)
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as snapshot:
        for file in files:
            snapshot.delete_data_file(file)
        for file in _dataframe_to_data_files(table.metadata, rows, table.io):
            snapshot.append_data_file(file)
    monkeypatch.undo()
    assert keys(run) == [1, 2, 3]
    assert "can be read at branch" in run.successor().roll_back(at).text
    assert keys(run) == [1, 2]


def test_others_that_commit_in_between_are_only_waited_for(tmp_path: Path) -> None:
    run = begun(tmp_path)
    published(run, 1)
    run.batch([(2, 2)])
    theirs = AtStep(1, lambda: table_of(run).append(THEIRS))
    with theirs.among([(Outside, "commit")]):
        run.publish(2)
    assert theirs.was_reached
    assert keys(run) == [1, 2, 100]


def test_others_that_never_stop_committing_are_not_waited_for_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_ckpt.ext.tables.engine._TRIES", 2)
    run = begun(tmp_path)
    published(run, 1)
    run.batch([(2, 2)])
    commit = Outside.commit

    def always_late(*arguments: Any) -> None:
        table_of(run).append(THEIRS)
        commit(*arguments)

    monkeypatch.setattr(Outside, "commit", always_late)
    with pytest.raises(Unavailable, match="others committed 2 times"):
        run.publish(2)


def test_two_pipelines_share_a_table_and_each_keeps_what_it_has_staged(tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    shared = IcebergTable(NAME, catalog=catalog, shared_with=("one", "two"))
    one, two = (begun(tmp_path, shared, pipeline=pipeline) for pipeline in ("one", "two"))
    published(one, 5)
    two.sink.take_over()
    published(two, 1)
    waiting = two.batch([(2, 2)])
    newer = one.successor()
    newer.sink.take_over()
    newer.sink.collect_garbage([], [])
    assert (sink_of(two).staged.root / waiting.files[0].staged).exists()
    two.publish(2)
    published(newer, 6)
    assert keys(one) == [1, 2, 5, 6]
    found = [run.sink.position() for run in (one, two)]
    assert [position.head for position in found if position is not None] == [6, 2]


def test_snapshots_say_whose_they_are(tmp_path: Path) -> None:
    run = begun(tmp_path)
    run.batch([(1, 1)])
    run.publish(4)
    snapshot = table_of(run).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    said = snapshot.summary.additional_properties
    assert {name.removeprefix("dagster_ckpt."): v for name, v in said.items() if "dagster_ckpt." in name} == {
        "format_version": "1",
        "pipeline": "shop",
        "sink": "orders",
        "lineage": "first",
        "epoch": "1",
        "checkpoint": "4",
        "head": "4",
        "through_batch": "0",
        "batches": "1:0",
        "origin": "",
        "key": "[]",
    }


def test_rows_of_another_key_are_not_written_beside_those_of_the_old_one(tmp_path: Path) -> None:
    """Those that were appended before stayed there, several of one key."""
    run = begun(tmp_path)
    published(run, 1)
    rows = rows_like(run)
    run.sink.check(rows)
    keyed = begun(tmp_path, key=("k",))
    with pytest.raises(
        InvalidRequest, match=r"were written without a key, and the sink has the key \['k'\] now"
    ):
        keyed.sink.check(rows)
    emptied = run.successor(epoch=5)
    emptied.sink.roll_back(None, LaterRows.SET_ASIDE)
    keyed.sink.check(rows)


def test_a_restore_across_a_change_of_the_key_shows_rows_by_the_key_they_were_written_by(
    tmp_path: Path,
) -> None:
    a_restore_shows_rows_by_the_key_they_were_written_by(begun(tmp_path))


@pytest.mark.parametrize("name", NAMES)
def test_a_key_and_a_column_have_any_name(tmp_path: Path, name: str) -> None:
    a_key_and_a_column_have_any_name(begun(tmp_path, key=("k", name)), name)


def test_rows_by_key_that_replace_all_keep_their_partitions(tmp_path: Path) -> None:
    run = begun(tmp_path, IcebergTable(NAME, partition_by=("p",)), key=("k",), is_complete=True)
    rows_that_replace_all_keep_their_partitions(run)


def test_rows_by_key_that_are_written_again_keep_what_is_missing_in_them(tmp_path: Path) -> None:
    rows_that_are_written_again_keep_what_is_missing_in_them(begun(tmp_path, key=("k",)))


def test_a_fork_by_another_key_than_its_origins_rows_have_is_refused(tmp_path: Path) -> None:
    keyed = begun(tmp_path, IcebergTable("db.fork"), key=("k",), pipeline="blue")
    same = begun(tmp_path, IcebergTable("db.fork"), pipeline="blue")
    a_fork_by_another_key_is_refused(begun(tmp_path), keyed, same)


# --- tables that were put back ----------------------------------------------------------------------------------


def test_a_table_that_somebody_put_back_shows_less_and_fences_all_the_same(tmp_path: Path) -> None:
    run = begun(tmp_path)
    published(run, 1)
    old, at = current(run), run.cut(1)
    published(run, 2)
    late = run.cut(2)
    newer = run.successor(epoch=4)
    newer.sink.take_over()
    put_back(run, old)
    position = newer.sink.position()
    assert position is not None
    assert (position.epoch, position.checkpoint_id, position.head, position.through_batch) == (4, 2, 1, 0)
    for act in (run.sink.take_over, lambda: run.publish(3)):
        with pytest.raises(Fenced):
            act()
    newest = newer.restored(late, epoch=5)
    assert keys(run) == [1, 2]
    newest.restored(at, epoch=6)
    assert keys(run) == [1]


def test_a_put_back_between_reading_and_committing_lets_no_older_attempt_in(tmp_path: Path) -> None:
    """The branch is again where the older attempt read it; the tag is not."""
    run = begun(tmp_path)
    published(run, 1)
    run.batch([(2, 2)])
    before = current(run)

    def interfere() -> None:
        run.successor().sink.take_over()
        put_back(run, before)

    with AtStep(1, interfere).among([(Outside, "commit")]), pytest.raises(Fenced):
        run.publish(2)
    assert keys(run) == [1]


def test_a_catalog_that_is_put_back_or_removed_under_a_living_process_is_seen(tmp_path: Path) -> None:
    run = begun(tmp_path)
    published(run, 1)
    file = run.context.table_dir / "iceberg" / "catalog.db"
    shutil.copy(file, tmp_path / "older.db")
    published(run, 2)
    shutil.move(tmp_path / "older.db", file)
    position = run.sink.position()
    assert position is not None
    assert position.head == 1
    published(run, 3)
    assert keys(run) == [1, 2, 3]
    file.unlink()
    published(run, 4)
    assert keys(run) == [1, 2, 3, 4]


def test_a_copied_folder_of_tables_does_not_touch_the_originals_files(tmp_path: Path) -> None:
    original = begun(tmp_path / "ours")
    published(original, 1)
    shutil.copytree(tmp_path / "ours", tmp_path / "copy")
    with pytest.raises(InvalidRequest, match="the folder of tables was copied"):
        begun(tmp_path / "copy")
    shutil.rmtree(context_in(tmp_path / "copy", FIRST).table_dir / "iceberg")
    published(begun(tmp_path / "copy"), 1)
    (tmp_path / "link").symlink_to(tmp_path / "ours")
    assert keys(begun(tmp_path / "link")) == keys(original) == [1]


def test_a_table_that_was_removed_or_made_anew_is_told(tmp_path: Path) -> None:
    run = begun(tmp_path)
    published(run, 1)
    at = run.cut(2)
    catalog_of(run).drop_table(NAME)
    assert "has lost its rows: it was removed" in why(run, at.cut)
    with pytest.raises(Corrupt, match="has lost its rows: it was removed"):
        run.restored(at, LaterRows.KEEP)
    made(run)
    assert "has no snapshot that shows checkpoint 1" in why(run, at.cut)


def test_a_table_whose_tag_somebody_removed_is_still_ours(tmp_path: Path) -> None:
    run = begun(tmp_path)
    published(run, 1)
    table_of(run).manage_snapshots().remove_tag(TAG).commit()
    published(run, 2)
    assert keys(run) == [1, 2]
    assert TAG in table_of(run).metadata.refs


def test_a_mark_of_a_newer_version_is_not_guessed_at(tmp_path: Path) -> None:
    run = begun(tmp_path)
    published(run, 1)
    said = {"format_version": "2", "pipeline": "shop", "sink": "orders"}
    table_of(run).append(THEIRS, snapshot_properties={f"dagster_ckpt.{name}": v for name, v in said.items()})
    with pytest.raises(Corrupt, match="newer version of dagster_ckpt"):
        run.sink.position()


def test_a_snapshot_whose_files_are_gone_is_told_before_anything_changes(tmp_path: Path) -> None:
    run = begun(tmp_path, key=("k",))
    run.batch([(1, 1)])
    run.publish(1)
    at = run.cut(2)
    lost = Path(next(iter(table_of(run).scan().plan_files())).file.file_path.removeprefix("file://"))
    run.batch([(1, 2)])
    run.publish(2)
    lost.unlink()
    newer = run.successor()
    assert lost.name in newer.sink.cannot_roll_back(at.cut)
    with pytest.raises(Corrupt, match=lost.name):
        newer.roll_back(at)
    assert keys(run) == [1]


# --- what a table promises --------------------------------------------------------------------------------------

NEEDED = Schema(NestedField(1, "k", LongType(), required=True), NestedField(2, "v", LongType()))
PLAIN = Schema(NestedField(1, "k", LongType()), NestedField(2, "v", LongType()))
WITH_REAL = Schema(*PLAIN.fields, NestedField(3, "x", DoubleType()))


def parted(number: int, transform: Any) -> dict[str, Any]:
    return {"schema": PLAIN, "partition_spec": PartitionSpec(PartitionField(number, 1000, transform, "p"))}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"schema": NEEDED}, "column k must not be null"),
        ({"properties": {"format-version": "1"}}, "its format is version 1"),
        (parted(1, BucketTransform(4)), r"partitioned by bucket\[4\] of a column"),
        (parted(1, IdentityTransform()), r"partitioned by \['k'\] and not by \[\]"),
        (
            parted(3, IdentityTransform()) | {"schema": WITH_REAL},
            "partitioned by 'x', a floating-point number",
        ),
    ],
)
def test_a_table_whose_promises_staged_files_would_break_is_refused(
    tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    run = begun(tmp_path)
    made(run, **options)
    run.sink.take_over()
    run.batch([(1, 1)])
    with pytest.raises(InvalidRequest, match=reason):
        run.publish(1)
    assert keys(run) == []


@pytest.mark.parametrize("transform", [IdentityTransform(), BucketTransform(2)])
def test_rows_by_key_move_between_partitions(tmp_path: Path, transform: Any) -> None:
    run = begun(tmp_path, key=("k",))
    made(run, **parted(2, transform))
    run.sink.take_over()
    run.batch([(1, 1), (2, 1), (3, 2)])
    run.publish(1)
    run.batch([(1, 2)])
    run.publish(2)
    found = table_of(run).scan(row_filter="v == 2").to_arrow()
    assert sorted(found["k"].to_pylist()) == [1, 3]
    assert keys(run) == [1, 2, 3]


@pytest.mark.parametrize("transform", [YearTransform(), MonthTransform(), DayTransform()])
def test_a_key_of_the_last_day_has_one_row_in_any_partition(tmp_path: Path, transform: Any) -> None:
    run = begun(tmp_path, key=("d",))
    schema = Schema(*PLAIN.fields, NestedField(3, "d", DateType()))
    made(run, schema=schema, partition_spec=PartitionSpec(PartitionField(3, 1000, transform, "p")))
    days = [dt.date.min, dt.date(1969, 12, 31), dt.date.max]
    for number in (1, 2):
        run.batch([(day.year, number, day) for day in days], types={"d": pa.date32()})
        run.publish(number)
    found = table_of(run).scan().to_arrow().sort_by("d")
    assert found.select(["d", "v"]).to_pydict() == {"d": days, "v": [2, 2, 2]}


WITHIN = StructType(NestedField(4, "l", ListType(5, LongType(), element_required=True)))


@pytest.mark.parametrize(
    ("column", "transform", "arrow", "reason"),
    [
        (WITHIN, None, pa.struct([("l", pa.list_(pa.int64()))]), r"needs a value in every x\.l\.element"),
        (BinaryType(), TruncateTransform(3), pa.binary(), "partitioned by what pyiceberg cannot compute"),
    ],
)
def test_a_column_that_no_publish_could_fill_is_refused_when_the_stage_starts(
    tmp_path: Path, column: Any, transform: Any, arrow: pa.DataType, reason: str
) -> None:
    run = begun(tmp_path, key=("k",))
    parts = [] if transform is None else [PartitionField(3, 1000, transform, "p")]
    schema = Schema(*PLAIN.fields, NestedField(3, "x", column))
    made(run, schema=schema, partition_spec=PartitionSpec(*parts))
    run.sink.take_over()
    run.batch([(1, 1, None)], types={"x": arrow})
    with pytest.raises(InvalidRequest, match=reason):
        run.sink.check(rows_like(run))


def test_a_number_that_would_be_truncated_below_its_type_is_refused(tmp_path: Path) -> None:
    run = begun(tmp_path, key=("k",))
    made(run, **parted(2, TruncateTransform(10)))
    run.batch([(1, 1)])
    [rule] = run.sink.accepts.rules(run.batches[0].row_schema)
    assert (rule.column, rule.broken) == ("v", f"`v` < {10 - 2**63}")


@pytest.mark.parametrize("metrics", ["none", "counts", "truncate(16)"])
def test_rows_of_a_partition_are_found_whatever_bounds_their_file_has(tmp_path: Path, metrics: str) -> None:
    properties = {"write.metadata.metrics.default": metrics}
    run = begun(tmp_path, IcebergTable(NAME, partition_by=("p", "d", "b"), properties=properties))
    values = [("a" * 100, dt.date(1, 1, 1), True), ("", dt.date(1969, 12, 31), False), (None, None, None)]
    types = {"p": pa.string(), "d": pa.date32(), "b": pa.bool_()}
    run.batch(*([(number, number, *of)] for number, of in enumerate(values)), types=types)
    run.publish(1)
    for number, of in enumerate(values):
        for name, value in zip(types, of, strict=True):
            said = IsNull(name) if value is None else EqualTo(name, value)
            assert table_of(run).scan(row_filter=said).to_arrow()["k"].to_pylist() == [number]


TWICE = [{"name": "a", "type": "long"}, {"name": "A", "type": "string"}]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([{"name": "v", "type": "variant"}], "column 'v' is variant"),
        ([{"name": "v", "type": "void"}], "column 'v' is void"),
        ([{"name": "s", "type": {"type": "struct", "fields": [{"name": "t", "type": "time(6)"}]}}], r"s\.t"),
        (
            [{"name": "s", "type": {"type": "array", "elementType": {"type": "struct", "fields": TWICE}}}],
            r"'s\.a' is there twice",
        ),
        ([{"name": "Id", "type": "long"}, {"name": "id", "type": "long"}], "'Id' is there twice"),
        ([{"name": "a.b", "type": "long"}], r"'a\.b' cannot be mapped"),
    ],
)
def test_columns_that_an_iceberg_table_cannot_have_are_named(
    fields: list[dict[str, Any]], reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        accepted(()).refuse_columns("the table", json.dumps({"type": "struct", "fields": fields}))


def test_a_column_that_somebody_renamed_is_told_and_not_made_again(tmp_path: Path) -> None:
    """Its values of before would be null under the new name."""
    run = begun(tmp_path)
    published(run, 1)
    with table_of(run).update_schema() as update:
        update.rename_column("v", "amount")
    run.batch([(2, 2)])
    with pytest.raises(InvalidRequest, match=r"column 'v' .* is called 'amount' now"):
        run.publish(2)
    assert [column.name for column in table_of(run).schema().fields] == ["k", "amount"]
    with table_of(run).update_schema() as update:
        update.rename_column("amount", "v")
    run.publish(2)
    assert keys(run) == [1, 2]
    with table_of(run).update_schema() as update:
        update.delete_column("v")
    run.batch([(3, 3)])
    with pytest.raises(InvalidRequest, match="column 'v', which earlier rows of the sink have, is gone"):
        run.publish(3)


def test_text_that_is_no_schema_is_damage() -> None:
    with pytest.raises(Corrupt):
        COLUMNS.of("{}")


def test_types_are_spelt_without_ids() -> None:
    inner = {"type": "struct", "fields": [{"name": "x", "type": "short"}]}
    kind = {"type": "map", "keyType": "string", "valueType": {"type": "array", "elementType": inner}}
    columns = COLUMNS.of(json.dumps({"type": "struct", "fields": [{"name": "m", "type": kind}]}))
    assert spelt(columns[0]["type"]) == "map<string, array<struct<x: int>>>"


# --- catalogs ---------------------------------------------------------------------------------------------------


def test_a_catalog_is_data_and_its_secrets_stay_out_of_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ICE_URI", "postgresql://me:secret@db:5432/ice")
    sql = settings_of({"type": "sql", "uri": "env:ICE_URI", "name": "lake"}, tmp_path)
    assert sql.place == "postgresql://db:5432/ice lake"
    assert "secret" not in repr(sql)
    given = {"type": "rest", "uri": "https://u:p@ice/api?t=1", "warehouse": "w", "token": "env:ICE_URI"}
    rest = settings_of(given, tmp_path)
    assert rest.place == "https://ice/api w"
    assert dict(rest.properties)["token"].endswith("/ice")
    assert settings_of("prod", tmp_path).place == "iceberg prod"
    assert settings_of({"type": "glue"}, tmp_path).place == "glue"
    assert settings_at(rest.place, sql) is None
    assert settings_at(sql.place, sql) is sql
    assert "secret" not in repr(IcebergTable(NAME, catalog={"uri": "secret"}))


@pytest.mark.parametrize(
    ("catalog", "reason"),
    [
        ({"type": "sql", "uri": "env:NOBODY_SET_THIS"}, "NOBODY_SET_THIS, which is not set"),
        ({"type": "sql", "uri": None}, "setting uri is a NoneType: give text"),
        ({"type": "snowdrift"}, "catalog default cannot be opened with type"),
    ],
)
def test_settings_of_a_catalog_that_cannot_be_are_told(
    tmp_path: Path, catalog: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        begun(tmp_path, IcebergTable(NAME, catalog=catalog))


@pytest.mark.parametrize("name", ["db..orders", ".orders", "orders."])
def test_a_name_that_is_none_is_told(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"named like db\.orders"):
        identifier_of(name)


def test_a_table_without_a_namespace_lies_in_the_default_one(tmp_path: Path) -> None:
    run = begun(tmp_path, IcebergTable())
    assert run.sink.place.endswith("/iceberg/catalog.db#default.orders")
    assert not (run.context.table_dir / "iceberg").exists()  # opened, and taken over: nothing is made yet


def test_a_catalog_that_does_not_say_where_a_new_table_lies_is_told(tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db"}
    with pytest.raises(InvalidRequest, match="give IcebergTable a location"):
        begun(tmp_path, IcebergTable(NAME, catalog=catalog)).batch([(1, 1)])
    run = begun(tmp_path, IcebergTable(NAME, catalog=catalog, location=f"file://{tmp_path}/there"))
    published(run, 1)
    assert keys(run) == [1]
    assert (tmp_path / "there" / "metadata").is_dir()


# --- snapshots that go ------------------------------------------------------------------------------------------


def collected(run: SinkRun, *needed: Any, after_days: float = 0, read: ReadManifests | None = None) -> int:
    snapshots = [at.cut.snapshot for at in needed]
    now = time.time() + after_days * 86_400
    return Garbage(sink_of(run)._engine, run.attempt, now, snapshots, [], read or ReadManifests()).collect()


def test_cuts_pin_snapshots_and_ours_that_nothing_needs_are_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_ckpt.ext.iceberg.upkeep._WORTH_A_COMMIT", 2)
    at_least_one = IcebergTable(NAME, properties={"history.expire.min-snapshots-to-keep": "1"})
    run = begun(tmp_path, at_least_one, key=("k",))
    cuts = []
    for number in (1, 2, 3, 4, 5):
        run.batch([(1, number)])
        run.publish(number)
        cuts.append(run.cut(number))
    files = Path(table_of(run).location().removeprefix("file://"))
    assert collected(run, cuts[1]) == 5  # what was staged: the rows went into other files at once
    before = len(list(files.rglob("*.avro")))
    read = ReadManifests()
    rows = set(files.rglob("*.parquet"))
    assert collected(run, cuts[1], after_days=2, read=read) > 2
    assert set(files.rglob("*.parquet")) == rows, "readers that began before are at them"
    assert collected(run, cuts[1], after_days=2.1, read=read) > 2
    kept = table_of(run)
    assert [name for name in kept.metadata.refs if "cut" in name] == [f"{TAG}/cut_2"]
    assert len(kept.snapshots()) == 2
    assert len(list(files.rglob("*.avro"))) < before
    version = sink_of(run)._backend.load()
    assert version is not None
    live = {name for snapshot in kept.snapshots() for name in files_of(version, snapshot)}
    assert {f"file://{path}" for path in files.rglob("*.parquet")} == live
    assert "has no snapshot that shows checkpoint 1" in why(run, cuts[0].cut)
    back = run.restored(cuts[1])
    assert table_of(run).scan().to_arrow()["v"].to_pylist() == [2]
    published(back, 6)
    assert keys(run) == [1, 6]
    collected(back)
    assert not [name for name in table_of(run).metadata.refs if "cut" in name]


def test_others_expiry_leaves_what_we_need(tmp_path: Path) -> None:
    run = begun(tmp_path)
    published(run, 1)
    at = run.cut(1)
    published(run, 2, 3)
    collected(run, at, after_days=0.1)
    table = table_of(run)
    held = {ref.snapshot_id for ref in table.metadata.refs.values()}
    old = [s.snapshot_id for s in table.snapshots() if s.snapshot_id not in held]
    assert old
    table.maintenance.expire_snapshots().by_ids(old).commit()
    position = run.sink.position()
    assert position is not None
    assert position.head == 3
    assert why(run, at.cut) == ""
    table_of(run).append(THEIRS)
    published(run, 4)
    assert keys(run) == [1, 2, 3, 4, 100]
    assert "is not of this pipeline" in why(run, at.cut)


def test_later_rows_stay_readable_on_their_branch(tmp_path: Path) -> None:
    run = begun(tmp_path)
    published(run, 1)
    at = run.cut(1)
    published(run, 2)
    back = run.successor().in_directory_of(at)
    assert back.roll_back(at).text.endswith(f"at branch {TAG}/set_aside_2_attempt_2")
    assert keys(run, f"{TAG}/set_aside_2_attempt_2") == [1, 2]
    assert keys(run) == [1]


def test_a_fork_from_a_catalog_that_is_not_known_is_refused(tmp_path: Path) -> None:
    run = begun(tmp_path)
    published(run, 1)
    at = run.cut(1)
    with pytest.raises(InvalidRequest, match="as its origin does"):
        run.sink.fork(at.cut)
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    theirs = begun(tmp_path, IcebergTable(NAME, catalog=catalog), pipeline="other")
    published(theirs, 1)
    with pytest.raises(InvalidRequest, match="is in another catalog"):
        begun(tmp_path, IcebergTable("db.fork")).sink.fork(theirs.cut(1).cut)


# --- what readers see -------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Iceberg scan planning with the polars_iceberg plugin")
def test_every_reader_finds_the_same_rows_also_with_a_condition(tmp_path: Path) -> None:
    run = begun(tmp_path)
    run.batch([(1, 10)], [(2, 20)])
    run.batch([(3, 30, "x")], types={"w": pa.string()})
    run.publish(1)
    table = table_of(run)
    assert sorted(polars.scan_iceberg(table).filter(polars.col("v") > 15).collect()["k"].to_list()) == [2, 3]
    orders = table.scan(row_filter="k >= 2").to_arrow()
    assert duckdb.sql("select sum(v), count(w) from orders").fetchall() == [(50, 1)]
    assert sorted(table.scan(row_filter="k > 1").to_pandas()["v"]) == [20, 30]
    assert orders.num_rows == 2
    description = run.sink.describe()
    assert description.columns == (("k", "long"), ("v", "long"), ("w", "string"))
    assert (description.rows, description.details["files"]) == (3, "3")
