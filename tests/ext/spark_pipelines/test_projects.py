"""Our example projects: their tables are those that their definitions say, after every epoch, restore and fork."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dagster_ckpt import CheckpointCoordinatorResource, InvalidRequest, run_epoch
from tests.ext.spark_pipelines.conftest import Project, Rows, rows_of


def as_rows(*rows: dict[str, Any]) -> Rows:
    return sorted((tuple(sorted(row.items())) for row in rows), key=repr)


def order(customer: str | None, amount: int) -> dict[str, Any]:
    return {"customer": customer, "amount": amount}


def linear_tables(orders: list[dict[str, Any]]) -> dict[str, Rows]:
    """What the tables of the linear project hold."""
    named = [one for one in orders if one["customer"] is not None]
    names = [{"letter": one["customer"][0], "more": one["amount"] + 1} for one in named]
    letters = {one["letter"] for one in names}
    counted = {letter: sum(one["letter"] == letter for one in names) for letter in letters}
    return {
        "orders": as_rows(*orders),
        "large": as_rows(
            *(one | {"tax": one["amount"] * 2, "note": None} for one in orders if one["amount"] > 2)
        ),
        "names": as_rows(*names),
        "letters": as_rows(*({"letter": k, "n": n, "orders": len(orders)} for k, n in counted.items())),
    }


def fan_in_tables(eu: list[dict[str, Any]], us: list[dict[str, Any]]) -> dict[str, Rows]:
    """What the tables of the fan-in project hold."""
    in_eu, in_us = [one | {"region": "eu"} for one in eu], [one | {"region": "us"} for one in us]
    totals = [
        {"region": name, "amount": sum(one["amount"] for one in rows)}
        for name, rows in (("eu", in_eu), ("us", in_us))
        if rows
    ]
    whole = sum(one["amount"] for one in totals)
    return {
        "orders_eu": as_rows(*in_eu),
        "orders_us": as_rows(*in_us),
        "everything": as_rows(*in_eu, *in_us),
        "large_only": as_rows(*(one for one in [*eu, *us] if one["amount"] > 2)),
        "totals": as_rows(*totals),
        "share": as_rows(*(one | {"whole": whole} for one in totals)),
    }


def test_a_linear_project_has_the_rows_of_its_definitions(project: Callable[[str], Project]) -> None:
    shop = project("linear")
    first = [order("ann", 1), order("bob", 5), order(None, 9)]
    shop.feed("orders", *first)
    shop.epoch()
    assert shop.all_rows() == linear_tables(first)
    second = [order("bea", 3)]
    shop.feed("orders", *second)
    shop.epoch()
    assert shop.all_rows() == linear_tables([*first, *second])
    shop.epoch()
    assert shop.all_rows() == linear_tables([*first, *second])


@pytest.mark.nightly
def test_views_that_several_tables_read_and_views_of_views_are_exact_after_epochs_a_restore_and_a_fork(
    project: Callable[[str], Project],
) -> None:
    shop = project("fan_in")
    eu, us = [order("ann", 1), order("bob", 5)], [order("cid", 7)]
    shop.feed("eu", *eu)
    shop.feed("us", *us)
    shop.epoch()
    assert shop.all_rows() == fan_in_tables(eu, us)

    more = [order("dan", 4)]
    shop.feed("us", *more)
    shop.epoch()
    assert shop.all_rows() == fan_in_tables(eu, [*us, *more])

    pipeline = shop.pipeline()
    fork_tables = shop.root / "fork"
    fork = pipeline.fork("forked", table_dir=str(fork_tables))
    chk1 = str(shop.root / "lab" / "checkpoints" / "fan_in" / "chk-1")
    where = CheckpointCoordinatorResource(base_dir=str(shop.root / "lab"))
    shop.feed("eu", order("eva", 2))
    run_epoch(fork, coordinator=where, spark=shop.spark, restore={"restore_from": chk1, "fork": True})
    everything = fan_in_tables([*eu, order("eva", 2)], [*us, *more])
    assert {name: rows_of(fork_tables / name) for name in everything} == everything
    assert shop.all_rows() == fan_in_tables(eu, [*us, *more]), "the pipeline that was forked has lost rows"

    shop.epoch(pipeline, restore={"restore_from": "chk-1"})
    assert shop.all_rows() == everything


@pytest.mark.nightly
def test_a_restore_takes_back_materialized_views_with_the_tables(project: Callable[[str], Project]) -> None:
    shop = project("fan_in")
    eu, us = [order("ann", 1)], [order("cid", 7)]
    shop.feed("eu", *eu)
    shop.feed("us", *us)
    shop.epoch()
    shop.feed("us", order("dan", 4))
    shop.epoch()
    for file in (shop.root / "feed" / "us").glob("002.json"):
        file.unlink()  # so that the restored pipeline has nothing to read again
    shop.epoch(restore={"restore_from": "chk-1", "allow_missing_files": True})
    assert shop.all_rows() == fan_in_tables(eu, us)


def change(key: int, name: str, at: int, kind: str = "upsert") -> dict[str, Any]:
    return {"id": key, "name": name, "at": at, "kind": kind}


def changes_tables(changes: list[dict[str, Any]]) -> dict[str, Rows]:
    """What the tables of the project of changes hold."""
    newest: dict[int, dict[str, Any]] = {}
    for one in sorted(changes, key=lambda change: (change["at"], change["kind"] != "delete")):
        newest[one["id"]] = one
    living = [{"id": one["id"], "name": one["name"]} for one in newest.values() if one["kind"] != "delete"]
    names = {one["name"] for one in living}
    return {
        "customers": as_rows(*living),
        "last_seen": as_rows(*({"id": one["id"], "at": one["at"]} for one in newest.values())),
        "names": as_rows(*({"name": n, "count": sum(one["name"] == n for one in living)} for n in names)),
    }


def test_changes_are_applied_in_the_order_of_their_sequence_whenever_they_arrive(
    project: Callable[[str], Project],
) -> None:
    crm = project("changes")
    said = [change(1, "ann", 1), change(2, "bob", 2), change(1, "anna", 5), change(3, "cid", 3)]
    crm.feed("changes", *said)
    crm.epoch()
    assert crm.all_rows() == changes_tables(said)
    late = [change(1, "old", 4), change(2, "bob", 9, "delete"), change(3, "cid", 3, "delete")]
    crm.feed("changes", *late)
    crm.epoch()
    assert crm.all_rows() == changes_tables([*said, *late])
    after_deletion = [change(2, "late", 8), change(4, "dan", 1), change(3, "cyd", 7)]
    crm.feed("changes", *after_deletion)
    crm.epoch()
    everything = [*said, *late, *after_deletion]
    assert crm.all_rows() == changes_tables(everything)
    assert (2, "late") not in {tuple(dict(row).values()) for row in crm.rows("customers")}

    crm.epoch(restore={"restore_from": "chk-1"})
    assert crm.all_rows() == changes_tables(everything)


@pytest.mark.nightly
@pytest.mark.parametrize("broken", [{"at": None}, {"id": None}])
def test_a_change_without_a_key_or_a_sequence_fails_the_epoch(
    project: Callable[[str], Project], broken: dict[str, Any]
) -> None:
    crm = project("changes")
    crm.feed("changes", change(1, "ann", 1))
    crm.epoch()
    crm.feed("changes", change(2, "bob", 2) | broken)
    with pytest.raises(Exception, match=r"a row of change_feed has no key \(id\) or no sequence"):
        crm.epoch()
    assert crm.all_rows() == changes_tables([change(1, "ann", 1)])


def test_a_column_that_a_delta_table_has_no_type_for_is_refused_by_its_name(
    written: Callable[..., Project],
) -> None:
    crm = written(
        """
@dp.table
def customers():
    rows = spark.readStream.schema("id INT, at INT, kind STRING").json(str(Path.cwd() / "feed" / "changes"))
    return rows.select("id", F.to_variant_object(F.struct("at")).alias("doc"))
"""
    )
    crm.feed("changes", change(1, "ann", 3))
    with pytest.raises(
        InvalidRequest, match=r"column 'doc' is variant, which .*/customers has no type for: cast it"
    ):
        crm.epoch()


@pytest.mark.nightly
def test_a_project_of_materialized_views_alone_is_computed_in_every_run(
    written: Callable[..., Project],
) -> None:
    project = written(
        """
@dp.materialized_view
def numbers():
    return spark.range(len(list((Path.cwd() / "feed" / "orders").iterdir())))
""",
        even__sql="CREATE MATERIALIZED VIEW even AS SELECT id FROM numbers WHERE id % 2 = 0;",
    )
    project.feed("orders", {})
    project.epoch()
    assert project.rows("even") == as_rows({"id": 0})
    project.feed("orders", {})
    project.feed("orders", {})
    project.epoch()
    assert project.rows("numbers") == as_rows(*({"id": n} for n in range(3)))
    assert project.rows("even") == as_rows({"id": 0}, {"id": 2})
    main = project.root / "transformations" / "main.py"
    later = 'spark.readStream.schema("a INT").json(str(Path.cwd() / "feed" / "orders"))'
    text = f"@dp.table\ndef later():\n    return {later}\n"
    main.write_text(main.read_text() + text)
    with pytest.raises(InvalidRequest, match="holds state of 'no_rows', which the pipeline no longer has"):
        project.epoch()
    project.epoch(restore={"restore_from": "latest", "allow_non_restored_state": True})
    assert len(project.rows("later")) == 3
    assert len(project.rows("even")) == 2
