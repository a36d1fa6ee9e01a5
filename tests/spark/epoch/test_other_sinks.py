"""A pipeline whose rows end in a database and in a function: published with their checkpoint, and taken back or not."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt import CheckpointedPipeline
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.operations.snapshots.catalog import find_snapshot, tables_that_stay
from dagster_ckpt.operations.snapshots.export import export_snapshot
from dagster_ckpt.operations.snapshots.registration import import_snapshot
from dagster_ckpt.sinks import CheckpointToken, ForEachCheckpoint, SqlTable
from tests.lab.lab import Lab
from tests.removal import remove_tree
from tests.spark.epoch.small_pipeline import Feed, shop

CALLS: list[tuple[int, Counter[tuple[int, str]]]] = []
"""(checkpoint, rows) of every call; stages run in this process."""


def collect(rows: Any, token: CheckpointToken) -> None:
    table = rows.read_all()
    found = zip(table["number"].to_pylist(), table["country"].to_pylist(), strict=True)
    CALLS.append((token.checkpoint_id, Counter(found)))


def pipeline_of(feed: Feed, database: Path, *, with_function: bool) -> CheckpointedPipeline:
    """The shop, its totals in a database and, if asked for, its lines in a function."""
    pipeline = shop(feed.folder)
    totals = replace(
        pipeline.stages[StageUid("totals")],
        to=SqlTable(f"sqlite:///{database}", keep_before_images=True),
    )
    stages = {**pipeline.stages, totals.uid: totals}
    if with_function:
        lines = replace(pipeline.stages[StageUid("lines")], to=ForEachCheckpoint(collect))
        stages[lines.uid] = lines
    return replace(pipeline, stages=stages)


def totals_in(database: Path) -> dict[str, tuple[int, int]]:
    connection = sqlite3.connect(database)
    try:
        names = [row[1] for row in connection.execute("PRAGMA table_info(totals)")]
        rows = [dict(zip(names, row, strict=True)) for row in connection.execute("SELECT * FROM totals")]
    finally:
        connection.close()
    plain = [{k: v for k, v in row.items() if not k.startswith("_")} for row in rows]
    return {row.pop("country"): tuple(row.values()) for row in plain}  # type: ignore[misc]


def test_rows_reach_a_database_and_a_function_with_their_checkpoint_and_go_back_where_they_can(
    lab: Lab, feed: Feed, tmp_path: Path
) -> None:
    CALLS.clear()
    database = tmp_path / "shop.db"
    both = pipeline_of(feed, database, with_function=True)
    lab.succeeds(both)
    assert totals_in(database) == feed.expected_totals()
    before = feed.expected_totals()
    feed.order(("ann", 11))
    lab.succeeds(both)
    assert totals_in(database) == feed.expected_totals()
    assert sum((rows for _, rows in CALLS), Counter()) == feed.expected_lines()
    assert [number for number, _ in CALLS] == [1, 2]

    lab.fails(
        both,
        "sink lines:",
        "(keep_rows_of: [lines]), or of any sink (roll_back_tables: false)",
        restore_from="chk-1",
    )
    assert totals_in(database) == feed.expected_totals(), "no sink was touched"

    shutil.rmtree(lab.folder / "work")
    lab.fails(both, "may have been called up to checkpoint 2", restore_from="chk-1")
    assert [number for number, _ in CALLS] == [1, 2]

    lab.fails(
        both,
        "keep_rows_of names 'calls', and the sinks of pipeline 'shop' are lines, totals",
        restore_from="chk-1",
        keep_rows_of=["calls"],
    )
    lab.succeeds(both, restore_from="chk-1", keep_rows_of=["lines"])
    assert totals_in(database) == feed.expected_totals()
    assert before != feed.expected_totals()
    (stays,) = tables_that_stay(lab.coordinator.deployment(both), lab.record(both))
    assert stays.startswith("sink lines does not go back with a restore: function:shop/lines")


@pytest.mark.nightly
@pytest.mark.parametrize("lab", [{"num_retained": 5}], indirect=True)
def test_a_copy_under_another_number_takes_a_database_back_to_its_rows(
    lab: Lab, feed: Feed, tmp_path: Path
) -> None:
    """Rows published since passed for the copy's, and those that came again for published: they were lost."""
    database = tmp_path / "shop.db"
    pipeline = pipeline_of(feed, database, with_function=False)
    for _ in range(2):
        lab.succeeds(pipeline)
        feed.order(("ann", 11))
    deployment = lab.coordinator.deployment(pipeline)
    first = find_snapshot(deployment, "chk-1", pipeline.name).stored
    copy = export_snapshot(first, deployment.savepoint_storage(str(tmp_path / "copies")))
    key = import_snapshot(deployment, copy.uri).key
    assert key == "savepoint-000003"
    lab.succeeds(pipeline, restore_from=key)
    assert totals_in(database) == feed.expected_totals()


@pytest.mark.nightly
def test_a_function_is_not_called_from_the_beginning_again_where_the_disk_with_its_note_is_lost(
    lab: Lab, feed: Feed, tmp_path: Path
) -> None:
    CALLS.clear()
    both = pipeline_of(feed, tmp_path / "shop.db", with_function=True)
    lab.succeeds(both)
    remove_tree(lab.folder / "work")

    lab.fails(both, "sink lines: function:shop/lines", "called up to checkpoint 1", restore_from="none")
    assert lab.record(both).epoch == 1, "nothing was claimed: latest is still that checkpoint"
    assert [number for number, _ in CALLS] == [1]

    feed.order(("ann", 11))
    lab.succeeds(both)
    by_checkpoint = dict(CALLS)
    assert sum(by_checkpoint.values(), Counter()) == feed.expected_lines(), "one call a token counts"

    remove_tree(lab.folder / "work")
    lab.succeeds(both, restore_from="none", roll_back_tables=False)
    assert CALLS[-1][1] == feed.expected_lines(), "all rows came again, as asked for"


@pytest.mark.nightly
def test_a_function_that_a_restore_point_does_not_know_is_not_called_again_where_its_note_is_lost(
    lab: Lab, feed: Feed, tmp_path: Path
) -> None:
    """The stage was added after the savepoint, and called since."""
    CALLS.clear()
    both = pipeline_of(feed, tmp_path / "shop.db", with_function=True)
    before = pipeline_of(feed, tmp_path / "shop.db", with_function=False)
    lab.succeeds(before, "shop_savepoint", {"savepoint": {"name": "old"}})
    lab.succeeds(both, restore_from="none", roll_back_tables=False)
    calls = len(CALLS)
    assert calls == 1
    remove_tree(lab.folder / "work")
    lab.fails(both, "may have been called up to checkpoint", restore_from="savepoint-1")
    assert len(CALLS) == calls
