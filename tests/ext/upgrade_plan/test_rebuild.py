"""A stage rebuilt beside its pipeline: rows of a run from scratch, the others' state, and one of two at any kill."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake
from pyspark.sql import functions as f

from dagster_ckpt import CheckpointedPipeline, checkpointed_pipeline, spark_sink, spark_source, spark_stage
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.errors import CheckpointError, InvalidRequest
from dagster_ckpt.ext.upgrade_plan.command import plan as plan_command
from dagster_ckpt.ext.upgrade_plan.rebuild import Rebuilding
from dagster_ckpt.ext.upgrade_plan.upgrade import upgrade as upgrade_command
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.sinks import DeltaTable, ForEachCheckpoint
from dagster_ckpt.spark.attempt.sinks_at_start import SinksAtStart
from dagster_ckpt.spark.epoch.attempt import EpochAttempt
from tests.lab.lab import Lab, failure_text, lab  # noqa: F401
from tests.root import ROOT
from tests.spark.epoch.small_pipeline import (
    ORDERS,
    Feed,
    feed,  # noqa: F401
)
from tests.tables import rows_in


def summed(rows: Any) -> Any:
    return rows.groupBy("customer").agg(f.sum("amount").alias("amount"))


def largest(rows: Any) -> Any:
    return rows.groupBy("customer").agg(f.max("amount").cast("long").alias("amount"))


def shop(folder: Path, count: Callable[[Any], Any] = summed, *, name: str = "shop") -> CheckpointedPipeline:
    """Orders, read twice: every line, and a figure of each customer."""

    def read(spark: Any) -> Any:
        return spark.readStream.schema(ORDERS).option("maxFilesPerTrigger", 1).json(str(folder / "orders"))

    @spark_source
    def orders(spark: Any) -> Any:
        return read(spark)

    @spark_source
    def counted(spark: Any) -> Any:
        return read(spark)

    @spark_sink(key=["customer"], output_mode="update")
    def totals(counted: Any) -> Any:
        return count(counted)

    @spark_sink(key=["customer"], output_mode="update")
    def numbers(orders: Any) -> Any:
        return orders.groupBy("customer").count()

    @checkpointed_pipeline(name=name)
    def pipeline() -> None:
        totals(counted())
        numbers(orders())

    return pipeline  # type: ignore[no-any-return]


def rows(lab: Lab, table: str) -> list[tuple[Any, ...]]:  # noqa: F811
    return sorted(tuple(row.values()) for row in rows_in(lab.tables / table))


def truth(feed: Feed, of: Callable[[list[int]], int]) -> list[tuple[Any, ...]]:  # noqa: F811
    names = {order["customer"] for order in feed.orders}
    amounts = {name: [one["amount"] for one in feed.orders if one["customer"] == name] for name in names}
    return sorted((name, of(values)) for name, values in amounts.items())


def truth_without(feed: Feed, last: int, of: Callable[[list[int]], int]) -> list[tuple[Any, ...]]:  # noqa: F811
    """The same before the newest orders were read."""
    return truth(replace(feed, orders=feed.orders[:-last]), of)


@pytest.fixture
def begun(lab: Lab, feed: Feed) -> Lab:  # noqa: F811
    """A shop that has run three epochs."""
    for amount in (3, 9, 4):
        feed.order(("ann", amount), ("bob", amount + 1))
        lab.succeeds(shop(feed.folder))
    return lab


def rebuilding(lab: Lab, pipeline: CheckpointedPipeline, spark: Any, **more: Any) -> Rebuilding:  # noqa: F811
    return Rebuilding.of(pipeline, "totals", coordinator=lab.coordinator, spark=spark, **more)


def test_a_rebuilt_stage_has_the_rows_of_a_run_from_scratch_and_the_others_go_on(
    begun: Lab,
    feed: Feed,  # noqa: F811
    spark: Any,
) -> None:
    begun.fails(shop(feed.folder, largest))
    before = begun.metadata(shop(feed.folder), begun.record(shop(feed.folder)).completed[-1].checkpoint_id)

    def meanwhile(step: str) -> None:
        if step.startswith("epoch"):
            feed.order(("ann", 20), ("cid", 1))
            begun.succeeds(shop(feed.folder))
            assert rows(begun, "totals") == truth(feed, sum)
        elif step.startswith("staging"):
            feed.order(("bob", 30))
            assert rows(begun, "totals") == truth_then[0]
        else:
            truth_then[:] = [truth(feed, sum)]

    truth_then: list[Any] = []
    rebuilding(begun, shop(feed.folder, largest), spark, step=meanwhile).carry_out()
    assert rows(begun, "totals") == truth(feed, max)
    assert rows(begun, "numbers") == truth(feed, len)
    assert sorted(path.name for path in begun.tables.iterdir()) == ["numbers", "totals"]
    now = begun.metadata(shop(feed.folder), begun.record(shop(feed.folder)).completed[-1].checkpoint_id)
    assert now.stage("numbers").query_id == before.stage("numbers").query_id  # type: ignore[union-attr]
    feed.order(("ann", 50), ("dan", 2))
    begun.succeeds(shop(feed.folder, largest))
    assert rows(begun, "totals") == truth(feed, max)
    assert rows(begun, "numbers") == truth(feed, len)


class Killed(BaseException):
    """The end of a process."""


def ended(name: str) -> None:
    raise Killed(name)


@dataclass
class Steps:
    """Steps that were told; one of them may be the last."""

    last: str = "none"
    told: list[str] = field(default_factory=list)
    end: Callable[[str], None] = ended

    def __call__(self, name: str) -> None:
        self.told.append(name)
        if name.startswith(self.last):
            self.end(name)

    def kill_in(self, patch: pytest.MonkeyPatch, point: Any) -> None:
        """End the process at a step, or in a method once the pipeline's own epoch begins."""
        if isinstance(point, str):
            self.last = point
            return
        where, name, after = point
        method = getattr(where, name)

        def called(one: Any, *given: Any, **named: Any) -> Any:
            is_own = "beginning with it" in self.told
            result = method(one, *given, **named) if after or not is_own else None
            if is_own:
                self.end(name)
            return result

        patch.setattr(where, name, called)


INSIDE: tuple[tuple[Any, str, bool], ...] = (
    (CheckpointCoordinator, "tables_change", False),
    (SinksAtStart, "_bring", True),
    (CheckpointCoordinator, "started", False),
    (CheckpointCoordinator, "started", True),
    (EpochAttempt, "run_all", True),
    (EpochAttempt, "complete", True),
)
"""Moments of the pipeline's own epoch: a method, and whether it is killed behind it."""
STEPS = ("epoch 2", "waiting", "staging", "copying", "completing", "beginning", "removing")


def goes_on(lab: Lab, feed: Feed, old: Any, new: Any) -> Callable[[list[int]], int]:  # noqa: F811
    """Run the pipeline with the code that goes on; return what its rows are then. Just one of the two does."""
    feed.order(("ann", 7), ("eve", 5))
    ends = {code: lab.run(shop(feed.folder, code)) for code in (new, old)}
    [code] = [code for code, result in ends.items() if result.success]
    assert rows(lab, "totals") == truth(feed, OF[code])
    assert rows(lab, "numbers") == truth(feed, len)
    return OF[code]


OF: dict[Any, Callable[[list[int]], int]] = {summed: sum, largest: max}


POINTS: tuple[Any, ...] = (*STEPS, *INSIDE)


def kill_here(lab: Lab, feed: Feed, new: Any, number: int) -> None:  # noqa: F811
    """End a rebuilding at a point, by an exception that nothing catches."""
    from pyspark.sql import SparkSession

    steps, session = Steps(), SparkSession.getActiveSession()
    with pytest.MonkeyPatch.context() as patch:
        steps.kill_in(patch, POINTS[number])
        with pytest.raises(Killed):
            rebuilding(lab, shop(feed.folder, new), session, step=steps).carry_out()


def kill_process(lab: Lab, feed: Feed, new: Any, number: int) -> None:  # noqa: F811
    """Kill a process, with its JVM, in which a stage is rebuilt."""
    command = [sys.executable, "-m", "tests.ext.upgrade_plan.rebuild_child"]
    told = [str(lab.folder), str(feed.folder), new.__name__, str(number)]
    child = subprocess.run(
        [*command, *told], check=False, cwd=ROOT, start_new_session=True, capture_output=True
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()[-3000:]


@pytest.mark.parametrize("kill", [kill_here, kill_process])
@pytest.mark.parametrize(
    "numbers", [range(len(STEPS)), range(len(STEPS), len(POINTS))], ids=["steps", "inside"]
)
def test_at_any_kill_one_of_the_two_serves_and_the_next_try_ends_well(
    begun: Lab,
    feed: Feed,  # noqa: F811
    spark: Any,
    numbers: Sequence[int],
    kill: Callable[[Lab, Feed, Any, int], None],
) -> None:
    old, new = summed, largest
    for number in numbers:
        feed.order(("ann", 60 + len(feed.orders)), ("bob", 1))
        kill(begun, feed, new, number)
        assert rows(begun, "totals") in (truth_without(feed, 2, OF[old]), truth(feed, OF[new])), number
        serves = goes_on(begun, feed, old, new)
        if kill is kill_here:
            assert (serves is OF[new]) is (POINTS[number] not in (*STEPS[:-1], INSIDE[0])), number
        if serves is not OF[new] or POINTS[number] == "removing":
            rebuilding(begun, shop(feed.folder, new), spark).carry_out()
        assert rows(begun, "totals") == truth(feed, OF[new]), number
        assert rows(begun, "numbers") == truth(feed, len), number
        old, new = new, old


LOCATION = """
from pathlib import Path
from dagster_ckpt import CheckpointCoordinatorResource, SparkSessionResource, build_pipeline_definitions
from tests.ext.upgrade_plan.test_rebuild import largest, shop

pipeline = shop(Path({folder!r}), largest)
defs = build_pipeline_definitions(
    pipeline,
    coordinator=CheckpointCoordinatorResource(base_dir={base!r}, table_dir={tables!r}),
    spark=SparkSessionResource(master="local[2,3]"),
)
"""


def test_the_plan_offers_the_command_that_rebuilds(begun: Lab, feed: Feed, tmp_path: Path) -> None:  # noqa: F811
    location = tmp_path / "changed_shop.py"
    location.write_text(
        LOCATION.format(folder=str(feed.folder), base=str(begun.folder), tables=str(begun.tables))
    )
    of = ["-f", str(location), "--base", str(begun.folder)]
    said = CliRunner().invoke(plan_command, of)
    assert said.exit_code == 1, said.output
    assert "dagster-ckpt upgrade shop --rebuild totals" in " ".join(said.output.split())
    done = CliRunner().invoke(upgrade_command, ["shop", "--rebuild", "totals", *of, "--json"])
    assert done.exit_code == 0, done.output
    assert rows(begun, "totals") == truth(feed, max)
    said = CliRunner().invoke(plan_command, of)
    assert said.exit_code == 0, said.output


TABLES = ("totals", "numbers")


def appended(folder: Path, factor: int, *, shared: bool = False) -> CheckpointedPipeline:
    """Orders in a table to which rows are added, in days' folders; ``shared``: as another sink reads them."""

    @spark_source
    def orders(spark: Any) -> Any:
        return spark.readStream.schema(ORDERS).json(str(folder / "orders"))

    @spark_sink(to=DeltaTable("totals", partition_by=["customer"]))
    def totals(orders: Any) -> Any:
        return orders.withColumn("amount", f.col("amount") * factor)

    @spark_sink
    def numbers(orders: Any) -> Any:
        return orders.select("number")

    @checkpointed_pipeline(name="shop")
    def pipeline() -> None:
        read = orders()
        totals(read if shared else orders.with_uid("counted")())
        numbers(read)

    return pipeline  # type: ignore[no-any-return]


def in_stages(folder: Path, factor: int) -> CheckpointedPipeline:
    """A branch of two queries with state: sums of customers, and how many there are of each sum, shown whole."""

    @spark_source
    def orders(spark: Any) -> Any:
        return spark.readStream.schema(ORDERS).json(str(folder / "orders"))

    @spark_stage
    def once(orders: Any) -> Any:
        return orders.withColumn("amount", f.col("amount") * factor).dropDuplicates(["number"])

    @spark_sink(key=["customer"], output_mode="complete")
    def totals(once: Any) -> Any:
        return once.groupBy("customer").agg(f.sum("amount").alias("amount"))

    @spark_sink
    def numbers(orders: Any) -> Any:
        return orders.select("number")

    @checkpointed_pipeline(name="shop")
    def pipeline() -> None:
        totals(once(orders()))
        numbers(orders.with_uid("again")())

    return pipeline  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["appended", "shared", "stages"])
def test_a_branch_of_any_kind_is_that_of_a_run_from_scratch(
    lab: Lab,  # noqa: F811
    feed: Feed,  # noqa: F811
    spark: Any,
    kind: str,
) -> None:
    old, new = {
        "appended": (appended(feed.folder, 1), appended(feed.folder, 2)),
        "shared": (appended(feed.folder, 1, shared=True), appended(feed.folder, 2)),
        "stages": (in_stages(feed.folder, 1), in_stages(feed.folder, 2)),
    }[kind]
    for amount in (3, 9):
        lab.succeeds(old)
        feed.order(("ann", amount), ("bob", amount + 1))
    lab.succeeds(old)
    if kind == "shared":
        with pytest.raises(InvalidRequest, match="give 'totals' a source of its own"):
            rebuilding(lab, appended(feed.folder, 2, shared=True), spark)
    rebuilding(lab, new, spark).carry_out()
    for extra in (0, 20):
        if extra:
            feed.order(("ann", extra))
            lab.succeeds(new)
        found = rows_in(lab.tables / "totals")
        if kind == "stages":
            assert rows(lab, "totals") == [(name, 2 * value) for name, value in truth(feed, sum)]
        else:
            lines = [{**order, "amount": 2 * order["amount"]} for order in feed.orders]
            assert sorted(found, key=lambda row: row["number"]) == lines
        assert rows(lab, "numbers") == [(order["number"],) for order in feed.orders]


def test_each_snapshot_around_a_take_over_is_restored_and_forked_with_its_own_code(
    begun: Lab,
    feed: Feed,  # noqa: F811
    spark: Any,
    tmp_path: Path,
) -> None:
    begun.settings["num_retained"] = 30
    code_of: dict[str, Any] = {}
    for code in (summed, largest):
        if code is largest:
            rebuilding(begun, shop(feed.folder, code), spark).carry_out()
        feed.order(("ann", 11), ("eve", 2))
        begun.succeeds(shop(feed.folder, code))
        for one in begun.record(shop(feed.folder)).completed:
            code_of.setdefault(f"{one.location.base_uri}/{one.location.folder}", code)
    assert [*code_of.values()].count(largest) == 3, (
        "what was put together, the epoch that began with it, and the next"
    )
    for number, (uri, code) in enumerate(code_of.items()):
        begun.succeeds(shop(feed.folder, code), restore_from=uri)
        tables = tmp_path / f"forks{number}"
        fork = shop(feed.folder, code).fork(f"fork{number}", table_dir=str(tables))
        begun.succeeds(fork, restore_from=uri, fork=True)
        for folder in (begun.tables, tables):
            found = {name: sorted(tuple(row.values()) for row in rows_in(folder / name)) for name in TABLES}
            assert found == {"totals": truth(feed, OF[code]), "numbers": truth(feed, len)}, uri


def test_what_cannot_be_rebuilt_alone_is_refused_in_a_sentence(begun: Lab, feed: Feed, spark: Any) -> None:  # noqa: F811
    pipeline = shop(feed.folder, largest)
    before = rows(begun, "totals")

    def changed(uid: str, **of_stage: Any) -> CheckpointedPipeline:
        stage = replace(pipeline.stages[StageUid(uid)], **of_stage)
        return replace(pipeline, stages={**pipeline.stages, StageUid(uid): stage})

    def rate(spark: Any) -> Any:
        return spark.readStream.format("rate").load().selectExpr("'ann' AS customer", "value AS amount")

    def typed(rows: Any) -> Any:
        return rows.groupBy("customer").agg(f.max("amount").cast("string").alias("amount"))

    cases: list[tuple[CheckpointedPipeline, str, str]] = [
        (pipeline, "nobody", "has no stage 'nobody'"),
        (pipeline, "counted", "has readers"),
        (changed("counted", fn=rate), "totals", "which keeps no rows"),
        (changed("totals", to=ForEachCheckpoint(print)), "totals", "cannot be exchanged"),
        (shop(feed.folder, typed), "totals", "cannot change a type"),
        (shop(feed.folder, name="another"), "totals", "knows no pipeline 'another'"),
        (replace(pipeline, program=("python", "job.py")), "totals", "starts its queries itself"),
    ]
    for given, uid, why in cases:
        with pytest.raises(CheckpointError, match=why):
            Rebuilding.of(given, uid, coordinator=begun.coordinator, spark=spark).carry_out()
    assert sorted(path.name for path in begun.tables.iterdir()) == ["numbers", "totals"]
    assert rows(begun, "totals") == before
    begun.succeeds(shop(feed.folder))
    theirs = pa.table({"customer": ["eve"], "amount": pa.array([1], pa.int64())})
    write_deltalake(str(begun.tables / "totals"), theirs, mode="append")
    with pytest.raises(
        InvalidRequest, match=r"WRITE.* is not of this sink, and its rows would leave as well"
    ):
        rebuilding(begun, pipeline, spark)
    assert ("eve", 1) in rows(begun, "totals")
