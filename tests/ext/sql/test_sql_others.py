"""Others at work on a database's table: triggers and rules that they give it, types and rows that they change."""

from __future__ import annotations

import contextlib
import random
import re
import sqlite3
import tempfile
from collections import Counter
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from hypothesis import example, given, settings

from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.ext.sql.sink import SqlSink
from dagster_ckpt.ext.sql.target import SqlTable
from dagster_ckpt.spark.sink.port import LaterRows, Sink, SinkContext
from dagster_ckpt.testing.sinks.run import Row, SinkRun, Staging, context_in
from tests.ext.sql.tables import FIRST, LONGS, Columns, Run, cut_at, permit, staged
from tests.properties import examples
from tests.spark.sink.others_at_work import OURS, Table, steps

SQLITE, POSTGRES = "sqlite", "postgresql"
_DOES = "CREATE FUNCTION does() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {} END$$; "
_BEFORE = "CREATE TRIGGER one BEFORE INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION does()"
_AFTER = _BEFORE.replace("BEFORE", "AFTER")
_ONE = "CREATE TRIGGER one AFTER INSERT ON orders BEGIN {}; END"
_AGAIN = "DROP TABLE orders; CREATE TABLE orders (k BIGINT UNIQUE, v BIGINT UNIQUE ON CONFLICT"
TOLD = {
    "drops": (POSTGRES, _DOES.format("IF NEW.v < 0 THEN RETURN NULL; END IF; RETURN NEW;") + _BEFORE),
    "changes": (POSTGRES, _DOES.format("NEW.v := abs(NEW.v); RETURN NEW;") + _BEFORE),
    "removes": (POSTGRES, _DOES.format("DELETE FROM orders WHERE v < 0; RETURN NULL;") + _AFTER),
    "rule": (POSTGRES, "CREATE RULE one AS ON INSERT TO orders WHERE new.v < 0 DO INSTEAD NOTHING"),
    "ignores": (
        SQLITE,
        "CREATE TRIGGER one BEFORE INSERT ON orders WHEN NEW.v < 0 BEGIN SELECT RAISE(IGNORE); END",
    ),
    "updates": (SQLITE, _ONE.format("UPDATE orders SET v = abs(v) WHERE k = NEW.k")),
    "deletes": (SQLITE, _ONE.format("DELETE FROM orders WHERE v < 0")),
    "unique or ignored": (
        SQLITE,
        "DROP TABLE orders; CREATE TABLE orders (k BIGINT UNIQUE, v BIGINT UNIQUE ON CONFLICT IGNORE)",
    ),
    "unique or replaced": (
        SQLITE,
        "DROP TABLE orders; CREATE TABLE orders (k BIGINT UNIQUE, v BIGINT UNIQUE ON CONFLICT REPLACE)",
    ),
}
"""What others make of rows that are written, and where its text tells it."""
NOT_TOLD = {
    "drops": (POSTGRES, _DOES.format("IF NEW.v < 0 THEN NEW = NULL; END IF; RETURN NEW;") + _BEFORE),
    "changes": (POSTGRES, _DOES.format("RETURN jsonb_populate_record(NEW, '{\"v\": 7}');") + _BEFORE),
    "removes": (
        SQLITE,
        "CREATE VIEW shown AS SELECT * FROM orders; CREATE TRIGGER of_view INSTEAD OF DELETE ON shown BEGIN DELETE "
        "FROM orders WHERE k = OLD.k; END; " + _ONE.format("DELETE FROM shown WHERE v < 0"),
    ),
}
"""The same, where nobody reads it out of a text."""
HARMLESS = {
    "a column of their own": (
        POSTGRES,
        _DOES.format("NEW.seen = now(); IF NEW.v = 3 THEN RETURN NEW; END IF; RETURN NEW;") + _BEFORE,
    ),
    "a log": (POSTGRES, _DOES.format("INSERT INTO log VALUES (NEW.k); RETURN NULL;") + _AFTER),
    "the same again": (
        POSTGRES,
        "CREATE TRIGGER one BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    ),
    "a time": (
        SQLITE,
        _ONE.format("UPDATE orders SET seen = 'now' WHERE k = NEW.k; INSERT INTO log VALUES (NEW.k)"),
    ),
}


def _made(url: str, run_sql: Run, kind: tuple[str, str]) -> None:
    database, statements = kind
    if not url.startswith(database):
        pytest.skip(f"of {database}")
    run_sql("CREATE TABLE log (k BIGINT)")
    run_sql("CREATE TABLE orders (k BIGINT UNIQUE, v BIGINT, seen TEXT)")
    _done(run_sql, statements)


def _done(run_sql: Run, statements: str) -> None:
    for statement in filter(None, statements.replace("; CREATE", ";; CREATE").split(";; ")):
        run_sql(statement.replace(":", r"\:"))


@pytest.mark.parametrize("key", [(), ("k",)])
@pytest.mark.parametrize("kind", [*TOLD.values(), *NOT_TOLD.values()])
def test_rows_of_which_the_database_makes_something_else_are_refused(
    url: str, tmp_path: Path, run_sql: Run, kind: tuple[str, str], key: tuple[str, ...]
) -> None:
    """The run succeeded, and its rows were not there, or others. Where its text tells it, before they are promised."""
    _made(url, run_sql, kind)
    if not key and "of_view" in kind[1]:
        pytest.skip("a row that leaves after it was written is told by its key alone")
    context = context_in(tmp_path, FIRST, key=key)
    sink = SqlSink(SqlTable(url, keep_before_images=True), context)
    batches = [staged(context.work_dir, 0, LONGS, [(1, 1), (2, -2)])]
    said = "'one'|rule|ON CONFLICT"
    if kind in TOLD.values():
        with pytest.raises(InvalidRequest, match=rf"orders has a .*({said}).*(drop it|make the table)"):
            sink.refuse_unfit(batches)
    else:
        sink.refuse_unfit(batches)
    with pytest.raises(InvalidRequest, match=rf"({said}).*(drop it|make the table)"):
        sink.publish(batches, permit(1))
    assert run_sql("SELECT k FROM orders") == []


@pytest.mark.parametrize("kind", [*TOLD.values(), *NOT_TOLD.values()])
def test_a_restore_of_which_the_database_would_make_something_else_is_refused(
    url: str, tmp_path: Path, run_sql: Run, kind: tuple[str, str]
) -> None:
    """It succeeded, without the rows that a trigger left out."""
    if "DROP TABLE" in kind[1]:
        pytest.skip("constraints of a table are there when its rows come")
    _made(url, run_sql, (kind[0], ""))
    context = context_in(tmp_path, FIRST, key=("k",))
    sink = SqlSink(SqlTable(url), context)
    for number, rows in enumerate([[(1, -1), (2, 2)], [(1, 1)]], start=1):
        sink.publish([staged(context.work_dir, number, LONGS, rows)], permit(number))
    _done(run_sql, kind[1])
    assert bool(sink.cannot_roll_back(cut_at(sink, 1))) is (kind in TOLD.values())
    with pytest.raises(InvalidRequest, match=r"'one'|rule"):
        sink.roll_back(cut_at(sink, 1), LaterRows.SET_ASIDE)
    assert sorted(run_sql("SELECT k, v FROM orders")) == [(1, 1), (2, 2)]


@pytest.mark.parametrize("kind", [*TOLD.values(), *NOT_TOLD.values()])
def test_a_fork_of_which_the_database_would_make_something_else_is_refused(
    url: str, tmp_path: Path, run_sql: Run, kind: tuple[str, str]
) -> None:
    _made(url, run_sql, kind)
    context = context_in(tmp_path, FIRST, key=("k",), name="origin")
    origin = SqlSink(SqlTable(url), context)
    origin.publish([staged(context.work_dir, 1, LONGS, [(1, -1), (2, 2)])], permit(1))
    fork = SqlSink(SqlTable(url), context_in(tmp_path, FIRST, pipeline="fork", key=("k",)))
    with pytest.raises(InvalidRequest, match=r"'one'|rule|ON CONFLICT"):
        fork.fork(cut_at(origin, 1))
    assert run_sql("SELECT k FROM orders") == []


@pytest.mark.parametrize("before", ["", "INSERT INTO orders VALUES (50, -1)"])
def test_rows_of_before_the_sink_are_told_also_when_no_way_leads_back_to_them(
    url: str, tmp_path: Path, run_sql: Run, before: str
) -> None:
    run_sql("CREATE TABLE orders (k BIGINT UNIQUE, v BIGINT)")
    if before:
        run_sql(before)
    context = context_in(tmp_path, FIRST, key=("k",))
    sink = SqlSink(SqlTable(url), context)
    sink.take_over()
    for number in (1, 2, 3):
        sink.publish([staged(context.work_dir, number, LONGS, [(1, number)])], permit(number))
    assert bool(sink.why_not_exchanged()) is bool(before)
    sink.collect_garbage([cut_at(sink, 3).snapshot], [])
    with pytest.raises(Corrupt, match="is not kept"):
        sink.rows(cut_at(sink, 1))
    assert ("has rows of somebody else" in sink.why_not_exchanged()) is bool(before)


@pytest.mark.parametrize("key", [(), ("k",)])
@pytest.mark.parametrize("kind", HARMLESS.values(), ids=HARMLESS)
def test_triggers_that_leave_the_rows_as_they_are_may_be_there_also_at_a_restore(
    url: str, tmp_path: Path, run_sql: Run, kind: tuple[str, str], key: tuple[str, ...]
) -> None:
    _made(url, run_sql, kind)
    context = context_in(tmp_path, FIRST, key=key)
    sink = SqlSink(SqlTable(url, keep_before_images=True), context)
    for number, rows in enumerate([[(1, 1), (2, 3)], [(3, -3)]], start=1):
        sink.publish([staged(context.work_dir, number, LONGS, rows)], permit(number))
    sink.roll_back(cut_at(sink, 1), LaterRows.SET_ASIDE)
    assert sorted(run_sql("SELECT k, v FROM orders")) == [(1, 1), (2, 3)]


@pytest.mark.parametrize("key", [(), ("k",)])
def test_a_column_of_another_type_is_told_and_one_that_was_made_wider_goes_on(
    postgres_url: str, url: str, tmp_path: Path, run_sql: Run, key: tuple[str, ...]
) -> None:
    """A wider one was "out of range" at every publish, as what is kept of it had its old type; another one was refused
    in the database's words.
    """
    if url != postgres_url:
        pytest.skip("SQLite changes no types")
    context = context_in(tmp_path, FIRST, key=key)
    sink = SqlSink(SqlTable(url, keep_before_images=True), context)
    ints: Columns = {"k": LONGS["k"], "v": ("integer", pa.int32())}
    for number, columns, rows in (
        (1, ints, [(1, 1), (1, 2)]),
        (2, ints, [(2, 2)]),
        (3, LONGS, [(1, 2**40)]),
        (4, LONGS, [(1, 2**41), (3, 3)]),
    ):
        if number == 3:
            run_sql("ALTER TABLE orders ALTER COLUMN v TYPE BIGINT")
            sink.roll_back(cut_at(sink, 2), LaterRows.SET_ASIDE)
        sink.publish([staged(context.work_dir, number, columns, rows)], permit(number))
    run_sql("UPDATE dagster_ckpt_publishes SET format_version = 1, rows = 2 WHERE checkpoint_id = 1")
    was = sorted(run_sql("SELECT k, v FROM orders"))
    run_sql("ALTER TABLE orders ALTER COLUMN v TYPE TEXT")
    said = "'v' of table orders was BIGINT and was made TEXT by somebody else: change it back"
    texts: Columns = {"k": LONGS["k"], "v": ("string", pa.string())}
    waiting = [staged(context.work_dir, 5, texts, [(5, "5")])]
    for act in (
        lambda: sink.refuse_unfit(waiting),
        lambda: sink.publish(waiting, permit(5)),
        lambda: sink.rows(cut_at(sink, 1)).to_arrow(),
        lambda: sink.roll_back(cut_at(sink, 1), LaterRows.SET_ASIDE),
        lambda: sink.roll_back(None, LaterRows.SET_ASIDE),
    ):
        with pytest.raises(InvalidRequest, match=re.escape(said)):
            act()
    run_sql("ALTER TABLE orders ALTER COLUMN v TYPE BIGINT USING CAST(v AS BIGINT)")
    sink.roll_back(cut_at(sink, 1), LaterRows.SET_ASIDE)
    assert sorted(run_sql("SELECT k, v FROM orders")) == ([(1, 2)] if key else [(1, 1), (1, 2)])
    sink.roll_back(cut_at(sink, 4), LaterRows.SET_ASIDE)
    assert sorted(run_sql("SELECT k, v FROM orders")) == was


def _staging(sink: Sink, context: SinkContext) -> Staging:
    return Staging(context.work_dir, context.work_dir / "staged" / str(context.attempt().epoch))


def _rows_of(folder: Path) -> list[Row] | None:
    with contextlib.closing(sqlite3.connect(folder / "shop.db")) as connection:
        try:
            return sorted(connection.execute("SELECT k, v FROM orders").fetchall(), key=repr)
        except sqlite3.OperationalError:
            return None


OTHERS = {
    "insert": "INSERT OR IGNORE INTO orders (k, v) VALUES ({0}, -1), (50, -{0} - 2)",
    "update": "UPDATE orders SET v = -20 - {0} WHERE k <= {0}",
    "update_one": "UPDATE orders SET v = -20 - {0} WHERE k = {0}",
    "delete": "DELETE FROM orders WHERE k = {0}",
    "empty": "DELETE FROM orders",
    "add_column": "ALTER TABLE orders ADD COLUMN c{0} TEXT",
    "own_column": "UPDATE orders SET c{0} = 'x'",
    "drop_column": "ALTER TABLE orders DROP COLUMN c{0}",
    "rename_column": "ALTER TABLE orders RENAME COLUMN v TO was_v",
    "rename_back": "ALTER TABLE orders RENAME COLUMN was_v TO v",
    "rename_key": "ALTER TABLE orders RENAME COLUMN k TO was_k",
    "rename_key_back": "ALTER TABLE orders RENAME COLUMN was_k TO k",
    "drop": "DROP TABLE orders",
    "create": "CREATE TABLE orders (k BIGINT UNIQUE, v BIGINT, _dagster_ckpt_checkpoint BIGINT)",
    "forget": "DELETE FROM orders__dagster_ckpt_undo WHERE k = {0}",
    "forget_written": "DROP TABLE orders__dagster_ckpt_set_aside",
    "trigger": "CREATE TRIGGER one BEFORE INSERT ON orders WHEN NEW.k = {0} BEGIN SELECT RAISE(IGNORE); END",
    "no_trigger": "DROP TRIGGER one",
    "vacuum": "VACUUM",
    "no_mark": "ALTER TABLE orders DROP COLUMN _dagster_ckpt_checkpoint",
}
"""What others do to a table of SQLite; their values are below zero."""


ON_POSTGRES = OTHERS | {
    "insert": "INSERT INTO orders (k, v) VALUES ({0}, -1), (50, -{0} - 2) ON CONFLICT DO NOTHING",
    "trigger": _DOES.format("RETURN NULL;") + "; " + _BEFORE,
    "no_trigger": "DROP TRIGGER one ON orders; DROP FUNCTION does()",
    "vacuum": "VACUUM FULL orders",
    "truncate": "TRUNCATE orders",
    "wider": "ALTER TABLE orders ALTER COLUMN v TYPE NUMERIC",
    "text": "ALTER TABLE orders ALTER COLUMN v TYPE TEXT",
    "number": "ALTER TABLE orders ALTER COLUMN v TYPE BIGINT USING CAST(v AS BIGINT)",
    "rename": "ALTER TABLE orders RENAME TO kept",
    "rename_there": "ALTER TABLE kept RENAME TO orders",
    "view": "CREATE VIEW orders AS SELECT * FROM kept",
    "no_view": "DROP VIEW orders",
    "no_key": "ALTER TABLE orders DROP CONSTRAINT orders_pkey",
    "index": "CREATE INDEX ON orders (k, v)",
    "schema": "CREATE SCHEMA IF NOT EXISTS other; ALTER TABLE orders SET SCHEMA other",
    "schema_back": "ALTER TABLE other.orders SET SCHEMA public",
    "child": "CREATE TABLE child () INHERITS (orders)",
    "into_child": "INSERT INTO child SELECT * FROM ONLY orders WHERE k = {0}; DELETE FROM ONLY orders WHERE k = {0}",
}
"""What others do to a table of PostgreSQL."""


class Shared(Table):
    """A table in which a row of ours that others have changed is still ours: it leaves where the restore says so."""

    def may_have_added(self, added: Counter[Row]) -> bool:
        """Rows that they inserted; what they made of ours is below those."""
        return all(value is None or -20 < value < 0 for _, value in added)

    def may_come_back(self, rows: Counter[Row]) -> bool:
        """Rows that others had added, and that one of ours had replaced by its key."""
        return self.may_have_added(rows)


@pytest.mark.slow
@pytest.mark.parametrize("key", [(), ("k",)])
@settings(max_examples=examples(60))
@example(done=[("publish", 0), ("keep", 0), ("delete", 0), ("publish", 1), ("nothing", 0), ("back", 0)])
@example(done=[("publish", 0), ("insert", 0), ("exchange", 0), ("publish", 1), ("exchange", 0)])
@example(done=[("publish", 0), ("nothing", 0), ("rename_column", 0), ("back", 0)])
@example(done=[("publish", 0), ("update", 0), ("nothing", 0), ("back", 0)])
@example(done=[("publish", 0), ("update", 0), ("publish", 2), ("publish", 0), ("nothing", 0), ("back", 1)])
@example(done=[("publish", 0), ("publish", 1), ("update_one", 0), ("as_of", 0)])
@example(done=[("publish", 0), ("delete", 0), ("publish", 1), ("as_of", 1)])
@example(done=[("publish", 0), ("rename_column", 0), ("as_of", 0)])
@example(done=[("publish", 0), ("rename_column", 0), ("nothing", 0), ("rename_back", 0), ("back", 0)])
@example(done=[("publish", 0), ("publish", 1), ("no_mark", 0), ("back", 0)])
@given(done=steps(tuple(OTHERS)))
def test_a_restore_beside_others_is_exact_or_refused_by_name(
    key: tuple[str, ...], done: list[tuple[str, int]]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def opened(context: SinkContext) -> SqlSink:
            name = "orders" if context.pipeline == "shop" else context.pipeline
            return SqlSink(SqlTable(f"sqlite:///{folder}/shop.db", name, keep_before_images=True), context)

        def does(statement: str, number: int) -> None:
            connected = contextlib.closing(sqlite3.connect(folder / "shop.db", isolation_level=None))
            with connected as connection, contextlib.suppress(sqlite3.Error):
                connection.execute(statement.format(number))

        context = context_in(folder, FIRST, key=key)
        run = SinkRun(open=opened, staging=_staging, context=context, attempt=FIRST, sink=opened(context))
        run.sink.take_over()
        acts = {one: (lambda number, text=text: does(text, number)) for one, text in OTHERS.items()}
        table = Shared(run=run, rows=lambda: _rows_of(folder), others=acts)
        for step in done:
            table.do(step)


@pytest.mark.nightly
@pytest.mark.parametrize("key", [(), ("k",)])
def test_a_restore_in_postgres_beside_others_is_exact_or_refused_by_name(
    postgres_url: str, tmp_path: Path, key: tuple[str, ...]
) -> None:
    refused: Counter[str] = Counter()
    with psycopg.connect(postgres_url, autocommit=True, prepare_threshold=None) as connection:

        def does(statements: str, number: int) -> None:
            with contextlib.suppress(psycopg.Error):
                for statement in filter(None, statements.format(number).split("; ")):
                    connection.execute(statement)  # type: ignore[arg-type]

        def rows() -> list[Row] | None:
            try:
                found = connection.execute("SELECT k, v FROM orders").fetchall()
            except psycopg.Error:
                return None
            return sorted(((k, None if v is None else int(v)) for k, v in found), key=repr)

        def opened(context: SinkContext) -> SqlSink:
            name = "orders" if context.pipeline == "shop" else context.pipeline
            return SqlSink(SqlTable(postgres_url, name, keep_before_images=True), context)

        acts = {one: (lambda number, text=text: does(text, number)) for one, text in ON_POSTGRES.items()}
        for seed in range(examples(60)):
            dice = random.Random(f"{key} {seed}")
            does("DROP SCHEMA public CASCADE; CREATE SCHEMA public; DROP SCHEMA other CASCADE", 0)
            context = context_in(tmp_path / str(seed), FIRST, key=key)
            run = SinkRun(open=opened, staging=_staging, context=context, attempt=FIRST, sink=opened(context))
            run.sink.take_over()
            table = Shared(run=run, rows=rows, others=acts)
            done = [("publish", 0)]
            done += [(dice.choice(dice.choice((OURS, [*acts]))), dice.randrange(8)) for _ in range(14)]
            for number, step in enumerate(done):
                try:
                    table.do(step)
                except Exception as error:
                    raise AssertionError(f"seed {seed}: {done[: number + 1]}") from error
            refused += table.refused
    assert {"publish", "restore", "read", "fork"} <= {*refused}, "some of each are refused"
