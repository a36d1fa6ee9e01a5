"""A project that is changed after it has run: what Spark would read again is never left out without a word."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt import InvalidRequest, RestoreOptions, preview_restore
from dagster_ckpt.ext.upgrade_plan.comparison import StageVerdict
from dagster_ckpt.ext.upgrade_plan.plan import plan_upgrade
from dagster_ckpt.operations.care.maintain import order_requeue
from dagster_ckpt.operations.snapshots.catalog import find_snapshot
from dagster_ckpt.operations.snapshots.export import facts_of_found
from tests.ext.spark_pipelines.conftest import Project
from tests.ext.spark_pipelines.test_projects import as_rows
from tests.tables import rows_in

Make = Callable[..., Project]

ORDERS = """
@dp.table
def orders():
    return spark.readStream.schema("k STRING, v INT").json(str(Path.cwd() / "feed" / "orders"))
@dp.table
def copies():
    return spark.readStream.table("orders")
"""
READER = """
@dp.table
def later():
    return spark.readStream.table("orders")
"""
FLOW = """
@dp.append_flow(target="orders")
def more():
    return spark.readStream.schema("k STRING, v INT").json(str(Path.cwd() / "feed" / "more"))
"""


def row(k: str, v: int) -> dict[str, Any]:
    return {"k": k, "v": v}


def changed(project: Project, python: str) -> None:
    main = project.root / "transformations" / "main.py"
    main.write_text(main.read_text() + python)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("after", "said"),
    [
        (READER, "'later(__flow)?' is new and reads 'orders__flow', which goes on after rows"),
        (FLOW, "stage 'orders' had other inputs when the snapshot was taken"),
    ],
    ids=["a reader", "a flow"],
)
def test_what_would_miss_rows_that_are_there_is_refused_until_all_begins_from_nothing(
    written: Make, after: str, said: str
) -> None:
    project = written(ORDERS)
    project.feed("orders", row("a", 1))
    project.feed("more", row("m", 7))
    project.epoch()
    changed(project, after)
    project.feed("orders", row("b", 2))
    for restore in (
        {},
        {"restore_from": "chk-1"},
        {"restore_from": "chk-1", "allow_non_restored_state": True},
    ):
        with pytest.raises(InvalidRequest, match=said):
            project.epoch(restore=restore)
    assert project.rows("orders") == as_rows(row("a", 1))
    pipeline = project.pipeline()
    seen = preview_restore(
        project.coordinator.deployment(pipeline),
        RestoreOptions(restore_from="chk-1", allow_non_restored_state=True),
        pipeline.name,
        graph=pipeline.graph,
        code=pipeline,
    )
    assert any(re.search(said, why) for why in seen.refusals), seen.refusals
    project.epoch(restore={"restore_from": "none"})
    expected = [row("a", 1), row("b", 2), *([row("m", 7)] if after is FLOW else [])]
    assert project.rows("orders") == project.rows("copies") == as_rows(*expected)
    if after is READER:
        assert project.rows("later") == as_rows(*expected)


def test_a_new_table_with_a_source_of_its_own_begins_beside_the_others(
    written: Make, tmp_path: Path, spark: Any
) -> None:
    project = written(ORDERS)
    project.feed("orders", row("a", 1))
    project.feed("more", row("m", 7))
    project.epoch()
    deployment = project.coordinator.deployment()
    facts = facts_of_found(deployment, find_snapshot(deployment, "latest", project.pipeline().name))

    def verdicts() -> set[StageVerdict]:
        scratch = tempfile.mkdtemp(dir=tmp_path)
        found = plan_upgrade(facts, project.pipeline(), spark, Path(scratch), RestoreOptions())
        return {stage.verdict for stage in found.stages}

    assert verdicts() == {StageVerdict.GOES_ON}
    changed(project, "# a file that says what flows do: no plan shows all of it\n")
    assert verdicts() == {StageVerdict.MEANING}
    changed(project, FLOW.replace('append_flow(target="orders")', "table"))
    project.feed("orders", row("b", 2))
    project.epoch()
    assert project.rows("more") == as_rows(row("m", 7))
    assert project.rows("copies") == as_rows(row("a", 1), row("b", 2))


def test_a_materialized_view_that_is_new_or_changed_is_computed_of_all_rows(written: Make) -> None:
    view = """
@dp.materialized_view
def n():
    return spark.read.table("copies").where("v > {}").select(F.count("*").alias("n"))
"""
    project = written(ORDERS)
    project.feed("orders", row("a", 1), row("b", 2))
    project.epoch()
    changed(project, view.format(0))
    project.epoch()
    assert project.rows("n") == as_rows({"n": 2})
    main = project.root / "transformations" / "main.py"
    main.write_text(main.read_text().replace("v > 0", "v > 1"))
    project.epoch()
    assert project.rows("n") == as_rows({"n": 1})


@pytest.mark.nightly
def test_a_table_without_a_row_so_far_is_not_taken_for_a_new_one(written: Make) -> None:
    project = written(
        ORDERS.replace('spark.readStream.table("orders")', 'spark.readStream.table("orders").where("v > 5")')
    )
    project.feed("orders", row("a", 1))
    project.epoch()
    project.epoch()
    project.feed("orders", row("b", 7))
    project.epoch(restore={"restore_from": "chk-1"})
    project.epoch()
    assert project.rows("copies") == as_rows(row("b", 7))


@pytest.mark.nightly
def test_a_table_that_becomes_a_materialized_view_does_not_keep_its_old_rows_beside(written: Make) -> None:
    project = written(ORDERS)
    project.feed("orders", row("a", 1))
    project.epoch()
    main = project.root / "transformations" / "main.py"
    view = '@dp.materialized_view\ndef copies():\n    return spark.read.table("orders")\n'
    main.write_text(main.read_text().partition("@dp.table\ndef copies")[0] + view)
    again = {"restore_from": "chk-1", "allow_non_restored_state": True}
    project.epoch(restore=again)
    assert project.rows("copies") == as_rows(row("a", 1))


@pytest.mark.nightly
def test_a_renamed_dataset_whose_old_name_another_one_takes_is_refused(written: Make) -> None:
    project = written(ORDERS)
    project.feed("orders", row("a", 1))
    project.feed("more", row("m", 7))
    project.epoch()
    main, said = project.root / "transformations" / "main.py", project.root / "dagster-ckpt.yml"
    renamed = (
        main.read_text().replace("def orders()", "def sales()").replace('table("orders")', 'table("sales")')
    )
    main.write_text(renamed + FLOW.replace('append_flow(target="orders")', 'table(name="orders")'))
    for previous, why in {
        "{sales: [orders]}": r"'sales' was 'orders', and 'orders' would have its state and its table as well",
        "{sales: [sold], copies: [sold]}": r"'copies' was 'sold', and 'sales' would have its state",
    }.items():
        said.write_text(f"previous_uids: {previous}\n")
        with pytest.raises(InvalidRequest, match=why):
            project.pipeline()
    main.write_text(renamed + FLOW.replace('append_flow(target="orders")', "table"))
    said.write_text("previous_uids: {sales: [orders]}\n")
    project.feed("orders", row("b", 2))
    project.epoch()
    assert project.rows("orders") == project.rows("copies") == as_rows(row("a", 1), row("b", 2))
    assert project.rows("more") == as_rows(row("m", 7))


@pytest.mark.parametrize("scd_type", [1, 2])
def test_changes_that_are_put_in_order_by_another_column_are_refused(written: Make, scd_type: int) -> None:
    """Sequences of the one column were compared with those of the other that the state had."""
    cdc = f"""
@dp.temporary_view
def told():
    return spark.readStream.schema("k STRING, v INT, at INT").json(str(Path.cwd() / "feed" / "orders"))
dp.create_streaming_table("kept")
dp.create_auto_cdc_flow(target="kept", source="told", keys=["k"], sequence_by="at", stored_as_scd_type={scd_type})
"""
    project = written(cdc)
    project.feed("orders", {"k": "a", "v": 7, "at": 1})
    project.epoch()
    before = project.rows("kept")
    main = project.root / "transformations" / "main.py"
    main.write_text(main.read_text().replace('sequence_by="at"', 'sequence_by=F.col("v")'))
    project.feed("orders", {"k": "a", "v": 9, "at": 0})
    with pytest.raises(
        (InvalidRequest, RuntimeError), match=r"was made by .*__order by at.* has .*__order by v"
    ):
        project.epoch()
    assert project.rows("kept") == before
    project.epoch(restore={"restore_from": "none"})
    assert project.rows("kept") != before


CHANGES = """
@dp.temporary_view
def told():
    return spark.readStream.schema("k STRING, v INT, w INT, at INT").json(str(Path.cwd() / "feed" / "orders"))
dp.create_streaming_table("kept")
dp.create_auto_cdc_flow(target="kept", source="told", keys=["k"], sequence_by="at", column_list=["k", "v"])
"""


def test_rows_of_changes_with_another_column_do_not_go_on_from_their_state(written: Make) -> None:
    """A late change brought a row out of the state with one column's value under the name of another."""
    project = written(CHANGES)
    project.feed("orders", {"k": "a", "v": 1, "w": 2, "at": 5})
    project.epoch()
    main = project.root / "transformations" / "main.py"
    main.write_text(main.read_text().replace('["k", "v"]', '["k", "w"]'))
    project.feed("orders", {"k": "a", "v": 3, "w": 4, "at": 4})
    with pytest.raises(InvalidRequest, match=r"'__row' in it has the fields \(k, v\), and has \(k, w\) now"):
        project.epoch()
    assert project.rows("kept") == as_rows({"k": "a", "v": 1})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'keys=["k"]',
            'keys=["k", "v"]',
            r"the stage has groupBy\(k, v\)",
        ),
        (
            'keys=["k"]',
            'keys=["k"], stored_as_scd_type=2',
            r"the stage has groupBy\(k\)\.agg\(collectset\(",
        ),
    ],
    ids=["keys", "type"],
)
def test_a_table_of_changes_with_other_keys_is_refused_and_begins_from_nothing(
    written: Make, old: str, new: str, said: str
) -> None:
    project = written(CHANGES)
    project.feed("orders", {"k": "a", "v": 1, "w": 2, "at": 5}, {"k": "a", "v": 2, "w": 2, "at": 6})
    project.epoch()
    main = project.root / "transformations" / "main.py"
    main.write_text(main.read_text().replace(old, new))
    with pytest.raises(InvalidRequest, match=f"'kept' cannot go on from its state: .*{said}"):
        project.epoch()
    project.epoch(restore={"restore_from": "none"})
    assert len(project.rows("kept")) == 2


@pytest.mark.nightly
def test_a_second_project_of_one_name_does_not_go_on_from_the_first_ones_checkpoint(written: Make) -> None:
    first = written(ORDERS)
    first = Project(first.root.rename(first.root.with_name("first")), first.spark)
    first.feed("orders", row("a", 1))
    first.epoch()
    second = written(ORDERS)
    second.feed("orders", row("b", 2))
    with pytest.raises(
        InvalidRequest,
        match=r"stage 'orders__flow' .* has read .*/first/feed/orders/001.json, and its function reads files of "
        r".*/written/feed/orders now: .*two projects\) have one name and one base_dir, .* a name of its own",
    ):
        second.epoch(where=first.coordinator)
    second.epoch(second.pipeline(name="second", table_dir=str(second.tables)), where=first.coordinator)
    assert second.rows("copies") == as_rows(row("b", 2))
    first.epoch()
    assert first.rows("copies") == as_rows(row("a", 1))


BAD_ROWS = """
@dp.table
def orders():
    return spark.readStream.schema("k STRING, v INT").json(str(Path.cwd() / "feed" / "orders"))
@dp.table
def large():
    return spark.readStream.table("orders").selectExpr("k", "v", "10 / (v - 3) AS share")
"""


def test_what_a_side_file_cannot_say_of_bad_rows_is_refused(written: Make) -> None:
    project = written(BAD_ROWS)
    said = project.root / "dagster-ckpt.yml"
    for text, why in {
        "{larger: {on_error: quarantine}}": "'larger', and the tables that flows write are large, orders",
        "{large: {on_err: quarantine}}": "bad_rows of 'large': `on_err`: did you mean",
        "{large: [1]}": "bad_rows is written 'table: ",
        "{large: {expect: {v: keep}}}": "dagster-ckpt.yml: 'flow large' has 'keep' for the condition 'v': give warn",
    }.items():
        said.write_text(f"bad_rows: {text}\n")
        with pytest.raises(InvalidRequest, match=why):
            project.pipeline()


@pytest.mark.nightly
def test_the_side_file_says_what_becomes_of_bad_rows(written: Make) -> None:
    """Conditions on the rows of a table's flows, rows that cannot be processed, and their way through again."""
    project = written(BAD_ROWS)
    said = project.root / "dagster-ckpt.yml"
    said.write_text(
        "bad_rows:\n"
        "  orders: {expect: {k IS NOT NULL: drop}}\n"
        "  large: {on_error: quarantine, expect: {v > 1: quarantine}}\n"
    )
    project.feed("orders", row("a", 2), row("b", 1), row("c", 3), {"k": None, "v": 5})
    project.epoch()
    quarantined = {
        json.loads(one["row"])["k"]: one["condition"]
        for one in rows_in(project.tables / "quarantine" / "large__flow")
    }
    assert quarantined == {"b": "v > 1", "c": "DIVIDE_BY_ZERO"}
    assert project.rows("orders") == as_rows(row("a", 2), row("b", 1), row("c", 3))
    assert [dict(one)["k"] for one in project.rows("large")] == ["a"]
    order_requeue(project.pipeline(), project.coordinator, "condition = 'v > 1'")
    said.write_text("bad_rows: {large: {on_error: quarantine, expect: {v > 0: quarantine}}}\n")
    project.epoch()
    assert sorted(dict(one)["k"] for one in project.rows("large")) == ["a", "b"]
