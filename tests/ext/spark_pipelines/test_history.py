"""Auto CDC of SCD type 2: all versions of every row are those of a plain program, whenever changes arrive."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import permutations
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt import InvalidRequest
from dagster_ckpt.ext.spark_pipelines import auto_cdc
from tests.ext.spark_pipelines.conftest import Project, Rows
from tests.ext.spark_pipelines.test_projects import as_rows
from tests.root import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Make = Callable[..., Project]

CRM = """
@dp.temporary_view
def change_feed():
    columns = "id INT, name STRING, city STRING, at INT, kind STRING"
    return spark.readStream.schema(columns).json(str(Path.cwd() / "feed" / "changes"))
dp.create_streaming_table("customers")
dp.create_auto_cdc_flow(
    target="customers", source="change_feed", keys=["id"], sequence_by="at", apply_as_deletes="kind = 'delete'",
    except_column_list=["At", "KIND"], stored_as_scd_type=2,
)
dp.create_streaming_table("moves")
dp.create_auto_cdc_flow(
    target="moves", source="change_feed", keys=["id"], sequence_by=F.col("at"), stored_as_scd_type="2",
    column_list=["id", "name", "city"], track_history_column_list=["city"], name="moving",
)
dp.create_streaming_table("names")
dp.create_auto_cdc_flow(
    target="names", source="change_feed", keys=["id"], sequence_by="at", apply_as_deletes="kind = 'delete'",
    column_list=["id", "name", "city"], stored_as_scd_type=2, track_history_except_column_list=["city"],
)
@dp.materialized_view
def current():
    return spark.read.table("customers").where("__END_AT IS NULL").select("id", "name")
"""
"""Three tables of one feed: what counts as another version is everything, the city, the name."""

Change = dict[str, Any]


def change(key: int, name: str | None, city: str, at: int, kind: str = "upsert") -> Change:
    return {"id": key, "name": name, "city": city, "at": at, "kind": kind}


def versions(changes: Iterable[Change], tracked: tuple[str, ...], *, deletes: bool) -> list[dict[str, Any]]:
    """Return the versions of all rows: the reference."""
    by_key: dict[int, dict[int, Change]] = {}
    for one in changes:
        there = by_key.setdefault(one["id"], {}).get(one["at"])
        if there is None or there["kind"] != "delete":
            by_key[one["id"]][one["at"]] = one
    found = []
    for of_key in by_key.values():
        open_version: dict[str, Any] | None = None
        for at, one in sorted(of_key.items()):
            row = {name: one[name] for name in ("id", "name", "city")}
            gone = deletes and one["kind"] == "delete"
            if open_version is not None:
                if not gone and all(open_version[name] == row[name] for name in tracked):
                    open_version |= row
                    continue
                found.append(open_version | {"__END_AT": at})
            open_version = None if gone else row | {"__START_AT": at}
        if open_version is not None:
            found.append(open_version | {"__END_AT": None})
    return found


def tables(changes: Iterable[Change]) -> dict[str, Rows]:
    changes = list(changes)
    customers = versions(changes, ("name", "city"), deletes=True)
    open_ones = [one for one in customers if one["__END_AT"] is None]
    return {
        "customers": as_rows(*customers),
        "moves": as_rows(*versions(changes, ("city",), deletes=False)),
        "names": as_rows(*versions(changes, ("name",), deletes=True)),
        "current": as_rows(*({"id": one["id"], "name": one["name"]} for one in open_ones)),
    }


def test_the_reference_itself_makes_the_versions_that_are_written_here() -> None:
    changes = [
        change(1, "ann", "rome", 5),
        change(1, "ann", "rome", 3),
        change(1, "ann", "oslo", 7),
        change(1, "", "", 9, "delete"),
        change(1, "ann", "oslo", 12),
        change(2, "", "", 1, "delete"),
    ]
    rome = {"id": 1, "name": "ann", "city": "rome", "__START_AT": 3, "__END_AT": 7}
    oslo = {"id": 1, "name": "ann", "city": "oslo", "__START_AT": 7, "__END_AT": 9}
    again = oslo | {"__START_AT": 12, "__END_AT": None}
    assert versions(changes, ("name", "city"), deletes=True) == [rome, oslo, again]


@pytest.mark.nightly
def test_versions_are_those_of_all_changes_in_order_whenever_they_arrive(written: Make) -> None:
    crm = written(CRM)
    said = [
        change(1, "ann", "rome", 10),
        change(1, "ann", "rome", 20),
        change(1, "ann", "oslo", 30),
        change(2, "bob", "rome", 10),
        change(2, "bob", "rome", 40, "delete"),
        change(3, None, "bern", 5),
        change(3, None, "bern", 6),
    ]
    crm.feed("changes", *said)
    crm.epoch()
    assert crm.all_rows() == tables(said)
    late = [
        change(1, "eve", "oslo", 15),  # divides the version of 10 to 30
        change(2, "bob", "bonn", 25, "delete"),  # before what was published as the end
        change(2, "rob", "rome", 50),  # after a deletion
        change(3, "cid", "bern", 4),  # before the first
        change(4, "dan", "kiel", 9, "delete"),  # nothing to delete yet
        change(1, "ann", "oslo", 30),  # told again
    ]
    crm.feed("changes", *late)
    crm.epoch()
    assert crm.all_rows() == tables([*said, *late])
    later = [
        change(4, "dan", "kiel", 8),
        change(1, "eve", "oslo", 15, "delete"),
    ]  # one sequence: the deletion wins
    crm.feed("changes", *later)
    crm.epoch()
    everything = [*said, *late, *later]
    assert crm.all_rows() == tables(everything)
    assert {"id": 4, "name": "dan", "city": "kiel", "__START_AT": 8, "__END_AT": 9} in [
        dict(row) for row in crm.rows("customers")
    ]
    crm.epoch(restore={"restore_from": "chk-1"})
    assert crm.all_rows() == tables(everything)


@pytest.mark.nightly
def test_a_restore_and_a_fork_have_the_versions_of_their_changes(written: Make) -> None:
    crm = written(CRM)
    said = [change(1, "ann", "rome", 10), change(1, "ann", "oslo", 30)]
    crm.feed("changes", *said)
    crm.epoch()
    crm.feed("changes", change(1, "eve", "oslo", 15), change(2, "bob", "rome", 1))
    crm.epoch()
    (crm.root / "feed" / "changes" / "002.json").unlink()
    crm.epoch(restore={"restore_from": "chk-1", "allow_missing_files": True})
    assert crm.all_rows() == tables(said)
    more = [change(1, "ann", "rome", 20)]
    crm.feed("changes", *more)
    assert crm.fork_from("chk-1", allow_missing_files=True) == tables([*said, *more])
    assert crm.all_rows() == tables(said)


@pytest.mark.nightly
def test_an_epoch_that_is_killed_while_versions_are_published_is_made_up(written: Make) -> None:
    crm = written(CRM)
    said = [change(1, "ann", "rome", 10), change(2, "bob", "rome", 20)]
    crm.feed("changes", *said)
    crm.epoch()
    late = [change(1, "eve", "rome", 5), change(2, "bob", "rome", 15, "delete")]
    crm.feed("changes", *late)
    child = [
        sys.executable,
        "-m",
        "tests.ext.spark_pipelines.kill_child",
        str(crm.root),
        "before a commit",
        "2",
    ]
    killed = subprocess.run(child, cwd=ROOT, capture_output=True, text=True, check=False)
    assert killed.returncode == 9, killed.stderr[-2000:]
    more = [change(1, "ann", "rome", 7)]
    crm.feed("changes", *more)
    crm.epoch(where=crm.coordinator.model_copy(update={"concurrent_runs": "take_over"}))
    assert crm.all_rows() == tables([*said, *late, *more])


@pytest.mark.nightly
def test_versions_of_random_changes_in_random_order_are_those_of_the_reference(written: Make) -> None:
    crm, rng = written(CRM), random.Random(7)
    changes = {
        (key, at): change(
            key,
            rng.choice(["ann", "bob", None]),
            rng.choice(["rome", "oslo"]),
            at,
            rng.choice(["upsert", "upsert", "upsert", "delete"]),
        )
        for key in range(6)
        for at in range(12)
    }
    told = list(changes.values()) + rng.sample(list(changes.values()), 10)
    rng.shuffle(told)
    arrived: list[Change] = []
    for part in (told[:30], told[30:35], told[35:]):
        crm.feed("changes", *part)
        arrived += part
        crm.epoch()
        assert crm.all_rows() == tables(arrived), json.dumps(arrived)


@pytest.mark.nightly
def test_of_changes_with_one_sequence_the_same_one_wins_however_they_arrive(spark: SparkSession) -> None:
    schema = "id INT, __row STRUCT<id: INT, name: STRING>, __order INT, __deleted BOOLEAN"
    rows = [(1, (1, name), 5, False) for name in ("ann", "bob", None)]
    newest, all_versions = set[str](), set[str]()
    for order in permutations(rows):
        told = spark.createDataFrame(list(order), schema).coalesce(1)
        newest.add(str(auto_cdc.newest_rows(told, ("id",), "at").collect()))
        all_versions.add(str(auto_cdc.versions(told, ("id",), ("name",), "at").collect()))
    assert len(newest) == len(all_versions) == 1
    assert "Row(" in newest.pop()


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["VARIANT", "STRUCT<at: ARRAY<VARIANT>>", "MAP<STRING, VARIANT>"])
def test_of_rows_with_a_variant_and_one_sequence_the_same_one_wins(kind: str, spark: SparkSession) -> None:
    texts = {
        "VARIANT": "doc",
        "STRUCT<at: ARRAY<VARIANT>>": "struct(array(doc) AS at)",
        "MAP<STRING, VARIANT>": "map('k', doc)",
    }
    newest = set[str]()
    for order in permutations(["1", '{"a": [null, "x"]}', "null"]):
        told = spark.createDataFrame([(text,) for text in order], "text STRING").coalesce(1)
        told = told.selectExpr("1 AS id", "parse_json(text) AS doc").selectExpr(
            "id", f"struct(id, {texts[kind]} AS doc) AS __row", "5 AS __order", "false AS __deleted"
        )
        rows = auto_cdc.newest_rows(told, ("id",), "at")
        newest.add(str(rows.selectExpr("to_json(struct(doc))").collect()))
    assert len(newest) == 1


NUMBERS = """
@dp.table
def orders():
    return spark.readStream.schema("k STRING, v INT, m MAP<STRING, INT>").json(str(Path.cwd() / "feed" / "orders"))
dp.create_streaming_table("kept"{schema})
dp.create_auto_cdc_flow(target="kept", source={source}, keys=["k"], sequence_by={by}, stored_as_scd_type=2{more})
@dp.temporary_view
def started():
    return spark.readStream.table("orders").select("k", F.col("v").alias("__start_at"))
@dp.temporary_view
def nested():
    return spark.readStream.table("orders").select("k", "v", F.struct("v").alias("s"))
@dp.temporary_view
def with_folded():
    return spark.readStream.table("orders").select("k", "v", F.collate("k", "UTF8_LCASE").alias("folded"))
"""


@pytest.mark.parametrize(
    ("said", "given"),
    [
        (r"'m' is map<string,int>, whose values Spark cannot compare here: leave the column out", {}),
        (
            r"'folded' is string collate UTF8_LCASE, whose values Spark cannot compare here: .* or cast it",
            {"source": "'with_folded'"},
        ),
        (
            r"has a column '__start_at', which is Spark's own in SCD type 2",
            {"source": "'started'", "by": "'k'"},
        ),
        (r"is put in order by struct<.*>, which cannot be part of a key", {"by": "F.struct('v', 'k')"}),
        (
            r"names a column that 'orders' does not have: .*, the columns are \['k', 'v', 'm'\]",
            {"more": ", track_history_column_list=['z']"},
        ),
        (
            r"lists 'upper\(k\)', which is no column of 'orders' but made of one",
            {"more": ", track_history_except_column_list=[F.upper('k')]"},
        ),
        (
            r"lists 'v', which is no column of 'nested' but made of one",
            {"source": "'nested'", "more": ", except_column_list=['s.v']"},
        ),
        (
            r"'k', of which history .* beside the keys: \['v'\]",
            {"more": ", track_history_except_column_list=['k']"},
        ),
        (
            r"column '__START_AT' is string in its schema and int in flow 'kept'",
            {"schema": ", schema='__START_AT STRING'"},
        ),
    ],
    ids=[
        "a map",
        "a collation",
        "a column of Spark's",
        "a struct",
        "no column",
        "no name",
        "a field",
        "a key",
        "a schema",
    ],
)
def test_what_has_no_versions_is_refused_by_name(said: str, given: dict[str, str], written: Make) -> None:
    plain = {"schema": "", "source": "'orders'", "by": "'v'", "more": ""} | given
    if "is map" not in said and plain["source"] == "'orders'":
        plain["more"] += ", except_column_list=['m']"
    project = written(NUMBERS.format(**plain))
    with pytest.raises(InvalidRequest, match=said):
        project.pipeline()


def test_a_declared_schema_of_a_table_of_versions_names_its_bounds_or_leaves_them_out(written: Make) -> None:
    declared = NUMBERS.format(
        schema=", schema='k STRING, v INT, __START_AT INT, __END_AT INT'",
        source="'orders'",
        by="'v'",
        more=", except_column_list=['m']",
    )
    project = written(declared)
    project.feed("orders", {"k": "a", "v": 1}, {"k": "a", "v": 4})
    project.epoch()
    first, second = {"k": "a", "v": 1, "__START_AT": 1, "__END_AT": 4}, {"k": "a", "v": 4, "__START_AT": 4}
    assert project.rows("kept") == as_rows(first, second | {"__END_AT": None})
