"""Rows that break a condition: counted, dropped, quarantined with their checkpoint, and taken back with it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from dagster_ckpt import (
    CheckpointedPipeline,
    InvalidRequest,
    checkpointed_pipeline,
    load_table,
    spark_sink,
    spark_source,
    spark_stage,
)
from dagster_ckpt.core.model import SnapshotMetrics
from dagster_ckpt.dagster.names import care_job_name
from dagster_ckpt.ext.delta import backend
from dagster_ckpt.ext.delta.sink import DeltaSink
from dagster_ckpt.ext.quarantine import poisoned_rows
from dagster_ckpt.ext.quarantine.judged_rows import JudgedRows
from dagster_ckpt.ext.quarantine.verdicts import read_in_order
from dagster_ckpt.operations.care.maintain import (
    Stays,
    conditions_in,
    order_requeue,
    preview_requeue,
    selected,
)
from dagster_ckpt.sinks import SqlTable
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.channel.sink import write_staged
from tests.lab.lab import CHAINED_EPOCHS as CHAINING
from tests.lab.lab import Lab, failure_text, lab
from tests.root import ROOT
from tests.tables import rows_in

__all__ = ["lab"]

SCHEMA = "n INT, name STRING, amount INT"
EXPECT = {"amount > 0": "quarantine", "name IS NOT NULL": "drop", "name <> 'odd'": "warn"}


@pytest.fixture(params=["folder", pytest.param("object store", marks=pytest.mark.nightly)])
def wherever(request: pytest.FixtureRequest, lab: Lab) -> None:
    """Rows of channels lie in a folder, or in an object store."""
    if request.param == "folder":
        return
    server = request.getfixturevalue("s3_apart")
    bucket = f"s3://{server.new_bucket()}"
    options = {"endpoint_url": server.endpoint, "key": "test", "secret": "test"}
    places = {name: f"{bucket}/{name}" for name in ("work_dir", "checkpoint_dir", "savepoint_dir")}
    lab.settings = {**lab.settings, **places, "storage_options": options}


def put(folder: Path, *rows: tuple[int, str | None, int | None]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    number = len([*folder.glob("*.json")])
    lines = [json.dumps({"n": n, "name": name, "amount": amount}) for n, name, amount in rows]
    aside = folder / f".{number}"
    aside.write_text("\n".join(lines))
    aside.rename(folder / f"{number:05d}.json")


def sales(
    folder: Path, expect: Any = EXPECT, key: Sequence[str] = (), schema: str = SCHEMA, **settings: Any
) -> CheckpointedPipeline:
    """Files → clean, which has conditions → paid, which appends unless it has a key."""

    @spark_source
    def orders(spark):  # type: ignore[no-untyped-def]
        return spark.readStream.schema(schema).json(str(folder))

    @spark_stage(**({"expect": expect} if expect else {}), **settings)
    def clean(orders):  # type: ignore[no-untyped-def]
        return orders

    @spark_sink(key=[*key])
    def paid(clean):  # type: ignore[no-untyped-def]
        return clean

    @checkpointed_pipeline(name="sales")
    def pipeline() -> None:
        paid(clean(orders()))

    return pipeline  # type: ignore[no-any-return]


def numbers(table: Path) -> list[int]:
    return sorted(row["n"] if "n" in row else row["columns"]["n"] for row in rows_in(table))


def metrics_of(lab: Lab, pipeline: CheckpointedPipeline, checkpoint: int) -> SnapshotMetrics:
    return next(s.metrics for s in lab.metadata(pipeline, checkpoint).stages if s.uid == "clean")


def published_by(lab: Lab, pipeline: CheckpointedPipeline) -> dict[int, int | None]:
    """Return the checkpoint of each row of the quarantine, by number."""
    rows = load_table(pipeline, "clean", coordinator=lab.coordinator).to_arrow().to_pylist()
    return {row["columns"]["n"]: row["checkpoint"] for row in rows}


@pytest.mark.usefixtures("wherever")
@pytest.mark.parametrize("lab", [{"num_retained": 5}], indirect=True)
def test_bad_rows_go_to_the_quarantine_with_their_checkpoint_and_back_with_a_restore(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, pipeline = tmp_path / "feed", sales(tmp_path / "feed")
    quarantine = lab.tables / "quarantine" / "clean"
    put(feed, (1, "ann", 5), (2, "bob", 0), (3, None, 7), (4, "odd", 2), (5, "eve", None), (6, None, -1))
    lab.succeeds(pipeline)
    assert numbers(lab.tables / "paid") == [1, 4]
    found = {row["columns"]["n"]: row for row in rows_in(quarantine)}
    assert sorted(found) == [2, 5, 6], "a row that is to be dropped too is kept"
    assert found[6]["condition"] == "amount > 0"
    assert found[6]["conditions"] == ["amount > 0", "name IS NOT NULL", "name <> 'odd'"], "NULL is no"
    assert json.loads(found[5]["row"]) == {"n": 5, "name": "eve", "amount": None}
    assert (found[2]["stage"], found[2]["batch"]) == ("clean", 0)
    told = metrics_of(lab, pipeline, 1)
    assert (told.rows_judged, told.rows_refused) == (6, 5)
    assert told.broken == {"amount > 0": 3, "name IS NOT NULL": 2, "name <> 'odd'": 3}

    put(feed, (7, "ann", 1), (8, "bob", -8))
    lab.succeeds(pipeline)
    assert published_by(lab, pipeline) == {2: 1, 5: 1, 6: 1, 8: 2}
    assert metrics_of(lab, pipeline, 2).broken["amount > 0"] == 1, "those of this checkpoint alone"

    lab.succeeds(pipeline, restore_from="chk-1")
    assert published_by(lab, pipeline) == {2: 1, 5: 1, 6: 1, 8: 3}, "taken back, and brought again by the run"
    assert numbers(lab.tables / "paid") == [1, 4, 7]
    assert Counter(metrics_of(lab, pipeline, 3).broken) == Counter(metrics_of(lab, pipeline, 2).broken)

    renamed = sales(feed, uid="checked", previous_uids=["clean"], quarantine_days=1)
    put(feed, (9, "ann", -9))
    with monkeypatch.context() as later:
        later.setattr(backend, "time", SimpleNamespace(time=lambda: time.time() + 2 * 86_400))
        gone = lab.run(renamed)
    assert gone.success, failure_text(gone)
    assert numbers(quarantine) == [9], "its own table, without the rows of long ago"
    lab.succeeds(renamed, restore_from="chk-3")
    assert numbers(quarantine) == [2, 5, 6, 8, 9]


def shares(folder: Path, **of: Any) -> CheckpointedPipeline:
    """Files → good → shares, which divides by the amount; ``of``: settings by stage."""

    @spark_source(**of.get("orders", {}))
    def orders(spark):  # type: ignore[no-untyped-def]
        return spark.readStream.schema(f"{SCHEMA}, _corrupt_record STRING").json(str(folder))

    @spark_stage(**of.get("good", {}))
    def good(orders):  # type: ignore[no-untyped-def]
        return orders.where("n > 0").selectExpr("n", "amount", "1 / (10 - amount) AS rest")

    @spark_sink(**of.get("shares", {}))
    def shares(good):  # type: ignore[no-untyped-def]
        return good.selectExpr("n", "1 / amount AS share")

    @checkpointed_pipeline(name="sales")
    def pipeline() -> None:
        shares(good(orders()))

    return pipeline  # type: ignore[no-any-return]


FROM_NOW_ON = {
    "expectations of a sink": ({"shares": {"expect": {"share < 1": "quarantine"}}}, 1, "shares_rows"),
    "errors of a sink": ({"shares": {"on_error": "quarantine"}}, 0, "shares_rows"),
    "expectations of a stage": ({"good": {"expect": {"amount > 1": "quarantine"}}}, 1, "good"),
    "errors of a stage": ({"good": {"on_error": "quarantine"}}, 10, "good"),
    "expectations of a source": ({"orders": {"expect": {"amount > 1": "quarantine"}}}, 1, "orders"),
    "records of a source": ({"orders": {"on_error": "quarantine"}}, "no JSON", "orders"),
}


@pytest.mark.parametrize("lab", [{"num_retained": 5}], indirect=True)
@pytest.mark.parametrize(
    ("of", "bad", "stage"),
    [
        pytest.param(*case, id=name, marks=[pytest.mark.nightly] if at else [])
        for at, (name, case) in enumerate(FROM_NOW_ON.items())
    ],
)
def test_what_has_run_in_a_chain_takes_conditions_up_from_now_on_and_off_again(
    lab: Lab, tmp_path: Path, of: dict[str, Any], bad: int | str, stage: str
) -> None:
    feed, after = tmp_path / "feed", shares(tmp_path / "feed", **of)
    put(feed, (1, "ann", 5))
    lab.succeeds(shares(feed))
    put(feed, (2, "bob", 4), (3, "eve", bad if isinstance(bad, int) else None), (4, "joe", 2))
    if isinstance(bad, str):
        file = feed / "00001.json"
        file.write_text(file.read_text().replace('"amount": null', bad))
    for restored in ("latest", "chk-1"):
        lab.succeeds(after, restore_from=restored)
        assert numbers(lab.tables / "shares") == [1, 2, 4]
        [kept] = rows_in(lab.tables / "quarantine" / stage)
        assert (bad if isinstance(bad, str) else '"n":3') in kept["row"]
    put(feed, (5, "ann", 5), (6, "ann", 5))
    lab.succeeds(shares(feed))
    assert numbers(lab.tables / "shares") == [1, 2, 4, 5, 6], "and takes them off again"
    assert len(rows_in(lab.tables / "quarantine" / stage)) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("lab", [{"num_retained": 5}], indirect=True)
def test_a_fork_takes_conditions_of_a_sink_up_and_off_again(lab: Lab, tmp_path: Path) -> None:
    """Its origin's checkpoint is one of a query that is two in the fork, and the other way round."""
    feed, judged = tmp_path / "feed", {"shares": {"expect": {"share < 1": "quarantine"}}}
    put(feed, (1, "ann", 5))
    lab.succeeds(shares(feed))
    before = lab.record(shares(feed)).completed[-1].location.uri
    put(feed, (2, "bob", 4), (3, "eve", 1))
    on = shares(feed, **judged).fork("on", table_dir=str(lab.folder / "on"))
    lab.succeeds(on, restore_from=before, fork=True)
    assert numbers(lab.folder / "on" / "shares") == [1, 2]
    assert len(rows_in(lab.folder / "on" / "quarantine" / "shares_rows")) == 1
    assert numbers(lab.tables / "shares") == [1], "its origin's table is its own"

    lab.succeeds(shares(feed, **judged))
    put(feed, (4, "joe", 1))
    off = shares(feed).fork("off", table_dir=str(lab.folder / "off"))
    lab.succeeds(off, restore_from=lab.record(off.origins[0]).completed[-1].location.uri, fork=True)
    assert numbers(lab.folder / "off" / "shares") == [1, 2, 4]
    put(feed, (5, "ann", 5))
    for fork in (on, off):
        lab.succeeds(fork)
    assert numbers(lab.folder / "on" / "shares") == [1, 2, 5]
    assert numbers(lab.folder / "off" / "shares") == [1, 2, 4, 5]
    assert numbers(lab.tables / "shares") == [1, 2]


@pytest.mark.nightly
@pytest.mark.parametrize("lab", [{"num_retained": 9}], indirect=True)
@pytest.mark.parametrize(("stage", "of"), [("shares_rows", "shares"), ("good", "good")])
def test_a_quarantine_that_was_away_for_a_while_has_the_rows_of_each_restore_point(
    lab: Lab, tmp_path: Path, stage: str, of: str
) -> None:
    """A restore to when it was away emptied it; behind one to before, rows that belong to no checkpoint stayed."""
    feed, off = tmp_path / "feed", shares(tmp_path / "feed")
    on = shares(feed, **{of: {"expect": {"n < 10": "quarantine"}}})
    belongs: dict[int, list[int]] = {0: []}

    def run(pipeline: CheckpointedPipeline, number: int, back_to: int | None = None) -> None:
        """Let a good and a bad row arrive, and run; ``number``: of the checkpoint."""
        put(feed, (number, "ann", 5), (10 + number, "eve", 5))
        lab.succeeds(pipeline, **{} if back_to is None else {"restore_from": f"chk-{back_to}"})
        behind = number - 1 if back_to is None else back_to
        again = [10 + n for n in range(behind + 1, number + 1)] if pipeline is on else []
        belongs[number] = [*belongs[behind], *again]
        if pipeline is on:
            kept = [json.loads(row["row"])["n"] for row in rows_in(lab.tables / "quarantine" / stage)]
            assert sorted(kept) == belongs[number]
        arrived = [one for n in range(1, number + 1) for one in (n, 10 + n)]
        assert numbers(lab.tables / "shares") == sorted({*arrived} - {*belongs[number]})

    run(off, 1)
    run(on, 2)
    run(off, 3)
    run(on, 4)
    run(on, 5, back_to=3)
    run(on, 6)
    run(off, 7, back_to=2)
    run(on, 8)
    run(off, 9, back_to=1)


def test_a_quarantine_that_is_taken_away_with_a_restore_to_before_it_is_said_to_stay(
    lab: Lab, tmp_path: Path
) -> None:
    """Its row was in the table and in the quarantine, and nothing said so."""
    feed = tmp_path / "feed"
    put(feed, (1, "ann", 5))
    lab.succeeds(shares(feed))
    put(feed, (2, "eve", 1))
    lab.succeeds(shares(feed, shares={"expect": {"share < 1": "quarantine"}}))
    done = lab.succeeds(shares(feed), restore_from="chk-1")
    assert numbers(lab.tables / "shares") == [1, 2]
    kept = lab.tables / "quarantine" / "shares_rows"
    assert len(rows_in(kept)) == 1
    told = [entry.user_message for entry in lab.instance.all_logs(done.run_id)]
    assert sum(f"{kept} stays as it is, whatever was restored" in one for one in told) == 1


@pytest.mark.nightly
def test_a_quarantine_that_somebody_removed_begins_empty_where_it_is_to_stay_so(
    lab: Lab, tmp_path: Path
) -> None:
    """Nothing but reading all data again went on; an order waited for rows that nobody had."""
    feed, mended = tmp_path / "feed", sales(tmp_path / "feed", {"amount >= 0": "quarantine"})
    put(feed, (1, "ann", 0), (2, "ann", 5), (3, "ann", -1))
    lab.succeeds(sales(feed))
    order_requeue(mended, lab.coordinator)
    lab.succeeds(mended)
    order_requeue(mended, lab.coordinator)
    shutil.rmtree(lab.tables / "quarantine" / "clean")
    assert "keep_rows_of: [clean]" in failure_text(lab.run(mended, restore_from="chk-2"))
    put(feed, (4, "ann", 5))
    lab.succeeds(mended, restore_from="chk-2", keep_rows_of=["clean"])
    assert not lab.record(mended).requeue
    put(feed, (5, "ann", -5))
    lab.succeeds(mended)
    assert numbers(lab.tables / "paid") == [1, 2, 4]
    assert numbers(lab.tables / "quarantine" / "clean") == [5]


def test_a_row_that_is_warned_of_keeps_its_place_among_good_ones_of_its_key(lab: Lab, tmp_path: Path) -> None:
    pipeline = sales(tmp_path / "feed", key=["amount"])
    put(tmp_path / "feed", (1, "odd", 5), (2, "ann", 5), (3, "ann", 6), (4, "odd", 6))
    lab.succeeds(pipeline)
    assert numbers(lab.tables / "paid") == [2, 4], "the later one of each key"
    assert metrics_of(lab, pipeline, 1).broken["name <> 'odd'"] == 2


def test_rows_that_were_written_are_read_in_their_order_however_great_their_files_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.range(1000).coalesce(1)
    parts = [rows.where("id < 10"), rows.where("id >= 10")]
    files = [
        file
        for number, part in enumerate(parts)
        for file in write_staged(part, tmp_path / f"{number}", tmp_path)
    ]
    assert [row["id"] for row in read_in_order(rows, tmp_path, files).collect()] == [*range(1000)]


@pytest.mark.usefixtures("wherever")
def test_a_row_that_must_not_be_fails_the_run_and_one_too_many_the_checkpoint(
    lab: Lab, tmp_path: Path
) -> None:
    feed = tmp_path / "feed"
    put(feed, (1, "ann", 5), (2, "bob", 0), (3, "cat", -3))
    refused = failure_text(lab.run(sales(feed, {"amount > 0": "fail"})))
    assert (
        "stage 'clean' returns 2 rows in batch 0 that must not be: 'amount > 0' does not hold for " in refused
    )
    assert '{"n": 2, "name": "bob", "amount": 0}' in refused
    refused = failure_text(lab.run(sales(feed, {"sum_of > 0": "drop"})))
    assert "stage 'clean' expects 'sum_of > 0', which Spark cannot ask of its rows" in refused
    refused = failure_text(lab.run(sales(feed, {"amount": "drop"})))
    assert "stage 'clean' expects 'amount', which Spark cannot ask of its rows" in refused
    for sql, why in {
        "amount >": "Syntax error at or near end of input",
        "amount > 0) OR (1 > 0": "Syntax error",
        "_metadata.file_size > 0": "A column",
    }.items():
        refused = failure_text(lab.run(sales(feed, {sql: "drop"})))
        assert f"stage 'clean' expects {sql!r}, which Spark cannot ask of its rows: {why}" in refused
    assert not rows_in(lab.tables / "paid")

    limited = {"amount > 0": "quarantine"}
    refused = failure_text(lab.run(sales(feed, limited, at_most="50 %", beyond="fail")))
    assert "stage 'clean': 'amount > 0' does not hold for 2 of 3 rows, and at_most allows 50 %" in refused
    lab.succeeds(sales(feed, limited, at_most=2, beyond="fail"))
    assert numbers(lab.tables / "quarantine" / "clean") == [2, 3]
    put(feed, (4, "dan", 0))
    refused = failure_text(lab.run(sales(feed, limited, at_most=0, beyond="fail")))
    assert "does not hold for 1 of 1 row, and at_most allows 0" in refused
    lab.succeeds(sales(feed, limited, at_most=1, beyond="fail"))  # no row came, and that is today's limit
    assert numbers(lab.tables / "quarantine" / "clean") == [2, 3, 4]


def evaluations(result: dg.ExecuteInProcessResult) -> dict[str, tuple[bool, Any]]:
    told = [
        e.asset_check_evaluation_data
        for e in result.all_events
        if e.event_type_value == "ASSET_CHECK_EVALUATION"
    ]
    return {
        one.check_name: (one.passed, one.metadata["broken"].value)
        for one in told
        if one.asset_key == dg.AssetKey(["sales", "quarantine", "clean"])
    }


def never(*args: Any, **kwargs: Any) -> Any:
    """Stand for a publish whose outside is away."""
    raise OSError("it is away")


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Let a call raise the next time, before it does anything."""
    right = getattr(owner, name)

    def wrong(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(owner, name, right)
        raise OSError("the process ends here")

    monkeypatch.setattr(owner, name, wrong)


@pytest.mark.nightly
@pytest.mark.parametrize("lab", [{"num_retained": 5}], indirect=True)
def test_good_quarantined_and_dropped_are_the_input_across_crashes_and_in_a_fork(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, pipeline = tmp_path / "feed", sales(tmp_path / "feed", at_most=2)
    crashes = [(JudgedRows, "_count"), (ChannelLog, "append_data"), (DeltaSink, "publish")]
    truth: Counter[str] = Counter()
    number = 0
    for owner, call in crashes:
        rows = [(number + n, "ann" if n % 3 else None, n % 4 - 1) for n in range(8)]
        number += len(rows)
        truth += Counter(kind_of(row) for row in rows)
        put(feed, *rows)
        fail_once(monkeypatch, owner, call)
        lab.run(pipeline)
        lab.succeeds(pipeline)
        found = numbers(lab.tables / "paid"), numbers(lab.tables / "quarantine" / "clean")
        assert [len(one) for one in found] == [truth["good"], truth["bad"]]
        assert len({*found[0], *found[1]}) == truth["good"] + truth["bad"], "a row is there twice"
    total = sum(
        (Counter(metrics_of(lab, pipeline, c.checkpoint_id).broken) for c in lab.record(pipeline).completed),
        Counter(),
    )
    assert total["amount > 0"] == truth["bad"]
    put(feed, (100, "bob", 0))
    told = lab.run(pipeline)
    assert evaluations(told)["clean_amount_0"] == (True, 1)
    put(feed, *[(n, "bob", 0) for n in range(101, 104)])
    told = lab.run(pipeline)
    assert evaluations(told)["clean_amount_0"] == (False, 3), "more than at_most"
    at = lab.record(pipeline).completed[-1].location.uri

    fork = pipeline.fork("other", table_dir=str(lab.folder / "other"))
    lab.succeeds(fork, restore_from=at, fork=True)
    assert numbers(lab.folder / "other" / "quarantine" / "clean") == numbers(
        lab.tables / "quarantine" / "clean"
    )


LOOSE = {"amount > -5": "quarantine", "name IS NOT NULL": "drop"}
"""Conditions of tomorrow: what was refused by ``EXPECT`` is no longer, or not all."""


def kept(lab: Lab, state: str) -> dict[int, int]:
    """Tries of the rows that the quarantine has in a state, by number."""
    rows = rows_in(lab.tables / "quarantine" / "clean")
    return {row["columns"]["n"]: row["tries"] for row in rows if row["state"] == state}


@pytest.mark.usefixtures("wherever")
@pytest.mark.nightly
@pytest.mark.parametrize("lab", [{"num_retained": 8}], indirect=True)
def test_requeued_rows_go_through_once_with_their_checkpoint_and_come_back_with_a_restore(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.folder = tmp_path / "lab {1}"  # to Spark's readers a pattern
    feed = tmp_path / "feed"
    put(feed, (1, "ann", 5), (2, "bob", 0), (3, "cat", -9), (4, None, -1), (5, "eve", None))
    lab.succeeds(sales(feed))
    assert kept(lab, "quarantined") == {2: 1, 3: 1, 4: 1, 5: 1}

    mended = sales(feed, LOOSE)
    [told] = preview_requeue(mended, lab.coordinator, "condition = 'amount > 0' AND tries < 2")
    assert (told.rows, told.conditions, told.waiting) == (4, {"amount > 0": 4}, 0)
    order_requeue(mended, lab.coordinator, "condition = 'amount > 0'")
    again = {"action": "requeue", "where": "condition = 'amount > 0'"}
    lab.succeeds(mended, care_job_name(mended.name), {"care": again})
    assert len(lab.record(mended).requeue) == 1, "ordered twice is once"
    fail_once(monkeypatch, JudgedRows, "_count")
    lab.run(mended)
    lab.succeeds(mended)
    assert numbers(lab.tables / "paid") == [1, 2], "no row came in: the order alone is a batch"
    assert kept(lab, "requeued") == {2: 1 + 1}
    assert kept(lab, "dropped") == {4: 2}
    assert kept(lab, "quarantined") == {3: 2, 5: 2}, "those that failed again"
    assert not lab.record(mended).requeue
    metrics = metrics_of(lab, mended, 2)
    assert (metrics.rows_judged, metrics.rows_refused, metrics.rows_requeued) == (4, 3, 4)

    put(feed, (6, "fay", -8))
    order_requeue(mended, lab.coordinator, "tries >= 2")
    lab.succeeds(mended)
    assert kept(lab, "quarantined") == {3: 3, 5: 3, 6: 1}, "no try of a row that was none of the order"
    assert numbers(lab.tables / "paid") == [1, 2]

    lab.succeeds(mended, restore_from="chk-1")
    assert kept(lab, "quarantined") == {2: 1, 3: 1, 4: 1, 5: 1, 6: 1}
    assert numbers(lab.tables / "paid") == [1], "what went on is taken back, and ordered no more"

    order_requeue(mended, lab.coordinator)
    other = sales(feed, LOOSE, schema=f"{SCHEMA}, more STRING", quarantine="clean")
    put(feed, (7, "gus", -7))
    lab.succeeds(other)
    rows = {json.loads(row["row"])["n"]: row for row in rows_in(lab.tables / "quarantine" / "clean")}
    assert (rows[7]["columns"], rows[7]["columns_2"]["n"], rows[3]["columns_2"]) == (None, 7, None)
    assert {row["state"] for row in rows.values()} == {"quarantined"}, (
        "other columns than the stage returns now"
    )
    [told] = order_requeue(other, lab.coordinator, "tries = 1")
    assert (told.rows, told.others) == (1, {Stays.OTHER_COLUMNS: 5})
    put(feed, (8, "hal", -8))
    with monkeypatch.context() as unpublished:
        unpublished.setattr(DeltaSink, "publish", never)
        lab.fails(other, "does not show its rows yet")
    without = failure_text(lab.run(sales(feed, None, schema=f"{SCHEMA}, more STRING")))
    assert "stage 'clean' has no table any more (a sink, or a quarantine), and rows wait" in without
    lab.succeeds(other)
    rows = {json.loads(row["row"])["n"]: row for row in rows_in(lab.tables / "quarantine" / "clean")}
    assert {n: rows[n]["tries"] for n in (7, 8)} == {7: 2, 8: 1}


@pytest.mark.nightly
def test_a_row_that_is_judged_again_is_compared_by_the_order_of_its_texts(lab: Lab, tmp_path: Path) -> None:
    """Its order was lost in the table, and the order for it failed each run."""
    feed, schema = tmp_path / "feed", "n INT, name STRING COLLATE UNICODE_CI, amount INT"
    put(feed, (1, "ann", 5), (2, "bob", 5))
    lab.succeeds(sales(feed, {"name = 'ANN'": "quarantine"}, schema=schema))
    assert numbers(lab.tables / "paid") == [1]
    mended = sales(feed, {"name <> 'EVE' AND name <= 'BOB'": "quarantine"}, schema=schema)
    order_requeue(mended, lab.coordinator)
    lab.succeeds(mended)
    assert numbers(lab.tables / "paid") == [1, 2]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("amount > 0", "'amount' is no column"),
        ("tries < 'two'", "tries takes a whole number"),
        ("condition = 3", "condition takes a text in single quotes"),
        ("tries < 2 OR tries > 3", "before 'OR tries > 3' there is no AND"),
        ("tries < 2 AND", "'its end' is none"),
        ("tries", "'tries' is none"),
        ("batch < 9223372036854775808", "'batch < 9223372036854775808' is none"),
    ],
)
def test_rows_are_chosen_by_comparisons_alone(where: str, said: str) -> None:
    row = {"condition": "it's", "tries": 2, "stage": "old"}
    assert [
        bool(selected(f"stage {one}", row.__getitem__, ["new", "old"])) for one in ("= 'new'", "<> 'new'")
    ] == [
        True,
        False,
    ]
    assert not selected("stage = 'new'", row.__getitem__), "names of another stage"
    assert selected("condition = 'it''s' and tries>=2", row.__getitem__)
    assert not selected("condition = 'it''s' AND tries <> 2", row.__getitem__)
    assert selected(" ", row.__getitem__) is None
    with pytest.raises(InvalidRequest) as refused:
        conditions_in(where)
    assert said in str(refused.value)


def kind_of(row: tuple[int, str | None, int]) -> str:
    return "bad" if row[2] <= 0 else "dropped" if row[1] is None else "good"


def late_check(result: dg.ExecuteInProcessResult) -> tuple[bool, Any]:
    """Return whether the check of late rows passed, and what it says of stages."""
    told = (
        e.asset_check_evaluation_data
        for e in result.all_events
        if e.event_type_value == "ASSET_CHECK_EVALUATION"
    )
    [late] = [one for one in told if one.check_name == "late_rows"]
    return late.passed, late.metadata["stages"].value


KEEP = {"late": "keep", "at_most": "80 %", "beyond": "fail"}
"""Of the rows that come: a stage may return none."""


def late_orders(feed: Path, late: dict[str, Any] = KEEP) -> CheckpointedPipeline:
    """Files → hourly, which drops groups of late rows, and once, which drops late rows."""

    @spark_source
    def orders(spark):  # type: ignore[no-untyped-def]
        return spark.readStream.schema("n INT, name STRING, amount INT").json(str(feed))

    def timed(orders):  # type: ignore[no-untyped-def]
        return orders.selectExpr("n", "timestamp_seconds(n) AS at").withWatermark("at", "0 seconds")

    @spark_stage(**late)
    def hourly(orders):  # type: ignore[no-untyped-def]
        return timed(orders).groupBy(f.window("at", "10 seconds")).count()

    @spark_stage(**late, expect={"n > 0": "quarantine"})
    def once(orders):  # type: ignore[no-untyped-def]
        return timed(orders).dropDuplicates(["at"])

    @spark_sink
    def totals(hourly):  # type: ignore[no-untyped-def]
        return hourly

    @spark_sink
    def singles(once):  # type: ignore[no-untyped-def]
        return once

    @checkpointed_pipeline(name="late")
    def pipeline() -> None:
        read = orders()
        totals(hourly(read))
        singles(once(read))

    return pipeline  # type: ignore[no-any-return]


@pytest.mark.usefixtures("wherever")
@pytest.mark.parametrize("lab", [{"num_retained": 5}], indirect=True)
def test_rows_that_a_watermark_drops_are_counted_and_kept_with_their_checkpoint(
    lab: Lab, tmp_path: Path
) -> None:
    lab.folder = tmp_path / "lab {1}"  # to Spark's readers a pattern
    feed, pipeline = tmp_path / "feed", late_orders(tmp_path / "feed")
    for rows in ([(10, "a", 1)], [(1000, "a", 1)], [(5, "a", 1), (7, "a", 1), (7, "b", 1), (2000, "a", 1)]):
        put(feed, *rows)
        assert late_check(lab.succeeds(pipeline)) == (True, {}), "each is kept"
    told = [{s.uid: s.metrics for s in lab.metadata(pipeline, n).stages} for n in (1, 2, 3)]
    for uid, dropped in {"hourly": 1, "once": 3}.items():
        assert [one[uid].rows_late for one in told] == [0, 0, dropped], "partial groups, or single rows"
        assert [one[uid].rows_late_kept for one in told] == [0, 0, 3]
        assert [one[uid].broken["late"] for one in told] == [0, 0, 3], "its check, and metrics, count them"
        found = rows_in(lab.tables / "quarantine" / uid)
        assert sorted(json.loads(row["row"])["n"] for row in found) == [5, 7, 7]
        assert {(row["condition"], row["columns"], row["state"]) for row in found} == {
            ("late", None, "quarantined")
        }
    assert told[2]["hourly"].refused_rows == "1 dropped by the watermark; 3 late ones kept"
    counted = {one.stage: (one.rows, one.others) for one in preview_requeue(pipeline, lab.coordinator)}
    assert counted == {"hourly": (0, {Stays.LATE: 3}), "once": (0, {Stays.LATE: 3})}

    put(feed, (6, "a", 1), (9, "a", 1))
    assert late_check(lab.succeeds(late_orders(feed, {}))) == (False, {"hourly": 1, "once": 2})


def test_late_rows_that_cannot_be_told_exactly_are_refused_before_the_first_row(
    lab: Lab, tmp_path: Path
) -> None:
    put(tmp_path / "feed", (1, "ann", 5))
    refused = failure_text(lab.run(sales(tmp_path / "feed", late="keep")))
    assert (
        "late='keep', and which rows its watermark drops cannot be told exactly: its query has no operator"
        in refused
    )


# --- rows that cannot be processed, or held -------------------------------------------------------------------

MESSAGE = "n INT, name STRING, amount INT"


def messages(folder: Path, **settings: Any) -> CheckpointedPipeline:
    """Texts → parsed, in which rows raise → by_number (SQLite, one row a key) and country (Delta)."""

    @spark_source
    def lines(spark):  # type: ignore[no-untyped-def]
        return spark.readStream.text(str(folder))

    @spark_stage(expect={"amount > 0": "quarantine"}, on_error="quarantine", **settings)
    def parsed(lines):  # type: ignore[no-untyped-def]
        from pyspark.sql import functions as f

        @f.udf("string", useArrow=False)
        def called(name):  # type: ignore[no-untyped-def]
            if name == "boom":
                raise LookupError(f"nobody is called {name}")
            return name.title()

        row = lines.select(f.from_json("value", MESSAGE, {"mode": "FAILFAST"}).alias("row")).select("row.*")
        text = f.when(row["name"] == "raw", f.expr("CAST(unhex('C3') AS STRING)")).otherwise(called("name"))
        return row.select("n", text.alias("name"), (row["amount"] * 2).alias("amount"))

    @spark_sink(to=SqlTable(f"sqlite:///{folder.parent}/there.db", "by_number"), key=["n"])
    def by_number(parsed):  # type: ignore[no-untyped-def]
        return parsed.select("n", "amount")

    @spark_sink
    def names(parsed):  # type: ignore[no-untyped-def]
        return parsed

    @checkpointed_pipeline(name="messages")
    def pipeline() -> None:
        rows = parsed(lines())
        by_number(rows)
        names(rows)

    return pipeline  # type: ignore[no-any-return]


def message(n: int | None, name: str = "ann", amount: int = 5) -> str:
    return json.dumps({"n": n, "name": name, "amount": amount})


POISONED = {
    '{"n": 1, "name"': "MALFORMED_RECORD_IN_PARSING",
    message(2, "boom"): "LookupError",
    message(4, amount=2_000_000_000): "ARITHMETIC_OVERFLOW",
    message(None, "nobody"): "tables can hold it",
    message(6, "raw"): "tables can hold it",
    message(7, amount=-1): "amount > 0",
}
"""Rows, and what of them the quarantine has as condition."""


def put_lines(folder: Path, *lines: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    number = len([*folder.glob("*.txt")])
    (folder / f".{number}").write_text("\n".join(lines))
    (folder / f".{number}").rename(folder / f"{number:05d}.txt")


KILLED = """
import os, signal, sys
from pathlib import Path
from dagster_ckpt import CheckpointCoordinatorResource, run_epoch
from dagster_ckpt.spark.channel.log import ChannelLog
from tests.ext.quarantine.test_bad_rows import messages
from tests.spark.lake.kill_child import SPARK

append = ChannelLog.append_data

def killed(log, batch, files):
    if log.directory.parent.name == "parsed":
        os.killpg(0, signal.SIGKILL)
    return append(log, batch, files)

ChannelLog.append_data = killed
coordinator = CheckpointCoordinatorResource.model_validate_json(sys.argv[1])
run_epoch(messages(Path(sys.argv[2])), coordinator=coordinator, spark=SPARK)
"""
"""A run whose process is killed with all that a batch has staged, good rows and others, before its entry."""


def killed_before_its_entry(lab: Lab, feed: Path) -> None:
    settings = {"base_dir": str(lab.folder), "table_dir": str(lab.tables), "operator_chaining": CHAINING}
    settings |= lab.settings
    done = subprocess.run(
        [sys.executable, "-c", KILLED, json.dumps(settings), str(feed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]


@pytest.mark.usefixtures("wherever")
@pytest.mark.nightly
@pytest.mark.parametrize("lab", [{"num_retained": 5}], indirect=True)
def test_rows_that_cannot_be_processed_or_held_go_to_the_quarantine_and_the_others_on(
    lab: Lab, tmp_path: Path
) -> None:
    feed, pipeline = tmp_path / "feed", messages(tmp_path / "feed")
    quarantine = lab.tables / "quarantine" / "parsed"
    good = [message(n) for n in range(10, 12)]
    put_lines(feed, *POISONED, *good)
    killed_before_its_entry(lab, feed)
    assert not rows_in(quarantine)
    lab.succeeds(pipeline)
    assert numbers(lab.tables / "names") == [10, 11]
    found = rows_in(quarantine)
    assert Counter(row["condition"] for row in found) == Counter(POISONED.values())
    by_condition = {row["condition"]: row for row in found}
    raised = by_condition["LookupError"]
    assert json.loads(json.loads(raised["row"])["value"])["n"] == 2, "the row as the stage got it"
    assert (raised["input"], raised["columns"], raised["tries"]) == ("lines", None, 1)
    assert "test_bad_rows.py" in raised["error"]
    assert "in called, `raise LookupError(" in raised["error"], "the user's line"
    refused = [row for row in found if row["condition"] == "tables can hold it"]
    assert {row["error"].partition(", and ")[0] for row in refused} == {
        "column 'n' has no value",
        "column 'name' has text that is no UTF-8",
    }
    told = next(s.metrics for s in lab.metadata(pipeline, 2).stages if s.uid == "parsed")
    assert (told.rows_judged, told.rows_refused) == (8, 6), "input row for row"
    assert told.broken == {"amount > 0": 1, "can be processed": 3, "tables can hold it": 2}

    put_lines(feed, message(21, "boom"), message(20))
    lab.succeeds(pipeline)
    lab.succeeds(pipeline, restore_from="chk-2")
    assert numbers(lab.tables / "names") == [10, 11, 20]
    assert Counter(row["condition"] for row in rows_in(quarantine)) == Counter(
        [*POISONED.values(), "LookupError"]
    )


@pytest.mark.nightly
@pytest.mark.spark
def test_rows_bad_in_eight_ways_are_where_they_belong_whatever_is_killed() -> None:
    """The small form of a run that takes an hour."""
    small = ["--rows", "4000", "--bad", "16", "--kills", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.poisoned", *small],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.rstrip().endswith("row for row")


def parsed_at_the_source(
    folder: Path, schema: str = f"{MESSAGE}, _corrupt_record STRING", amount: str = "amount * 2"
) -> CheckpointedPipeline:
    """JSON → orders, which cannot parse all → paid, a keyed table that cannot hold all."""

    @spark_source(on_error="quarantine", expect={"name IS NOT NULL": "fail"})
    def orders(spark):  # type: ignore[no-untyped-def]
        return spark.readStream.schema(schema).json(str(folder)).select("*", "_metadata.file_path")

    @spark_sink(
        to=SqlTable(f"sqlite:///{folder.parent}/there.db", "paid"),
        key=["n"],
        on_error="quarantine",
        expect={"amount > 0": "quarantine"},
    )
    def paid(orders):  # type: ignore[no-untyped-def]
        return orders.selectExpr("n", f"{amount} AS amount")

    @checkpointed_pipeline(name="parsed")
    def pipeline() -> None:
        paid(orders())

    return pipeline  # type: ignore[no-any-return]


@pytest.mark.usefixtures("wherever")
@pytest.mark.nightly
@pytest.mark.parametrize("lab", [{"num_retained": 5}], indirect=True)
def test_sources_and_sinks_keep_what_cannot_be_parsed_or_held(lab: Lab, tmp_path: Path) -> None:
    feed = tmp_path / "feed"
    malformed = '{"n": 1, "name"'

    def amounts() -> list[tuple[int, int]]:
        with closing(sqlite3.connect(tmp_path / "there.db")) as there:
            return there.execute("SELECT n, amount FROM paid ORDER BY n").fetchall()

    put_lines(feed, malformed, '{"n": "two", "name": "ann"}', message(3, amount=-1))
    refused = failure_text(lab.run(parsed_at_the_source(feed, MESSAGE)))
    assert "source 'orders' has on_error='quarantine' and returns no column '_corrupt_record'" in refused
    pipeline = parsed_at_the_source(feed)
    lab.succeeds(pipeline)
    unparsed = rows_in(lab.tables / "quarantine" / "orders")
    assert {row["row"] for row in unparsed} == {malformed, '{"n": "two", "name": "ann"}'}, (
        "the text as it came"
    )
    assert {(row["condition"], row["columns"]) for row in unparsed} == {("can be processed", None)}
    checkpoint = lab.record(pipeline).completed[-1].checkpoint_id
    told = {s.uid: s.metrics.broken for s in lab.metadata(pipeline, checkpoint).stages}
    assert told["orders"] == {"name IS NOT NULL": 0, "tables can hold it": 0, "can be processed": 2}

    assert {row["position"].rpartition("/")[2] for row in unparsed} == {"00000.txt"}

    many = [message(4, amount=2_000_000_000), message(6, amount=1_200_000_000)]
    put_lines(feed, message(None), *many, message(5), malformed)
    lab.succeeds(pipeline)
    quarantine = lab.tables / "quarantine" / "paid_rows"
    of_the_sink = ["ARITHMETIC_OVERFLOW", "ARITHMETIC_OVERFLOW", "amount > 0", "tables can hold it"]
    assert sorted(row["condition"] for row in rows_in(quarantine)) == of_the_sink

    mended = parsed_at_the_source(feed, amount="amount + 500000000")
    overflown = "condition = 'ARITHMETIC_OVERFLOW'"
    ordered = {one.stage: (one.rows, one.others) for one in order_requeue(mended, lab.coordinator, overflown)}
    assert ordered == {"orders": (0, {}), "paid_rows": (2, {})}
    assert [one.others for one in preview_requeue(mended, lab.coordinator, "tries = 1")] == [
        {Stays.UNPARSED: 3},
        {},
    ]
    lab.succeeds(mended)
    tried = [row for row in rows_in(quarantine) if row["tries"] == 2]
    assert {(json.loads(row["row"])["n"], row["state"]) for row in tried} == {
        (4, "quarantined"),
        (6, "requeued"),
    }
    assert "00001.txt" in tried[0]["position"]
    assert amounts() == [(5, 10), (6, 1_700_000_000)]
    metrics = [s.metrics for s in lab.metadata(mended, checkpoint + 2).stages if s.uid == "paid_rows"]
    assert [(one.rows_judged, one.rows_refused, one.rows_requeued) for one in metrics] == [(2, 1, 2)]
    lab.succeeds(pipeline, restore_from=f"chk-{checkpoint}")
    assert sorted(row["condition"] for row in rows_in(quarantine)) == of_the_sink
    assert len(rows_in(lab.tables / "quarantine" / "orders")) == 3
    assert amounts() == [(5, 10)]


def test_a_function_that_fits_no_row_and_a_stage_with_state_are_refused(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poisoned_rows, "MOST_ROWS", 1)
    feed = tmp_path / "feed"
    put_lines(feed, message(2, "boom"), message(3, "boom"), message(4, "boom"))
    refused = failure_text(lab.run(messages(feed)))
    assert "stage 'parsed', batch 0: more than 1 rows cannot be processed" in refused

    @spark_source
    def texts(spark):  # type: ignore[no-untyped-def]
        return spark.readStream.text(str(feed))

    @spark_stage(on_error="quarantine", output_mode="update")
    def counted(texts):  # type: ignore[no-untyped-def]
        return texts.groupBy("value").count()

    @spark_sink(key=["value"])
    def totals(counted):  # type: ignore[no-untyped-def]
        return counted

    @checkpointed_pipeline(name="counts")
    def pipeline() -> None:
        totals(counted(texts()))

    refused = failure_text(lab.run(pipeline))
    assert (
        "stage 'counted' has on_error='quarantine' and Aggregate, where a row is not processed by itself"
        in refused
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"expect": {"a > 0": "skip"}},
            "has 'skip' for the condition 'a > 0': give warn, drop, quarantine or fail",
        ),
        ({"expect": {}}, "give conditions in SQL"),
        ({"expect": "a > 0"}, "give conditions in SQL"),
        ({"expect": {" ": "drop"}}, "give a condition in SQL"),
        ({"expect": {"late": "drop"}}, "as late rows are called: write '(late)'"),
        ({"expect": {f"a > {n}": "drop" for n in range(63)}}, "give at most 61"),
        ({"expect": {"a": "drop"}, "at_most": "many"}, "has at_most='many': give a number of rows"),
        ({"expect": {"a": "drop"}, "at_most": "101 %"}, "has at_most='101 %'"),
        ({"expect": {"a": "drop"}, "beyond": "fail"}, "no at_most"),
        ({"expect": {"a": "drop"}, "at_most": 1, "beyond": "stop"}, "give warn or fail"),
        ({"expect": {"a": "drop"}, "output_mode": "complete"}, "where all rows come with every batch"),
        ({"at_most": 1}, "give conditions in SQL"),
        ({"late": "drop"}, "give count or keep"),
        ({"expect": {"a": "drop"}, "quarantine": "q"}, "nothing that sends a row there"),
        ({"expect": {"a": "drop"}, "quarantine_days": 7}, "nothing that sends a row there"),
        ({"expect": {"a": "quarantine"}, "quarantine": "a/b"}, "has quarantine='a/b': give a name"),
        ({"on_error": "skip"}, "has on_error='skip': give fail or quarantine"),
    ],
)
def test_impossible_conditions_are_refused_where_the_stage_is_defined(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:

        @spark_stage(**settings)
        def clean(orders):  # type: ignore[no-untyped-def]
            return orders

    assert said in str(refused.value)


VALUES = """
SELECT n, 0 AS amount, IF(n = 1, X'00FF80', IF(n = 2, X'', NULL)) AS `bi nary`,
  IF(n = 1, 'a"\\\\\\n\\u00fc\\U0001F600', IF(n = 2, '', NULL)) AS `größe.t`,
  CAST(IF(n = 1, '12345678901234567890.123456789012345678', '-0.000000000000000001') AS DECIMAL(38, 18)) AS exact,
  CAST(repeat('9', 38) AS DECIMAL(38, 0)) AS `ti``ck`,
  IF(n = 1, TIMESTAMP'9999-12-31 20:59:59.999999', IF(n = 2, TIMESTAMP'1890-01-01 00:00:00.000001',
    TIMESTAMP'2026-10-25 02:30:00+02:00')) AS at,
  IF(n = 1, TIMESTAMP_NTZ'9999-12-31 23:59:59.999999', TIMESTAMP_NTZ'2026-03-29 02:30:00') AS local,
  IF(n = 1, DATE'9999-12-31', DATE'1583-01-01') AS day,
  IF(n = 1, float('NaN'), IF(n = 2, float('-Infinity'), float(0.1))) AS f,
  IF(n = 1, double('NaN'), IF(n = 2, -0.0D, 1e-310D)) AS d, IF(n = 3, NULL, n = 1) AS is_it,
  CAST(-128 AS TINYINT) AS tiny, CAST(-32768 AS SMALLINT) AS small, -9223372036854775808L AS least,
  IF(n = 1, array(1, NULL), IF(n = 2, CAST(array() AS ARRAY<INT>), NULL)) AS list,
  IF(n = 1, named_struct('x y', 1, 'z', array('a', NULL)), IF(n = 2,
    named_struct('x y', CAST(NULL AS INT), 'z', CAST(NULL AS ARRAY<STRING>)), NULL)) AS nested,
  IF(n = 1, map('k', 1, 'z', NULL), IF(n = 2, CAST(map() AS MAP<STRING, INT>), NULL)) AS named
FROM VALUES (1), (2), (3) AS t(n)
"""
"""Rows with the extremes of every type, under names of which Delta takes none."""


def of_values(folder: Path, how: dict[str, Any], amount: str) -> CheckpointedPipeline:
    @spark_source
    def read(spark):  # type: ignore[no-untyped-def]
        return spark.readStream.schema(spark.read.parquet(str(folder)).schema).parquet(str(folder))

    @spark_stage(**how)
    def clean(read):  # type: ignore[no-untyped-def]
        return read.withColumn("amount", f.expr(amount))

    @spark_sink
    def values(clean):  # type: ignore[no-untyped-def]
        return clean.toDF(*(f"c{number}" for number in range(len(clean.columns)))).withColumn(
            "c16", f.col("c16").cast("struct<x: INT, z: ARRAY<STRING>>")
        )

    @checkpointed_pipeline(name="values")
    def pipeline() -> None:
        values(clean(read()))

    return pipeline  # type: ignore[no-any-return]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("settings", "amounts"),
    [
        ([{"expect": {f"amount > {least}": "quarantine"}} for least in (0, -1)], ("amount", "amount")),
        (
            [{"on_error": "quarantine"}] * 2,
            ("CAST(1 / amount AS INT)", "CAST(try_divide(1, amount) AS INT)"),
        ),
    ],
)
def test_a_row_comes_back_from_the_quarantine_as_it_was(
    lab: Lab, tmp_path: Path, spark: SparkSession, settings: list[dict[str, Any]], amounts: tuple[str, str]
) -> None:
    """Names with blanks refused the stage; a time before its zone had whole minutes stayed in the quarantine."""
    feed, (was, mended) = tmp_path / "feed", amounts
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        spark.sql(VALUES).coalesce(1).write.parquet(str(feed))
        lab.succeeds(of_values(feed, settings[0], was))
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        again = of_values(feed, settings[1], mended)
        [told] = order_requeue(again, lab.coordinator)
        assert told.rows == 3
        lab.succeeds(again)
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    came = {row["c0"]: row for row in rows_in(lab.tables / "values")}
    for wanted in pq.read_table(feed, coerce_int96_timestamp_unit="us").to_pylist():
        found = [*came[wanted["n"]].values()]
        told = [one.replace(tzinfo=None) if isinstance(one, datetime) else one for one in found]
        assert [repr(one) for one in told[2:16]] == [repr(one) for one in [*wanted.values()][2:16]]
        nested, named = wanted["nested"], wanted["named"]
        assert found[16] == (None if nested is None else {"x": nested["x y"], "z": nested["z"]})
        assert found[17] == named
