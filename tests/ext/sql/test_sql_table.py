"""What a table of a database takes, refuses and keeps; the contract of sinks has the rest."""

from __future__ import annotations

import datetime as dt
import decimal
import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import sqlalchemy

from dagster_ckpt.core.ids import BatchId, CheckpointId, CoordinatorEpoch
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.errors import Corrupt, Fenced, InvalidRequest, OutcomeUnknown, Unavailable
from dagster_ckpt.ext.sql.sink import SqlSink
from dagster_ckpt.ext.sql.target import SqlTable
from dagster_ckpt.spark.sink.committables import prepared_batches
from dagster_ckpt.spark.sink.phases import preparing
from dagster_ckpt.spark.sink.port import (
    AlreadyPublished,
    AttemptId,
    LaterRows,
    Published,
    SinkCut,
    SinkPosition,
)
from dagster_ckpt.spark.sink.published import note_published, position_of
from dagster_ckpt.testing.sinks.run import context_in, in_attempt
from tests.adapters.servers import CommitLosingProxy, Loss, PostgresCluster
from tests.ext.sql.tables import FIRST, LONGS, Columns, Run, cut_at, permit, staged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LATIN = "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
ALL_TYPES: dict[str, tuple[str, pa.DataType, Any]] = {
    "yes": ("boolean", pa.bool_(), True),
    "tiny": ("byte", pa.int8(), -3),
    "small": ("short", pa.int16(), 300),
    "whole": ("integer", pa.int32(), 70_000),
    "big": ("long", pa.int64(), 2**62),
    "single": ("float", pa.float32(), 0.5),
    "double": ("double", pa.float64(), 0.1),
    "price": ("decimal(20,4)", pa.decimal128(20, 4), decimal.Decimal("1234567890123456.7890")),
    'odd "name", 50 %': ("string", pa.string(), 'a "quoted", text\nof two lines, ü, \\N and %s'),
    "raw": ("binary", pa.binary(), b"\x00\xff"),
    "day": ("date", pa.date32(), dt.date(2026, 11, 22)),
    "at": ("timestamp", pa.timestamp("us", "UTC"), dt.datetime(2026, 11, 22, 1, 2, 3, 45, tzinfo=dt.UTC)),
    "local": ("timestamp_ntz", pa.timestamp("us"), dt.datetime(2026, 11, 22, 1, 2, 3, 45)),  # noqa: DTZ001
}


# --- what it takes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [(), ("big",)])
def test_every_type_it_creates_a_column_for_comes_out_as_it_went_in(
    url: str, tmp_path: Path, run_sql: Run, key: tuple[str, ...]
) -> None:
    context = context_in(tmp_path, FIRST, key=key)
    sink = SqlSink(SqlTable(url, keep_before_images=True), context)
    columns = {name: (of, arrow) for name, (of, arrow, _) in ALL_TYPES.items()}
    values = [value for _, _, value in ALL_TYPES.values()]
    empty = [5 if name in key else None for name in ALL_TYPES]
    sink.publish([staged(context.work_dir, 0, columns, [values, empty])], permit(1))
    if url.startswith("sqlite"):
        values[7] = "1234567890123456.7890"
        values[10:] = ["2026-11-22", "2026-11-22 01:02:03.000045", "2026-11-22 01:02:03.000045"]
    listed = ", ".join('"' + name.replace('"', '""') + '"' for name in ALL_TYPES)
    first = [tuple(values), tuple(empty)]
    assert run_sql(f"SELECT {listed} FROM orders ORDER BY whole NULLS LAST") == first
    sink.publish([staged(context.work_dir, 1, columns, [empty])], permit(2))
    sink.publish([staged(context.work_dir, 2, columns, [empty])], permit(3))
    sink.roll_back(cut_at(sink, 1), LaterRows.SET_ASIDE)
    assert run_sql(f"SELECT {listed} FROM orders ORDER BY whole NULLS LAST") == first


def test_rows_that_it_could_not_publish_are_refused_while_they_are_prepared(
    tmp_path: Path, spark: SparkSession
) -> None:
    sink = SqlSink(SqlTable(f"sqlite:///{tmp_path}/shop.db"), context_in(tmp_path, FIRST, key=("id",)))
    with pytest.raises(InvalidRequest, match=r"'tags'.*to_json"):
        sink.check(spark.sql("SELECT 1L AS id, array('a') AS tags"))
    with pytest.raises(InvalidRequest, match="'_dagster_ckpt_x'"):
        sink.check(spark.sql("SELECT 1L AS id, 1 AS _dagster_ckpt_x"))
    with pytest.raises(InvalidRequest, match="'id'"):
        sink.check(spark.sql("SELECT 1L AS other"))
    rows = spark.sql("SELECT 1L AS id, 'x' AS name")
    sink.check(rows)
    assert sum(file.rows for file in sink.prepare(rows, BatchId(0)).files) == 1
    prepare = preparing(sink, tmp_path / "stage")
    with pytest.raises(InvalidRequest, match="'id' has no value in 1 of the 1 rows"):
        prepare(spark.sql("SELECT CAST(NULL AS BIGINT) AS id, 'x' AS name"), 1)
    prepare(spark.sql("SELECT 1L AS id, double('Infinity') AS share, 'x' AS b"), 2)
    with pytest.raises(
        InvalidRequest, match=r"'share' has NaN in 1 of the 1 rows of batch 3, such as NaN, and sqlite"
    ):
        prepare(spark.sql("SELECT 1L AS id, double('NaN') AS share, 'x' AS b"), 3)
    assert prepared_batches(tmp_path / "stage") == [2]


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("k BIGINT, v VARCHAR(10)", "column 'v'"),
        ("k BIGINT, v BIGINT, w TEXT NOT NULL", r"\['w'\]"),
        ("k BIGINT, v BIGINT", "unique constraint"),
        ("k BIGINT, v BIGINT; (k) WHERE v > 0", "unique constraint"),
        ("k BIGINT, v BIGINT; (abs(k))", "unique constraint"),
        (
            "k BIGINT PRIMARY KEY, v BIGINT; VIEW SELECT * FROM kept",
            "is a view, and rows are written to a table",
        ),
        ("k BIGINT, v BIGINT; (k, v)", "unique constraint"),
        ("k BIGINT UNIQUE DEFERRABLE, v BIGINT", "unique constraint"),
        ("k BIGINT UNIQUE, v BIGINT);CREATE TABLE heir () INHERITS (orders", "a table that others INHERIT"),
        ("k BIGINT PRIMARY KEY, v BIGINT GENERATED ALWAYS AS (k + 1) STORED", "'v' .* is computed"),
    ],
)
def test_a_table_that_cannot_take_the_rows_is_refused_with_what_to_change(
    url: str, tmp_path: Path, run_sql: Run, table: str, reason: str
) -> None:
    if any(word in table for word in ("DEFERRABLE", "INHERITS")) and url.startswith("sqlite"):
        pytest.skip("SQLite has no such constraints")
    columns, _, index = table.partition("; ")
    view = index.partition("VIEW ")[2]
    run_sql(f"CREATE TABLE {'kept' if view else 'orders'} ({columns})")
    if view:
        run_sql(f"CREATE VIEW orders AS {view}")
        index = ""
    if index:
        run_sql(f"CREATE UNIQUE INDEX one ON orders {index}")
    context = context_in(tmp_path, FIRST, key=("k",))
    with pytest.raises(InvalidRequest, match=reason):
        SqlSink(SqlTable(url), context).publish([staged(context.work_dir, 0, LONGS, [(1, 1)])], permit(1))


def test_a_key_that_the_table_compares_in_any_case_is_refused(url: str, tmp_path: Path, run_sql: Run) -> None:
    """Rows of 'a' and 'A' are two to Spark, and the one that was written last is not the one that stayed."""
    collation = "NOCASE" if url.startswith("sqlite") else "anycase"
    if not url.startswith("sqlite"):
        run_sql(
            "CREATE COLLATION anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
        )
    run_sql(f"CREATE TABLE orders (k TEXT COLLATE {collation} PRIMARY KEY, v BIGINT)")
    context = context_in(tmp_path, FIRST, key=("k",))
    rows: Columns = {"k": ("string", pa.string()), "v": LONGS["v"]}
    with pytest.raises(InvalidRequest, match="takes no notice of case"):
        SqlSink(SqlTable(url), context).publish([staged(context.work_dir, 0, rows, [("a", 1)])], permit(1))


@pytest.mark.parametrize(
    ("constraint", "named"),
    [
        ("v BIGINT CONSTRAINT positive CHECK (v > 0)", "CHECK positive"),
        ("v BIGINT UNIQUE", "UNIQUE orders"),
        ("v BIGINT CONSTRAINT known REFERENCES known", "FOREIGN KEY known"),
    ],
)
def test_rows_that_a_constraint_refuses_are_told_with_its_name_and_come_once_it_is_gone(
    url: str, tmp_path: Path, run_sql: Run, constraint: str, named: str
) -> None:
    if "REFERENCES" in constraint and url.startswith("sqlite"):
        pytest.skip("SQLite compares foreign keys only where a connection asks for it")
    run_sql("CREATE TABLE known (k BIGINT PRIMARY KEY)")
    run_sql(f"CREATE TABLE orders (k BIGINT PRIMARY KEY, {constraint})")
    context = context_in(tmp_path, FIRST, key=("k",))
    sink = SqlSink(SqlTable(url), context)
    batches = [staged(context.work_dir, 0, LONGS, [(1, -1), (2, -1)])]
    with pytest.raises(
        InvalidRequest, match=rf"by {named}\S* of the table, nothing was changed.*change or drop"
    ):
        sink.publish(batches, permit(1))
    run_sql("DROP TABLE orders")
    run_sql("CREATE TABLE orders (k BIGINT PRIMARY KEY, v BIGINT)")
    sink.publish(batches, permit(2))
    assert run_sql("SELECT * FROM orders ORDER BY k") == [(1, -1), (2, -1)]


@pytest.mark.parametrize("refusal", ["a trigger", "a long text in an index"])
def test_rows_that_the_database_refuses_in_other_ways_are_not_called_to_be_tried_again(
    url: str, tmp_path: Path, run_sql: Run, refusal: str
) -> None:
    """PostgreSQL calls them operational errors, and each publish tried them again without a way out."""
    if refusal != "a trigger" and url.startswith("sqlite"):
        pytest.skip("SQLite takes any text in an index")
    run_sql("CREATE TABLE orders (k BIGINT PRIMARY KEY, v TEXT)")
    if refusal != "a trigger":
        run_sql("CREATE INDEX long_texts ON orders (v)")
    elif url.startswith("sqlite"):
        run_sql("CREATE TRIGGER no BEFORE INSERT ON orders BEGIN SELECT RAISE(ABORT, 'not today'); END")
    else:
        run_sql(
            "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'not today'; END$$"
        )
        run_sql("CREATE TRIGGER no BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION no()")
    context = context_in(tmp_path, FIRST, key=("k",))
    rows: Columns = {"k": LONGS["k"], "v": ("string", pa.string())}
    text = "".join(sha256(str(number).encode()).hexdigest() for number in range(1000))
    said = "not today" if refusal == "a trigger" else "index row"
    with pytest.raises(InvalidRequest, match=rf"refuses these rows, nothing was changed: .*{said}"):
        SqlSink(SqlTable(url), context).publish([staged(context.work_dir, 0, rows, [(1, text)])], permit(1))


def test_a_single_precision_number_is_the_same_one_in_a_column_of_double_precision(
    url: str, tmp_path: Path, run_sql: Run
) -> None:
    """Its shortest text, 0.1, is another number there."""
    run_sql("CREATE TABLE orders (single REAL, double DOUBLE PRECISION)")
    context = context_in(tmp_path, FIRST)
    numbers: Columns = {name: ("float", pa.float32()) for name in ("single", "double")}
    values = pa.array([0.1, 16777217.0, 3.4e38, 1e-45, -0.0], pa.float32()).to_pylist()
    rows = [(value, value) for value in values]
    SqlSink(SqlTable(url), context).publish([staged(context.work_dir, 0, numbers, rows)], permit(1))
    found = [one for (one,) in run_sql("SELECT double FROM orders ORDER BY double")]
    assert found == sorted(values)
    same = run_sql("SELECT count(*) FROM orders WHERE CAST(single AS DOUBLE PRECISION) = double")
    assert same == [(5,)]


def test_columns_that_the_database_fills_by_itself_come_back_with_a_restore(
    url: str, tmp_path: Path, run_sql: Run
) -> None:
    numbered = "" if url.startswith("sqlite") else ", n BIGINT GENERATED ALWAYS AS IDENTITY"
    run_sql(
        f"CREATE TABLE orders (k BIGINT PRIMARY KEY, v BIGINT, w BIGINT GENERATED ALWAYS AS (v + 1) STORED{numbered})"
    )
    context = context_in(tmp_path, FIRST, key=("k",))
    sink = SqlSink(SqlTable(url, keep_before_images=True), context)
    sink.publish([staged(context.work_dir, 0, LONGS, [(1, 1), (2, 2)])], permit(1))
    before = run_sql("SELECT * FROM orders ORDER BY k")
    sink.publish([staged(context.work_dir, 1, LONGS, [(2, 3), (3, 3)])], permit(2))
    sink.roll_back(cut_at(sink, 1), LaterRows.SET_ASIDE)
    assert run_sql("SELECT * FROM orders ORDER BY k") == before


def test_a_table_of_the_users_own_keeps_its_columns_rows_and_defaults(
    url: str, tmp_path: Path, run_sql: Run
) -> None:
    run_sql("CREATE TABLE orders (k BIGINT PRIMARY KEY, v BIGINT NOT NULL, seen TEXT DEFAULT 'no' NOT NULL)")
    run_sql("INSERT INTO orders VALUES (1, 1, 'yes'), (9, 9, 'yes')")
    context = context_in(tmp_path, FIRST, key=("k",))
    sink = SqlSink(SqlTable(url, keep_before_images=True), context)
    sink.publish([staged(context.work_dir, 0, LONGS, [(1, 2), (3, 3)])], permit(1))
    assert run_sql("SELECT * FROM orders ORDER BY k") == [(1, 2, "yes"), (3, 3, "no"), (9, 9, "yes")]
    sink.roll_back(None, LaterRows.SET_ASIDE)
    assert run_sql("SELECT * FROM orders ORDER BY k") == [(1, 1, "yes"), (9, 9, "yes")]
    assert run_sql("SELECT k, v FROM orders__dagster_ckpt_set_aside ORDER BY k") == [(1, 2), (3, 3)]


OTHERS = {
    "all rows": ("DELETE FROM orders", "all rows up to checkpoint 3 are gone"),
    "a row of the newest publish": (
        "DELETE FROM orders WHERE v = 30",
        "1 row that checkpoint 3 published are gone",
    ),
    "a row of one before": ("DELETE FROM orders WHERE v = 2", "1 row that checkpoint 2 published are gone"),
    "a column": ("ALTER TABLE orders DROP COLUMN v", r"columns \['v'\] are gone"),
    "a column's name": (
        'ALTER TABLE orders RENAME COLUMN k TO "K"',
        r"columns \['k'\], by which the rows of .* are taken back, were renamed",
    ),
    "the table, made again": (
        "DROP TABLE orders; CREATE TABLE orders (k BIGINT UNIQUE, v BIGINT)",
        "all rows up to",
    ),
}
"""Doings of others between two publishes, and how a restore tells of them."""
MENDED = {
    "a column": "ALTER TABLE orders ADD COLUMN v BIGINT",
    "a column's name": 'ALTER TABLE orders RENAME COLUMN "K" TO k',
}
"""What those do who keep the rows, before more can come."""


@pytest.mark.parametrize("key", [(), ("k",)])
@pytest.mark.parametrize("done", OTHERS)
def test_a_restore_is_refused_where_others_removed_what_it_would_show(
    url: str, tmp_path: Path, run_sql: Run, done: str, key: tuple[str, ...]
) -> None:
    """It succeeded, and the rows were missing; those who keep them go on. Of a renamed column also a restore without
    state said what the database says, or to try again for ever.
    """
    statements, said = OTHERS[done]
    context = context_in(tmp_path, FIRST, key=key)
    sink = SqlSink(SqlTable(url, keep_before_images=True), context)
    for number, row in enumerate([(1, 1), (2, 2)]):
        sink.publish([staged(context.work_dir, number, LONGS, [row])], permit(1 + number))
    sink.publish([staged(context.work_dir, 2, LONGS, [(3, 30)])], permit(3))
    for statement in statements.split("; "):
        run_sql(statement)
    for cut in (cut_at(sink, 1), cut_at(sink, 3), *([None] if done == "a column's name" else [])):
        assert re.search(said, sink.cannot_roll_back(cut))
        with pytest.raises(InvalidRequest, match=rf"{said} .*keep the rows"):
            sink.roll_back(cut, LaterRows.SET_ASIDE)
    sink.roll_back(cut_at(sink, 3), LaterRows.KEEP)
    if done in MENDED:
        with pytest.raises(InvalidRequest, match=r"'[kv]', which earlier rows of the sink have, is gone"):
            sink.publish([staged(context.work_dir, 3, LONGS, [(4, 4)])], permit(4))
        run_sql(MENDED[done])
    sink.publish([staged(context.work_dir, 4, LONGS, [(5, 5)])], permit(5))
    assert (5, 5) in run_sql("SELECT k, v FROM orders")


@pytest.mark.parametrize(
    ("key", "done"),
    [
        (
            (),
            ("ALTER TABLE orders RENAME TO kept; CREATE VIEW orders AS SELECT * FROM kept", "is a view, and"),
        ),
        (("k",), ("DELETE FROM orders__dagster_ckpt_undo", "what checkpoint 3 has changed is gone")),
        ((), ("DROP TABLE dagster_ckpt_publishes", "are not kept")),
        ((), ("ALTER TABLE orders DROP COLUMN _dagster_ckpt_checkpoint", "by which the rows of")),
    ],
    ids=["table", "before-images", "publishes", "mark"],
)
def test_a_restore_is_refused_where_others_removed_what_it_goes_by(
    url: str, tmp_path: Path, run_sql: Run, key: tuple[str, ...], done: tuple[str, str]
) -> None:
    """Rows stayed, in a restore that succeeded; without the list of publishes none was taken any more."""
    statements, said = done
    context = context_in(tmp_path, FIRST, key=key)
    sink = SqlSink(SqlTable(url, keep_before_images=True), context)
    for number in (1, 2, 3):
        sink.publish([staged(context.work_dir, number, LONGS, [(number, number)])], permit(number))
    cut = cut_at(sink, 1)
    for statement in statements.split("; "):
        run_sql(statement)
    assert said in sink.cannot_roll_back(cut)
    with pytest.raises(InvalidRequest, match=said):
        sink.roll_back(cut, LaterRows.SET_ASIDE)
    if "VIEW" not in statements:
        sink.publish([staged(context.work_dir, 4, LONGS, [(4, 4)])], permit(4))
    assert len(run_sql("SELECT k FROM orders")) == (3 if "VIEW" in statements else 4)


TAKEN_FOR_OTHERS = {
    (): ("UPDATE orders SET _dagster_ckpt_checkpoint = NULL", r"row with k = .* empty the table"),
    ("k",): ("DELETE FROM dagster_ckpt_positions", "row of dagster_ckpt_positions, .* empty the table"),
}
"""Doings of others by which rows of ours look like theirs, by key."""


@pytest.mark.parametrize("key", TAKEN_FOR_OTHERS)
def test_rows_that_look_like_those_of_others_are_not_written_again_beside_themselves(
    url: str, tmp_path: Path, run_sql: Run, key: tuple[str, ...]
) -> None:
    """A beginning without state left them in the table: each was there twice."""
    statement, said = TAKEN_FOR_OTHERS[key]
    context = context_in(tmp_path, FIRST, key=key)
    sink = SqlSink(SqlTable(url, keep_before_images=True), context)
    rows = [staged(context.work_dir, 0, LONGS, [(1, 1), (2, 2)])]
    sink.publish(rows, permit(1))
    run_sql(statement)
    assert re.search(said, sink.cannot_roll_back(None))
    with pytest.raises(InvalidRequest, match=said):
        sink.roll_back(None, LaterRows.SET_ASIDE)
    run_sql("DELETE FROM orders")
    sink.roll_back(None, LaterRows.SET_ASIDE)
    sink.publish(rows, permit(2))
    assert run_sql("SELECT k, v FROM orders ORDER BY k") == [(1, 1), (2, 2)]


def test_a_row_that_others_removed_before_it_came_again_is_missed_by_a_restore_behind_that(
    url: str, tmp_path: Path, run_sql: Run
) -> None:
    """Its before-image says that there was none: the restore succeeded without it."""
    context = context_in(tmp_path, FIRST, key=("k",))
    sink = SqlSink(SqlTable(url), context)
    sink.publish([staged(context.work_dir, 0, LONGS, [(1, 1), (2, 2)])], permit(1))
    run_sql("DELETE FROM orders WHERE k = 1")
    sink.publish([staged(context.work_dir, 1, LONGS, [(1, 10)])], permit(2))
    assert sink.cannot_roll_back(cut_at(sink, 2)) == ""
    why = "1 row that checkpoint 1 published are gone"
    assert why in sink.cannot_roll_back(cut_at(sink, 1))
    with pytest.raises(InvalidRequest, match=why):
        sink.roll_back(cut_at(sink, 1), LaterRows.SET_ASIDE)
    assert sorted(run_sql("SELECT k, v FROM orders")) == [(1, 10), (2, 2)]


@pytest.mark.parametrize("keeps", [True, False])
def test_a_table_that_others_emptied_is_told_from_one_that_had_no_rows_yet(
    url: str, tmp_path: Path, run_sql: Run, keeps: bool
) -> None:
    """Without before-images it was missed; with them a table without rows, which was right, was called emptied."""
    context = context_in(tmp_path, FIRST)
    sink = SqlSink(SqlTable(url, keep_before_images=keeps), context)
    sink.publish([staged(context.work_dir, 0, LONGS, [])], permit(1))
    assert sink.cannot_roll_back(cut_at(sink, 1)) == ""
    sink.publish([staged(context.work_dir, 1, LONGS, [(1, 1)])], permit(2))
    if keeps:
        sink.roll_back(cut_at(sink, 1), LaterRows.SET_ASIDE)
        assert sink.cannot_roll_back(cut_at(sink, 1)) == ""
        sink.roll_back(cut_at(sink, 2), LaterRows.SET_ASIDE)
    run_sql("DELETE FROM orders")
    assert "all rows up to checkpoint 2 are gone" in sink.cannot_roll_back(cut_at(sink, 2))
    with pytest.raises(InvalidRequest, match="all rows up to checkpoint 2 are gone"):
        sink.roll_back(cut_at(sink, 2), LaterRows.SET_ASIDE)
    sink.roll_back(cut_at(sink, 2), LaterRows.KEEP)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (
            3,
            r"row with k = 1 of .* changed by somebody else, which going back to checkpoint 1 would undo: give",
        ),
        (2, r"row with k = 1 of .* by somebody else and would not be as checkpoint 1 showed it: give"),
        (4, r"row with k = 3 of .* by somebody else and would not be as checkpoint 1 showed it: give"),
    ],
)
def test_a_restore_is_refused_where_it_would_undo_or_bring_back_what_others_made_of_a_row(
    url: str, tmp_path: Path, run_sql: Run, number: int, said: str
) -> None:
    """It succeeded: with their UPDATE undone, or with a row that the checkpoint never showed."""
    context = context_in(tmp_path, FIRST, key=("k",))
    sink = SqlSink(SqlTable(url), context)
    for checkpoint, rows in enumerate([[(1, 1), (2, 2), (3, 3)], [(1, 10), (2, 20)], [(2, 200)]], start=1):
        if checkpoint == number:
            run_sql("UPDATE orders SET v = -v WHERE k = 1")
        sink.publish([staged(context.work_dir, checkpoint, LONGS, rows)], permit(checkpoint))
    if number == 4:
        run_sql("UPDATE orders SET v = -v WHERE k = 3")  # no publish since has written it
    else:
        assert (sink.cannot_roll_back(cut_at(sink, 2)) == "") is (number == 2), (
            "it came again at checkpoint 2"
        )
    before = sorted(run_sql("SELECT k, v FROM orders"))
    assert re.search(said, sink.cannot_roll_back(cut_at(sink, 1)))
    with pytest.raises(InvalidRequest, match=said):
        sink.roll_back(cut_at(sink, 1), LaterRows.SET_ASIDE)
    assert sorted(run_sql("SELECT k, v FROM orders")) == before
    if number == 3:
        run_sql("UPDATE orders SET v = 10 WHERE k = 1")
        sink.roll_back(cut_at(sink, 1), LaterRows.SET_ASIDE)
        assert sorted(run_sql("SELECT k, v FROM orders")) == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("key", [(), ("k",)])
def test_a_table_goes_back_over_many_publishes_and_a_column_that_others_added(
    url: str, tmp_path: Path, run_sql: Run, key: tuple[str, ...]
) -> None:
    """A query that was nested for each publish went too deep for the database: no restore, and no older rows."""
    context = context_in(tmp_path, FIRST, key=key)
    sink = SqlSink(SqlTable(url, keep_before_images=True), context)
    last = 60 if url.startswith("sqlite") else 6
    for number in range(last):
        sink.publish([staged(context.work_dir, number, LONGS, [(number % 3, number)])], permit(1 + number))
    run_sql("ALTER TABLE orders ADD COLUMN note VARCHAR(9) NOT NULL DEFAULT 'none'")
    early = cut_at(sink, 2)
    assert sorted(zip(*(sink.rows(early).to_arrow()[c].to_pylist() for c in "kv"), strict=True)) == [
        (0, 0),
        (1, 1),
    ]
    assert sink.cannot_roll_back(early) == ""
    sink.roll_back(early, LaterRows.SET_ASIDE)
    assert sorted(run_sql("SELECT k, v, note FROM orders")) == [(0, 0, "none"), (1, 1, "none")]
    sink.roll_back(cut_at(sink, last), LaterRows.SET_ASIDE)
    assert len(run_sql("SELECT * FROM orders WHERE note = 'none'")) == (3 if key else last)


@pytest.mark.parametrize(("key", "is_of_before"), [(("v",), False), ((), False), ((), True)])
def test_publishes_by_another_key_are_undone_by_theirs(
    url: str, tmp_path: Path, run_sql: Run, key: tuple[str, ...], *, is_of_before: bool
) -> None:
    """By the key of now nothing was found of theirs: begun without state, a table kept its rows; a restore called them
    removed by somebody else, or failed with the database's own words.
    """
    run_sql("CREATE TABLE orders (k BIGINT, v BIGINT)")
    run_sql("CREATE UNIQUE INDEX by_k ON orders (k)")
    context = context_in(tmp_path, FIRST, key=("k",))
    was = SqlSink(SqlTable(url, keep_before_images=True), context)
    was.publish([staged(context.work_dir, 0, LONGS, [(1, 10)])], permit(1))
    was.publish([staged(context.work_dir, 1, LONGS, [(1, 20), (2, 5)])], permit(2))
    if is_of_before:  # a version that wrote the key alone
        run_sql("UPDATE dagster_ckpt_publishes SET key_columns = '[\"k\"]' WHERE checkpoint_id > 0")
    run_sql("DROP INDEX by_k")
    run_sql("CREATE UNIQUE INDEX by_v ON orders (v)")
    now = SqlSink(SqlTable(url, keep_before_images=True), replace(context, key=key))
    now.publish([staged(context.work_dir, 2, LONGS, [(3, 30)])], permit(3))
    for kept in (3, 2):
        assert now.cannot_roll_back(cut_at(now, kept)) == ""
        now.roll_back(cut_at(now, kept), LaterRows.SET_ASIDE)
        assert sorted(run_sql("SELECT k, v FROM orders"))[:2] == [(1, 20), (2, 5)]
    said = r"rows of checkpoint 2 went to .* by the key \['k'\], and the sink has .* now: choose a later checkpoint"
    assert re.search(said, now.cannot_roll_back(cut_at(now, 1)))
    for act in (now.rows, lambda cut: now.roll_back(cut, LaterRows.SET_ASIDE)):
        with pytest.raises(InvalidRequest, match=said):
            act(cut_at(now, 1))
    fork = context_in(tmp_path, FIRST, pipeline="fork", name="copies", key=key)
    with pytest.raises(InvalidRequest, match=r"were written by the key \['k'\]"):
        SqlSink(SqlTable(url, "copies"), fork).refuse_fork(cut_at(now, 2))
    now.roll_back(None, LaterRows.SET_ASIDE)
    assert run_sql("SELECT k, v FROM orders") == []


# --- who writes, and what is kept ---------------------------------------------------------------------------------


def test_a_table_has_one_pipeline_and_only_its_newest_attempt_writes(url: str, tmp_path: Path) -> None:
    context = context_in(tmp_path, FIRST)
    sink = SqlSink(SqlTable(url), context)
    sink.take_over()
    other = SqlSink(SqlTable(url, "orders"), context_in(tmp_path, FIRST, pipeline="other"))
    assert other.position() is None
    with pytest.raises(InvalidRequest, match="'shop'"):
        other.take_over()
    note_published(tmp_path / "stage", other.place, SinkPosition(lineage="first", epoch=1, head=1))
    with pytest.raises(InvalidRequest, match="is written by pipeline 'shop': give"):  # not: it was put back
        position_of(other, tmp_path / "stage")
    SqlSink(SqlTable(url), in_attempt(context, replace(FIRST, epoch=CoordinatorEpoch(2)))).take_over()
    with pytest.raises(Fenced):
        sink.publish([staged(context.work_dir, 0, LONGS, [(1, 1)])], permit(1))


@pytest.mark.parametrize(
    ("key", "loaded"),
    [
        ((), ("positions",)),
        ((), ("publishes",)),
        ((), ("positions", "publishes")),
        (("k",), ("positions",)),
        (("k",), ("publishes",)),
    ],
)
def test_tables_of_backups_of_several_moments_are_told(
    url: str, tmp_path: Path, run_sql: Run, loaded: tuple[str, ...], key: tuple[str, ...]
) -> None:
    """They stayed with a restore and came a second time, and a reader of the older checkpoint found them."""
    context = context_in(tmp_path, FIRST, key=key)
    sink = SqlSink(SqlTable(url, keep_before_images=True), context)
    sink.publish([staged(context.work_dir, 1, LONGS, [(1, 1)])], permit(1))
    ours = [f"dagster_ckpt_{name}" for name in loaded]
    for table in ours:
        run_sql(f"CREATE TABLE old_{table} AS SELECT * FROM {table}")
    sink.publish([staged(context.work_dir, 2, LONGS, [(2, 2)])], permit(2))
    for table in ours:
        run_sql(f"DELETE FROM {table}")
        run_sql(f"INSERT INTO {table} SELECT * FROM old_{table}")
    newer = SqlSink(
        SqlTable(url, keep_before_images=True), in_attempt(context, AttemptId("first", CoordinatorEpoch(2)))
    )
    with pytest.raises((InvalidRequest, Corrupt), match=r"of another moment: load all|not kept"):
        newer.rows(replace(cut_at(sink, 1), lineages=frozenset({"first"})))
    for cut in (cut_at(sink, 1), None):
        assert "of another moment" in newer.cannot_roll_back(cut)
    beside = ("orders__dagster_ckpt_undo", "orders__dagster_ckpt_set_aside")
    for table in (*beside, "dagster_ckpt_positions", "dagster_ckpt_publishes"):
        run_sql(f"DROP TABLE {table}")
    assert bool(newer.cannot_roll_back(None)) is not bool(key), "rows without a mark may be of others"
    run_sql("DROP TABLE orders")
    newer.roll_back(None, LaterRows.SET_ASIDE)
    batch = staged(context.work_dir, 3, LONGS, [(1, 1)])
    assert newer.publish([batch], replace(permit(3), epoch=CoordinatorEpoch(2))) != AlreadyPublished()
    assert run_sql("SELECT k FROM orders") == [(1,)]


@pytest.mark.parametrize("checkpoint", [1, 2])
def test_rows_of_another_deployment_are_not_those_of_a_snapshot_with_its_number(
    url: str, tmp_path: Path, run_sql: Run, checkpoint: int
) -> None:
    """A database was loaded over another's: readers and forks took its rows for the snapshot's, and restores that
    came after one that had kept them.
    """
    context = context_in(tmp_path, FIRST)
    for keeps in (True, False):
        sink = SqlSink(SqlTable(url, f"orders{int(keeps)}", keep_before_images=keeps), context)
        for number in (1, 2):
            batch = staged(tmp_path / f"{keeps}", number, LONGS, [(number, number)])
            SqlSink(
                SqlTable(url, f"orders{int(keeps)}", keep_before_images=keeps),
                replace(context, work_dir=tmp_path / f"{keeps}"),
            ).publish([batch], permit(number))
        cut = replace(cut_at(sink, checkpoint), lineages=frozenset({"second"}))
        fork = SqlSink(SqlTable(url, "again"), context_in(tmp_path, FIRST, pipeline="again"))
        with pytest.raises(InvalidRequest, match=r"another history \(first\)|are not kept"):
            fork.refuse_fork(cut)
        if keeps:
            with pytest.raises(InvalidRequest, match=r"another history \(first\)"):
                sink.rows(cut)
            later = SqlSink(
                SqlTable(url, "orders1"), in_attempt(context, AttemptId("second", CoordinatorEpoch(2)))
            )
            later.roll_back(None, LaterRows.KEEP)
            assert "another history (first)" in later.cannot_roll_back(cut)
    assert run_sql("SELECT k FROM orders1 ORDER BY k") == [(1,), (2,)]


@pytest.mark.parametrize("keeps", [False, True])
def test_a_table_that_was_removed_shows_nothing(url: str, tmp_path: Path, run_sql: Run, keeps: bool) -> None:
    """Its position was still there: the next publish made a table of its own rows alone, and the run succeeded."""
    context = context_in(tmp_path, FIRST)
    sink = SqlSink(SqlTable(url, keep_before_images=keeps), context)
    sink.publish([staged(context.work_dir, 0, LONGS, [(1, 1)])], permit(1))
    note_published(tmp_path / "stage", sink.place, sink.position())
    run_sql("DROP TABLE orders")
    position = sink.position()
    assert position is not None
    assert (position.checkpoint_id, position.head, position.through_batch) == (1, None, None)
    with pytest.raises(Corrupt, match="shows nothing, but checkpoint 1 was published to it"):
        position_of(sink, tmp_path / "stage")
    with pytest.raises(InvalidRequest, match=r"others has none of .* are in .*#orders\. .* a new uid"):
        position_of(SqlSink(SqlTable(url, "others"), context), tmp_path / "stage")
    shown = TableSnapshot(uri=sink.place, head=1)
    cut = SinkCut(snapshot=shown, batches=(), checkpoint_id=CheckpointId(1), lineages=frozenset({"first"}))
    assert "was removed, and its rows with it" in sink.cannot_roll_back(cut)
    with pytest.raises(Corrupt, match="was removed, and its rows with it"):
        sink.roll_back(cut, LaterRows.SET_ASIDE)
    assert "shows no rows, without the rows of checkpoint 1" in sink.why_not_kept(cut)
    with pytest.raises(InvalidRequest, match="without the rows of checkpoint 1"):
        sink.roll_back(cut, LaterRows.KEEP)
    sink.roll_back(None, LaterRows.SET_ASIDE)
    sink.publish([staged(context.work_dir, 1, LONGS, [(2, 2)])], permit(2))
    assert run_sql("SELECT k, v FROM orders") == [(2, 2)]


def test_a_table_that_two_sinks_spell_in_two_ways_is_refused_to_the_second(url: str, tmp_path: Path) -> None:
    """They shared the position: what the one had published passed for published by the other."""
    other_spelling = "main.orders" if url.startswith("sqlite") else "public.orders"
    context = context_in(tmp_path, FIRST)
    SqlSink(SqlTable(url), context).take_over()
    second = SqlSink(SqlTable(url, other_spelling), context_in(tmp_path, FIRST, name="copies"))
    with pytest.raises(
        InvalidRequest, match=r"is the table that sink 'orders' writes, under another spelling"
    ):
        second.take_over()
    later = replace(FIRST, epoch=CoordinatorEpoch(2))
    renamed = SqlSink(SqlTable(url, "orders"), context_in(tmp_path, later, name="copies"))
    renamed.take_over()
    position = renamed.position()
    assert position is not None
    assert position.epoch == 2


def test_text_reaches_a_database_of_another_encoding_as_it_is(
    postgres_server: PostgresCluster, postgres_url: str, tmp_path: Path
) -> None:
    """Such a database took the bytes of UTF-8 for letters of its own."""
    engine = sqlalchemy.create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sqlalchemy.text(f"CREATE DATABASE latin_{postgres_server.port} {_LATIN}"))
    latin = engine.url.set(database=f"latin_{postgres_server.port}")
    engine.dispose()
    context = context_in(tmp_path, FIRST)
    sink = SqlSink(SqlTable(latin.set(drivername="postgresql")), context)
    columns: Columns = {"größe": ("string", pa.string())}
    sink.publish([staged(context.work_dir, 0, columns, [("Käse",)])], permit(1))
    engine = sqlalchemy.create_engine(latin)
    with engine.connect() as connection:
        assert connection.execute(sqlalchemy.text('SELECT "größe" FROM orders')).all() == [("Käse",)]
    engine.dispose()
    with pytest.raises(InvalidRequest, match="refuses these rows"):
        sink.publish([staged(context.work_dir, 1, columns, [("チーズ",)])], permit(2))


def test_a_column_that_changed_its_case_between_two_batches_keeps_its_values(
    url: str, tmp_path: Path, run_sql: Run
) -> None:
    """A stream stops, its code is changed, and one checkpoint publishes what was prepared before and after."""
    context = context_in(tmp_path, FIRST)
    sink = SqlSink(SqlTable(url), context)
    before: Columns = {"K": ("long", pa.int64()), "v": ("long", pa.int64())}
    batches = [staged(context.work_dir, 0, before, [(1, 10)]), staged(context.work_dir, 1, LONGS, [(2, 20)])]
    sink.publish(batches, permit(1))
    assert run_sql("SELECT * FROM orders ORDER BY v") == [(1, 10), (2, 20)]


def test_whether_rows_may_leave_is_known_without_asking_the_database(tmp_path: Path) -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/nowhere"
    context = context_in(tmp_path, FIRST)
    assert "keep_before_images=True" in SqlSink(SqlTable(nowhere), context).never_rolls_back
    assert SqlSink(SqlTable(nowhere, keep_before_images=True), context).never_rolls_back == ""
    by_key = context_in(tmp_path, FIRST, key=("k",))
    assert SqlSink(SqlTable(nowhere), by_key).never_rolls_back == ""
    assert SqlSink(SqlTable(nowhere, keep_before_images=False), by_key).never_rolls_back


def test_before_images_go_once_no_cut_needs_them(url: str, tmp_path: Path, run_sql: Run) -> None:
    context = context_in(tmp_path, FIRST, key=("k",))
    sink = SqlSink(SqlTable(url, keep_before_images=True), context)
    cuts = []
    for checkpoint in (1, 2, 3):
        batch = staged(context.work_dir, checkpoint, LONGS, [(1, checkpoint)])
        sink.publish([batch], permit(checkpoint))
        cuts.append(cut_at(sink, checkpoint))
    assert run_sql("SELECT count(*) FROM orders__dagster_ckpt_undo") == [(3,)]
    assert sink.collect_garbage([cuts[1].snapshot], []) > 0
    assert run_sql("SELECT count(*) FROM orders__dagster_ckpt_undo") == [(1,)]
    assert "not kept" in sink.cannot_roll_back(cuts[0])
    assert sink.cannot_roll_back(cuts[1]) == ""
    sink.roll_back(cuts[1], LaterRows.SET_ASIDE)
    assert run_sql("SELECT k, v FROM orders") == [(1, 2)]


# --- where it is --------------------------------------------------------------------------------------------------


def test_no_password_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql://me:secret@127.0.0.1:1/shop?sslmode=disable"
    monkeypatch.setenv("SHOP_URL", url)
    context = context_in(tmp_path, FIRST)
    for given in (url, "env:SHOP_URL", sqlalchemy.make_url(url)):
        target = SqlTable(given)
        sink = SqlSink(target, context)
        assert sink.place == "postgresql://127.0.0.1:1/shop#orders"
        with pytest.raises(Unavailable, match="cannot be reached") as error:
            sink.position()
        assert "secret" not in f"{target!r} {error.value} {sink.place}"
    for wrong, reason in (
        ("env:NOT_SET", "NOT_SET"),
        ("mysql://me@host/shop", "mysql"),
        ("shop", "URL"),
        ("postgresql://me:a@secret@127.0.0.1:1/shop", "percent-encoded"),
        ("postgresql://me:secret@127.0.0.1:notaport/shop", "cannot be read"),
    ):
        with pytest.raises(InvalidRequest, match=reason) as refused:
            SqlSink(SqlTable(wrong), context)
        assert "secret" not in str(refused.value)


def test_an_environment_variable_of_dagster_names_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dagster as dg

    monkeypatch.setenv("SHOP_URL", f"sqlite:///{tmp_path}/shop.db")
    sink = SqlSink(SqlTable(dg.EnvVar("SHOP_URL")), context_in(tmp_path, FIRST))
    assert sink.place == f"sqlite:///{tmp_path}/shop.db#orders"


@pytest.mark.parametrize("loss", [Loss.REQUEST, Loss.ANSWER])
def test_a_commit_whose_answer_is_lost_is_repeated_and_happens_once(
    postgres_server: PostgresCluster, postgres_url: str, tmp_path: Path, loss: Loss
) -> None:
    proxy = CommitLosingProxy(postgres_server.port)
    context = context_in(tmp_path, FIRST)
    sink = SqlSink(SqlTable(postgres_url.replace(str(postgres_server.port), str(proxy.port))), context)
    sink.take_over()
    batches = [staged(context.work_dir, 0, LONGS, [(1, 1)])]
    proxy.loss = loss
    with pytest.raises(OutcomeUnknown, match="repeat"):
        sink.publish(batches, permit(1))
    again = sink.publish(batches, permit(1))
    assert isinstance(again, AlreadyPublished if loss is Loss.ANSWER else Published)
    position = sink.position()
    assert position is not None
    assert position.head == 1
    proxy.close()


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (
            ("decimal(10,2)", pa.decimal128(10, 2), decimal.Decimal("1.00")),
            ("decimal(12,4)", pa.decimal128(12, 4)),
        ),
        (
            ("decimal(10,0)", pa.decimal128(10, 0), decimal.Decimal(1)),
            ("decimal(12,2)", pa.decimal128(12, 2)),
        ),
        (("date", pa.date32(), dt.date(2026, 11, 22)), ("timestamp", pa.timestamp("us", "UTC"))),
    ],
)
def test_a_key_that_sqlite_keeps_as_text_may_not_become_another_text(
    tmp_path: Path, was: tuple[str, pa.DataType, Any], now: tuple[str, pa.DataType]
) -> None:
    """1.00 and 1.0000 are one key and two texts: its row was there twice."""
    context = context_in(tmp_path, FIRST, key=("k",))
    sink = SqlSink(SqlTable(f"sqlite:///{tmp_path}/shop.db"), context)
    before, after = ({"k": kind[:2], "v": ("long", pa.int64())} for kind in (was, now))
    sink.publish([staged(context.work_dir, 0, before, [(was[2], 1)])], permit(1))
    sink.publish([staged(context.work_dir, 1, before, [(was[2], 2)])], permit(2))
    value = dt.datetime(2026, 11, 22, tzinfo=dt.UTC) if was[0] == "date" else was[2]
    with pytest.raises(InvalidRequest, match=r"key column 'k' of .* a key would be there twice"):
        sink.publish([staged(context.work_dir, 2, after, [(value, 3)])], permit(3))


def test_a_column_whose_name_changes_its_case_is_refused(url: str, tmp_path: Path, run_sql: Run) -> None:
    """PostgreSQL took it for another column: rows by key kept an old value in the one, and got the new in the other."""
    context = context_in(tmp_path, FIRST, key=("k",))
    sink = SqlSink(SqlTable(url), context)
    sink.publish([staged(context.work_dir, 0, LONGS, [(1, 1)])], permit(1))
    other: Columns = {"k": LONGS["k"], "V": LONGS["v"]}
    with pytest.raises(InvalidRequest, match="column 'V' is called 'v' in"):
        sink.publish([staged(context.work_dir, 1, other, [(1, 2)])], permit(2))
    assert run_sql("SELECT * FROM orders") == [(1, 1)]
