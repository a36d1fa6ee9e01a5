"""One source, several tables: the sinks take the batches of the query whose rows they read."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt import CheckpointedPipeline
from dagster_ckpt.spark.attempt.fan_out import SinkBranch
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.streaming.loop import BarrierLoop
from dagster_ckpt.spark.streaming.progress import look
from dagster_ckpt.spark.streaming.restart import NoRestart
from dagster_ckpt.spark.streaming.run import EndOfData
from dagster_ckpt.spark.streaming.service import GaveUp
from tests.lab.lab import Lab
from tests.lab.pipelines import sink, source, stage, wired
from tests.lab.streams import Running, until
from tests.spark.streaming.pipelines import KEYS, Numbers, read_numbers
from tests.sweeps import third
from tests.tables import rows_in

at_night = pytest.mark.nightly


def shop(
    folder: Path,
    *,
    orders: Callable[[Any], Any] = lambda numbers: numbers.selectExpr("n", "key", "n * 2 AS twice"),
    rows: Callable[[Any], Any] = lambda orders: orders,
    chain: bool = True,
    conf: Mapping[str, str] | None = None,
    ends: bool = False,
    **checkpointing: Any,
) -> CheckpointedPipeline:
    """One source, a stage without state, three tables; ``chain``: of the first one, False gives it a query.

    ``ends``: the source has an end, and a table of its own, so that the stage reads a channel.
    """
    boundedness = "bounded" if ends else "unbounded"
    return wired(
        "shop",
        source("numbers", lambda spark: read_numbers(spark, folder), boundedness=boundedness),
        *([sink("raw", lambda numbers: numbers.select("n"))] if ends else []),
        replace(stage("orders", lambda numbers: orders(numbers)), conf=conf or {}),
        sink("rows", lambda orders: rows(orders), chain=chain),
        sink("even", lambda orders: orders.where("n % 2 = 0").select("n")),
        sink("newest", lambda orders: orders.select("key", "n"), key=["key"]),
        checkpointing={"operator_chaining": True, **checkpointing},
    )


def totals(lab: Lab) -> tuple[list[int], list[int], dict[str, int]]:
    """Return what is in the three tables, each in order."""
    rows, even = (sorted(row["n"] for row in rows_in(lab.tables / name)) for name in ("rows", "even"))
    return rows, even, {row["key"]: row["n"] for row in rows_in(lab.tables / "newest")}


def expected(count: int) -> tuple[list[int], list[int], dict[str, int]]:
    numbers = range(count)
    return [*numbers], [n for n in numbers if n % 2 == 0], {f"k{n % KEYS}": n for n in numbers}


def shows_all(running: Running, lab: Lab, numbers: Numbers) -> None:
    """Take checkpoints until the tables show everything, and never a row twice or one without its kin."""
    wanted = expected(numbers.count)

    def holds() -> bool:
        running.checkpoint()
        found = totals(lab)
        count = len(found[0])
        assert found == expected(count), "tables of different batches, or a row twice"
        return found == wanted

    until(holds, running)


def test_sinks_take_the_batches_of_the_query_they_read(lab: Lab, tmp_path: Path) -> None:
    numbers = Numbers(tmp_path / "numbers")
    running = lab.start(shop(numbers.folder))
    for _ in range(3):
        numbers.put(4)
    shows_all(running, lab, numbers)
    stages = running.current.stages
    assert not list((lab.folder / "work").rglob("log/data/*/*.parquet")), "rows were written to a channel"
    assert [uid for uid, stage in stages.items() if stage.query is not None] == ["orders"]
    running.stop()


@pytest.mark.parametrize("settings", [{}, pytest.param({"instant_cuts": False}, marks=at_night)], ids=str)
def test_a_stream_whose_data_ends_comes_to_its_end(
    lab: Lab, tmp_path: Path, settings: dict[str, Any]
) -> None:
    numbers = Numbers(tmp_path / "numbers")
    for _ in range(3):
        numbers.put(4)
    running = lab.launch(shop(numbers.folder, ends=True, **settings))
    assert isinstance(running.join(), EndOfData)
    assert totals(lab) == expected(12)
    assert not list((lab.folder / "work").rglob("orders/log/data/*/*.parquet")), "rows went by a channel"


class Killed(Exception):
    """The process dies here."""


class Point:
    """A place in the code at which the run dies once it was reached so often."""

    def __init__(self, of: type, name: str, *, after: bool = False, times: int = 1) -> None:
        self.of, self.name, self.after, self.times = of, name, after, times

    def arm(self, patch: pytest.MonkeyPatch) -> None:
        call, left = getattr(self.of, self.name), [self.times]

        def dying(made: Any, *args: Any, **options: Any) -> Any:
            if left[0] <= 0:
                raise Killed
            left[0] -= self.of is not ChannelLog or made.directory.parent.name == "orders"
            if left[0] == 0 and not self.after:
                left[0] = -1
                raise Killed
            done = call(made, *args, **options)
            if left[0] == 0:
                left[0] = -1
                raise Killed
            return done

        patch.setattr(self.of, self.name, dying)


POINTS = {
    "before a row is staged": Point(SinkBranch, "stage"),
    "with one table of three staged": Point(SinkBranch, "stage", times=2),
    "with all staged, nothing taken": Point(ChannelLog, "append_data"),
    "with nothing committed but the query's entry": Point(ChannelLog, "append_data", after=True),
    "with one sink of three committed": Point(SinkBranch, "commit", after=True),
    "with two sinks of three committed": Point(SinkBranch, "commit", after=True, times=2),
}


WAYS_ON: dict[str, dict[str, Any]] = {
    "as it was": {},
    "one sink with a query of its own": {"chain": False},
    "without chains": {"operator_chaining": False},
}


BY_DAY = (
    ("with one sink of three committed", "as it was"),
    ("with all staged, nothing taken", "without chains"),
)


@pytest.mark.parametrize(
    ("point", "way"),
    [
        pytest.param(*one, marks=() if one in BY_DAY else at_night)
        for one in itertools.product(POINTS, WAYS_ON)
    ],
)
def test_a_run_that_dies_anywhere_in_a_batch_goes_on_exactly(
    lab: Lab, tmp_path: Path, point: str, way: str
) -> None:
    numbers = Numbers(tmp_path / "numbers")
    running = lab.start(shop(numbers.folder), strategy=NoRestart())
    numbers.put(4)
    shows_all(running, lab, numbers)
    with pytest.MonkeyPatch.context() as patch:
        POINTS[point].arm(patch)
        numbers.put(5)
        running.join()
    numbers.put(3)
    running = lab.start(shop(numbers.folder, **WAYS_ON[way]))
    numbers.put(2)
    shows_all(running, lab, numbers)
    running.stop()


def test_no_batch_is_committed_while_a_barrier_is_on_its_way(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = Numbers(tmp_path / "numbers")
    running = lab.start(shop(numbers.folder, instant_cuts=False))
    numbers.put(4)
    shows_all(running, lab, numbers)
    staged: list[int] = []
    stage, take = SinkBranch.stage, BarrierLoop._take_messages

    def staging(branch: SinkBranch, rows: Any) -> None:
        stage(branch, rows)
        staged.append(1)

    def taking(loop: BarrierLoop, *given: Any) -> bool:
        took = take(loop, *given)
        if loop._walking and not staged:
            numbers.put(5)
            until(lambda: len(staged) >= 3, running)
            time.sleep(0.3)  # the batch would be committed by now
        return took

    monkeypatch.setattr(SinkBranch, "stage", staging)
    monkeypatch.setattr(BarrierLoop, "_take_messages", taking)
    running.checkpoint()
    assert not running.failed(), "the tables' cuts were behind another batch than the query's"
    running.crash()
    running.join()
    running = lab.start(shop(numbers.folder))
    shows_all(running, lab, numbers)
    running.stop()


def among_all(orders: Any) -> Any:
    return orders.join(orders.sparkSession.range(10_000).withColumnRenamed("id", "n"), "n", "left_semi")


CHANGES: dict[str, tuple[dict[str, Any], bool]] = {
    "barriers": ({"instant_cuts": False}, True),
    "one has chain=False": ({"chain": False}, False),
    "back again": ({}, True),
    "unaligned": ({"unaligned": True}, True),
    "reads a table, too": ({"rows": among_all}, False),
    "at least once": ({"mode": "at_least_once"}, True),
    "asks for the moment": (
        {"rows": lambda orders: orders.where("current_timestamp() > '2020-01-01'")},
        False,
    ),
    "has other settings": ({"conf": {"spark.sql.session.timeZone": "Asia/Tokyo"}}, False),
    "by chance": ({"rows": lambda orders: orders.where("rand() < 2")}, False),
    "other rows of the same": (
        {"rows": lambda orders: orders.where("n >= 0").select("n", "key", "twice")},
        True,
    ),
}
"""What the next run changes, and whether the sinks take the batches then."""


@pytest.mark.parametrize(
    "ends", ["stopped", pytest.param("savepoint", marks=at_night), pytest.param("crashed", marks=at_night)]
)
def test_runs_that_take_batches_and_runs_that_read_the_channel_go_on_from_one_another(
    lab: Lab, tmp_path: Path, ends: str
) -> None:
    numbers = Numbers(tmp_path / "numbers")
    for name in third([*CHANGES], ["stopped", "savepoint", "crashed"].index(ends)):
        changed, takes = CHANGES[name]
        running = lab.start(shop(numbers.folder, **changed))
        numbers.put(3)
        numbers.put(1)
        shows_all(running, lab, numbers)
        with_query = [uid for uid, stage in running.current.stages.items() if stage.query is not None]
        assert with_query == (["orders"] if takes else ["orders", "rows", "even", "newest"]), name
        if takes:
            rows = {str(one.uid): one.rows for one in look(running.current, seconds=1.0).stages}
            assert rows["rows"] == rows["newest"] >= 4, "the page tells other rows than the tables got"
        if takes:  # else they could wait in the channel, and its readers read on
            numbers.put(2)
        match ends:
            case "stopped":
                running.stop()
            case "savepoint":
                running.stop_with_savepoint()
            case _:
                running.crash()
                running.join()


@pytest.mark.parametrize("where", ["orders", pytest.param("rows", marks=at_night)])
def test_what_fails_is_told_of_the_stage_that_fails(lab: Lab, tmp_path: Path, where: str) -> None:
    numbers = Numbers(tmp_path / "numbers")
    failing: dict[str, Any] = {
        where: lambda rows: rows.selectExpr("n", "key", "CAST(raise_error('no') AS INT) AS twice")
    }
    running = lab.start(shop(numbers.folder, **failing), strategy=NoRestart())
    numbers.put(3)
    end = running.join()
    assert isinstance(end, GaveUp)
    assert end.last.uid == where
    running = lab.start(shop(numbers.folder))
    shows_all(running, lab, numbers)
    running.stop()
