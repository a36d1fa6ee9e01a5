"""Published tables, loaded: now, and as of a snapshot that the coordinator knows."""

from __future__ import annotations

import builtins
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable as Reader

from dagster_ckpt import CheckpointedPipeline, load_table
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.model import FileKind, TableSnapshot
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound
from dagster_ckpt.sinks import DeltaTable, ForEachCheckpoint, KafkaTopic, SqlTable
from dagster_ckpt.spark.sink.port import SinkCut
from dagster_ckpt.spark.snapshot.state_files import planned
from dagster_ckpt.testing.sinks.keys import pairs
from tests.lab.pipelines import sink, source, wired
from tests.operations.world import Known, World
from tests.tables import Attempt, Cut, files_in

KEYS = [pytest.param((), id="append"), pytest.param(("k",), id="upsert")]


def sales(key: tuple[str, ...] = (), to: Any = None, more: bool = False) -> CheckpointedPipeline:
    totals = sink("totals", lambda orders: orders, key=key, to=to)
    copies = [sink("copies", lambda orders: orders)] if more else []
    return wired("sales", source("orders", lambda spark: spark), totals, *copies)


@dataclass
class Played:
    """A pipeline's sink and its snapshots, without Spark."""

    world: World
    attempt: Attempt

    def snapshot(self, number: int, *, savepoint: bool = False) -> Cut:
        cut = self.attempt.cut(number)
        extra = [planned(self.attempt.stage_dir, name, FileKind.COMMITTABLE) for name in cut.committables]
        take = self.world.savepoint if savepoint else self.world.checkpoint
        take(number, batches=1, table=cut.snapshot, extra=extra)
        if not savepoint:
            self.attempt.publish(cut)
        return cut


def played(world: World, key: tuple[str, ...] = ()) -> Played:
    return Played(world, Attempt(world.folder / "tables" / "totals", world.query().root, key=key))


@pytest.mark.parametrize("key", KEYS)
def test_a_table_is_loaded_as_it_is_and_as_of_each_checkpoint_and_savepoint(
    world: World, key: tuple[str, ...]
) -> None:
    pipeline = sales(key)
    run = played(world, key)
    cuts = {}
    for number in range(1, 5):
        run.attempt.batch([(k, number) for k in range(number)])
        cuts[number] = run.snapshot(number, savepoint=number == 3)
    now = load_table(pipeline, coordinator=Known(world))
    assert pairs(now.to_arrow()) == cuts[4].rows
    assert now.version == str(Reader(str(world.folder / "tables" / "totals")).version())
    for number, name in ((1, "chk-1"), (2, "chk-2"), (3, "savepoint-3"), (4, "latest")):
        loaded = load_table(pipeline, "totals", coordinator=Known(world), as_of=name)
        assert pairs(loaded.to_arrow()) == cuts[number].rows, name
    run.attempt.restored(cuts[1], world.folder / "again")
    assert pairs(load_table(pipeline, coordinator=Known(world)).to_arrow()) == cuts[1].rows
    later = load_table(pipeline, coordinator=Known(world), as_of="chk-2")
    assert pairs(later.to_arrow()) == cuts[2].rows, "rows that have left the table are still those of chk-2"


@pytest.mark.parametrize("key", KEYS)
def test_every_form_has_the_rows_of_one_state(world: World, key: tuple[str, ...]) -> None:
    run = played(world, key)
    run.attempt.batch([(1, 1), (2, 2)])
    run.snapshot(1)
    loaded = load_table(world.folder / "tables" / "totals")
    run.attempt.batch([(1, 9), (3, 3)])
    run.snapshot(2)
    assert sorted(loaded.to_polars().rows()) == [(1, 1), (2, 2)]
    assert sorted(loaded.to_pandas().itertuples(index=False, name=None)) == [(1, 1), (2, 2)]
    assert sorted(loaded.to_duckdb().fetchall()) == [(1, 1), (2, 2)]
    assert repr(loaded) == f"<rows of {world.folder / 'tables' / 'totals'} at {loaded.version}>"


def test_whole_numbers_beside_a_null_stay_what_they_are_in_pandas(world: World) -> None:
    run = played(world)
    run.attempt.batch([(1, 2**53 + 1), (2, None)])
    run.snapshot(1)
    found = load_table(world.folder / "tables" / "totals").to_pandas()
    assert [*found["v"].dropna()] == [2**53 + 1]
    assert int(found["v"].isna().sum()) == 1


def test_a_table_that_went_back_to_no_rows_keeps_its_columns(world: World) -> None:
    run = played(world)
    run.attempt.batch([(1, 1)])
    run.snapshot(1)
    now = run.attempt.sink
    nothing = SinkCut(snapshot=TableSnapshot(uri=now.place), batches=(), checkpoint_id=CheckpointId(0))
    assert now.rows(nothing).to_arrow() == now.rows().to_arrow().slice(0, 0)


def test_rows_that_are_gone_are_named(world: World) -> None:
    run = played(world)
    run.attempt.batch([(1, 1)])
    run.snapshot(1)
    loaded = load_table(world.folder / "tables" / "totals")
    for path in files_in(world.folder / "tables" / "totals"):
        path.unlink()
    with pytest.raises(Corrupt, match=r"can no longer show version"):
        loaded.to_arrow()


def test_what_cannot_be_loaded_is_refused_in_one_sentence(world: World, tmp_path: Path) -> None:
    known = Known(world)
    with pytest.raises(NotFound, match="more than one sink: name one of totals, copies"):
        load_table(sales(more=True), coordinator=known)
    with pytest.raises(NotFound, match="no sink 'total'"):
        load_table(sales(), "total", coordinator=known)
    with pytest.raises(NotFound, match="it is made with the first rows"):
        load_table(sales(), coordinator=known)
    with pytest.raises(InvalidRequest, match="coordinator="):
        load_table(sales())
    with pytest.raises(InvalidRequest, match="whole path"):
        load_table(DeltaTable("totals"))
    with pytest.raises(InvalidRequest, match="only of a pipeline's table"):
        load_table("/t", as_of="chk-1")
    with pytest.raises(InvalidRequest, match="no table that can be loaded"):
        load_table(KafkaTopic("broker:9092", "orders"))
    with pytest.raises(InvalidRequest, match="no table that can be loaded"):
        load_table(sales(to=ForEachCheckpoint(print)), coordinator=known)
    with pytest.raises(InvalidRequest, match="name the table"):
        load_table(SqlTable(f"sqlite:///{tmp_path}/a.db"))


def test_a_snapshot_whose_rows_are_in_another_table_names_that_one(world: World) -> None:
    run = played(world)
    run.attempt.batch([(1, 1)])
    run.snapshot(1)
    run.attempt.batch([(2, 2)])
    run.snapshot(2)
    with pytest.raises(InvalidRequest, match=r"the rows of checkpoint 2 of sales .* are in .*/totals"):
        load_table(sales(to=DeltaTable("elsewhere")), coordinator=Known(world), as_of="chk-2")


def test_any_table_of_a_database_is_loaded_with_its_columns_types(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.executescript(
            "CREATE TABLE t (k BIGINT, yes BOOLEAN, day DATE, at TIMESTAMP, x REAL, _dagster_ckpt_checkpoint BIGINT);"
            "INSERT INTO t VALUES (1, 1, '2026-11-22', '2026-11-22 01:02:03.000045', 1, 7);"
        )
    rows = load_table(SqlTable(f"sqlite:///{tmp_path}/shop.db", "t")).to_arrow()
    types = {field.name: str(field.type) for field in rows.schema}
    assert types == {"k": "int64", "yes": "bool", "day": "date32[day]", "at": "timestamp[us]", "x": "double"}
    assert [str(value) for value in rows.to_pylist()[0].values()] == [
        "1",
        "True",
        "2026-11-22",
        "2026-11-22 01:02:03.000045",
        "1.0",
    ]


def test_a_missing_package_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run = played(world)
    run.attempt.batch([(1, 1)])
    run.snapshot(1)
    loaded = load_table(world.folder / "tables" / "totals")
    real = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name.split(".", maxsplit=1)[0] in ("polars", "duckdb", "pandas"):
            raise ImportError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr("dagster_ckpt.spark.sink.rows.import_module", without)
    for form, package in (("polars", "polars"), ("duckdb", "duckdb"), ("pandas", "pandas")):
        with pytest.raises(InvalidRequest, match=f"pip install '{package}'"):
            getattr(loaded, f"to_{form}")()
