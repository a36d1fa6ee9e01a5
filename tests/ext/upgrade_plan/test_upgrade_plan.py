"""A plan of an upgrade: its verdict on each kind of change is that of the run, with nothing of the pipeline at hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner
from pyspark.sql import functions as f

from dagster_ckpt import CheckpointedPipeline, checkpointed_pipeline, spark_sink, spark_source, spark_stage
from dagster_ckpt.cli.app import main
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata, StageSnapshot
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.ext.attach.definitions import attached_pipeline
from dagster_ckpt.ext.upgrade_plan.command import as_markdown
from dagster_ckpt.ext.upgrade_plan.command import plan as plan_command
from dagster_ckpt.ext.upgrade_plan.comparison import StageVerdict, UpgradePlan
from dagster_ckpt.ext.upgrade_plan.plan import plan_upgrade
from dagster_ckpt.operations.snapshots.catalog import find_snapshot
from dagster_ckpt.operations.snapshots.export import ExportedFacts, facts_in, facts_of_found
from dagster_ckpt.spark.plan.functions import UNREADABLE, _written, digest_of, may_mean_another
from tests.lab.lab import Lab, failure_text, lab  # noqa: F401
from tests.spark.epoch.small_pipeline import (
    ORDERS,
    Feed,
    feed,  # noqa: F401
)

Frames = Callable[[Any], Any]


def positive(rows: Any) -> Any:
    return rows.where("amount > 0")


def summed(rows: Any) -> Any:
    return rows.groupBy("customer").agg(f.sum("amount").alias("amount"))


def orders_in(spark: Any, path: str) -> Any:
    return spark.readStream.schema(ORDERS).json(path)


def store(
    folder: Path,
    *,
    keep: Frames = positive,
    count: Frames = summed,
    totals_uid: str = "totals",
    sink: dict[str, Any] | None = None,
    read: Callable[[Any, str], Any] = orders_in,
    more: bool = False,
) -> CheckpointedPipeline:
    """Orders, those that count, and two sinks of them."""

    @spark_source
    def orders(spark: Any) -> Any:
        return read(spark, str(folder / "orders"))

    @spark_stage
    def kept(orders: Any) -> Any:
        return keep(orders)

    @spark_sink
    def lines(kept: Any) -> Any:
        return kept

    @spark_sink(uid=totals_uid, **{"key": ["customer"], "output_mode": "update", **(sink or {})})
    def totals(kept: Any) -> Any:
        return count(kept)

    @spark_sink
    def again(kept: Any) -> Any:
        return kept.select("number")

    @checkpointed_pipeline(name="store")
    def pipeline() -> None:
        rows = kept(orders())
        lines(rows)
        totals(rows)
        if more:
            again(rows)

    return pipeline  # type: ignore[no-any-return]


def facts(lab: Lab) -> ExportedFacts:  # noqa: F811
    deployment = lab.coordinator.model_copy().deployment()
    found = find_snapshot(deployment, "latest", PipelineId("store"))
    written = facts_of_found(deployment, found).model_dump_json(exclude_defaults=True)
    return ExportedFacts.model_validate_json(written)


def of_stage(plan: UpgradePlan, uid: str) -> tuple[StageVerdict, str]:
    return next((stage.verdict, "; ".join(stage.why)) for stage in plan.stages if stage.uid == uid)


def maximum(rows: Any) -> Any:
    return rows.groupBy("customer").agg(f.max("amount").alias("amount"))


def by_number(rows: Any) -> Any:
    return rows.groupBy(f.col("number").cast("string").alias("customer")).agg(f.sum("amount").alias("amount"))


def hashed(rows: Any) -> Any:
    return positive(rows).withColumn("customer", f.crc32(f.col("customer").cast("binary")))


def needs_a_resource(rows: Any) -> Any:
    raise ConnectionError("no route to host")


CHANGES: dict[str, tuple[dict[str, Any], str, StageVerdict, str]] = {
    "nothing": ({}, "totals", StageVerdict.GOES_ON, ""),
    "another filter": (
        {"keep": lambda rows: rows.where("amount > 1")},
        "kept",
        StageVerdict.MEANING,
        "another one",
    ),
    "another aggregate": ({"count": maximum}, "totals", StageVerdict.REFUSED, "agg(sum(amount))"),
    "another group": ({"count": by_number}, "totals", StageVerdict.REFUSED, "groupBy("),
    "another key": ({"sink": {"key": ["amount"]}}, "totals", StageVerdict.REFUSED, "its key were (customer)"),
    "another type of the group": ({"keep": hashed}, "totals", StageVerdict.UNKNOWN, "customer"),
    "another folder": (
        {"read": lambda spark, path: orders_in(spark, path + "_of_today")},
        "kept",
        StageVerdict.UNKNOWN,
        "orders_of_today",
    ),
    "a source more": (
        {"read": lambda spark, path: orders_in(spark, path).union(orders_in(spark, path + "_of_today"))},
        "kept",
        StageVerdict.REFUSED,
        "chain were read by orders",
    ),
    "rows without their key": (
        {"count": lambda rows: summed(rows).select("amount")},
        "totals",
        StageVerdict.REFUSED,
        "no column customer",
    ),
    "another output mode": ({"sink": {"output_mode": "complete"}}, "totals", StageVerdict.GOES_ON, ""),
    "more partitions": (
        {"sink": {"partitions": 5}},
        "totals",
        StageVerdict.REDISTRIBUTED,
        "5 partitions instead of",
    ),
    "renamed": (
        {"totals_uid": "sums", "sink": {"previous_uids": ["totals"], "table": "totals"}},
        "sums",
        StageVerdict.GOES_ON,
        "",
    ),
    "renamed with its table": (
        {"totals_uid": "sums", "sink": {"previous_uids": ["totals"]}},
        "sums",
        StageVerdict.REFUSED,
        "table='totals'",
    ),
    "another uid": ({"totals_uid": "sums"}, "sums", StageVerdict.EMPTY, ""),
    "a stage more": ({"more": True}, "again", StageVerdict.EMPTY, ""),
    "a function that needs the network": (
        {"keep": needs_a_resource},
        "kept",
        StageVerdict.UNKNOWN,
        "no route to host",
    ),
    "behind such a function": ({"keep": needs_a_resource}, "totals", StageVerdict.UNKNOWN, "its input"),
}


RUN_TOO = (
    "rows without their key",
    "another aggregate",
    "another group",
    "another key",
    "another type of the group",
    "another uid",
    "renamed with its table",
    "renamed",
)
"""Changes that are run as well, the only one that goes on at last: what follows would begin with another snapshot."""


def test_every_kind_of_change_has_the_verdict_of_the_run_and_no_source_is_needed(
    lab: Lab,  # noqa: F811
    feed: Feed,  # noqa: F811
    tmp_path: Path,
    spark: Any,
) -> None:
    lab.succeeds(store(feed.folder))
    kept = facts(lab)
    assert len(kept.model_dump_json(exclude_defaults=True)) < 100_000
    hidden = tmp_path / "hidden"
    shutil.move(feed.folder, hidden)
    wrong = []
    for name, (parts, uid, wanted, said) in CHANGES.items():
        scratch = tmp_path / f"plan-{len(name)}-{uid}-{wanted.name}"
        scratch.mkdir()
        found = plan_upgrade(kept, store(feed.folder, **parts), spark, scratch, RestoreOptions())
        verdict, why = of_stage(found, uid)
        if verdict is not wanted or said not in why:
            wrong.append((name, verdict, why))
    assert wrong == []
    shutil.move(hidden, feed.folder)
    for name in RUN_TOO:
        parts, uid, wanted, _ = CHANGES[name]
        scratch = tmp_path / f"again-{uid}-{wanted.name}-{len(name)}"
        scratch.mkdir()
        changed = store(feed.folder, **parts)
        found = plan_upgrade(kept, changed, spark, scratch, RestoreOptions())
        refused = found.verdict in (StageVerdict.REFUSED, StageVerdict.UNKNOWN)
        result = lab.run(changed)
        assert result.success is not refused, (name, failure_text(result))
        if refused:
            told = [*found.refusals, *(why for stage in found.stages for why in stage.why)]
            if uid != "sums" and wanted is StageVerdict.REFUSED and name != "another key":
                assert any(why in failure_text(result) for why in told), (name, told, failure_text(result))


def test_a_source_that_is_out_of_reach_is_stood_in_for_by_its_schema_in_the_snapshot(
    lab: Lab,  # noqa: F811
    feed: Feed,  # noqa: F811
    tmp_path: Path,
    spark: Any,
) -> None:
    def inferred(spark: Any, path: str) -> Any:
        spark.conf.set("spark.sql.streaming.schemaInference", "true")
        return spark.readStream.format("json").load(path)

    lab.succeeds(store(feed.folder, read=inferred))
    kept = facts(lab)
    shutil.rmtree(feed.folder)
    scratch = tmp_path / "plan"
    scratch.mkdir()
    found = plan_upgrade(kept, store(feed.folder, read=inferred), spark, scratch, RestoreOptions())
    assert {stage.verdict for stage in found.stages} == {StageVerdict.GOES_ON}, found
    unknown = kept.model_copy(update={"stages": {}})
    (tmp_path / "unknown").mkdir()
    found = plan_upgrade(
        unknown, store(feed.folder, read=inferred), spark, tmp_path / "unknown", RestoreOptions()
    )
    assert of_stage(found, "kept")[0] is StageVerdict.UNKNOWN
    assert "give its reader a schema" in of_stage(found, "kept")[1]


LOCATION = """
from pathlib import Path
from dagster_ckpt import CheckpointCoordinatorResource, SparkSessionResource, build_pipeline_definitions
from tests.ext.upgrade_plan.test_upgrade_plan import maximum, store, summed

pipeline = store(Path({orders!r}), count={count})
defs = build_pipeline_definitions(
    pipeline,
    coordinator=CheckpointCoordinatorResource(base_dir={base!r}),
    spark=SparkSessionResource(master="local[2,3]"),
)
"""


def test_the_command_compares_code_with_a_facts_file_and_its_exit_code_says_whether_it_goes_on(
    lab: Lab,  # noqa: F811
    feed: Feed,  # noqa: F811
    tmp_path: Path,
) -> None:
    lab.succeeds(store(feed.folder))
    file = tmp_path / "facts.json"
    written = CliRunner().invoke(main, ["export", "latest", str(file), "--facts", "--base", str(lab.folder)])
    assert written.exit_code == 0, written.output
    shutil.rmtree(feed.folder)
    for name, count, code in (("same_code", "summed", 0), ("other_code", "maximum", 1)):
        location = tmp_path / f"{name}.py"
        location.write_text(LOCATION.format(orders=str(feed.folder), base=str(lab.folder), count=count))
        said = CliRunner().invoke(plan_command, ["--against", str(file), "-f", str(location), "--markdown"])
        assert said.exit_code == code, said.output
        assert "| totals | refused |" in said.output or code == 0
        assert "cannot go on" in said.output or code == 0


def test_of_a_program_that_starts_its_own_queries_nothing_can_be_told_but_who_tells(tmp_path: Path) -> None:
    query = StageSnapshot(uid="figures", parallelism=1)
    known = CheckpointMetadata(
        pipeline="jobs",
        checkpoint_id=1,
        kind=CheckpointKind.CHECKPOINT,
        epoch=1,
        triggered_at=1,
        completed_at=1,
        stages=(query,),
    )
    given = ExportedFacts(snapshot="chk-1", uri="/x/chk-1", metadata=known)
    program = attached_pipeline(Path(__file__), name="jobs", base_dir=str(tmp_path))
    found = plan_upgrade(given, program, cast("Any", None), tmp_path, RestoreOptions())
    assert found.verdict is StageVerdict.UNKNOWN
    assert "dagster-ckpt adopt FILE.py -p jobs" in of_stage(found, "figures")[1]


def test_a_facts_file_holds_no_state_of_hooks_and_another_file_is_corrupt(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    file.write_text(json.dumps({"snapshot": "chk-1", "uri": "/x/chk-1"}))
    with pytest.raises(Corrupt, match="write it again with"):
        facts_in(file)


def test_text_of_a_snapshot_is_no_markup_in_a_comment() -> None:
    plan = UpgradePlan(
        pipeline="p",
        snapshot="checkpoint 1",
        refusals=("<img src=x> [a](b) | @everyone",),
        stages=(),
        sources=(),
        sinks=(),
    )
    assert r"\<img src=x\> \[a\](b) \|" in as_markdown(plan)
    assert "@everyone" not in as_markdown(plan)


def outer(limit: int) -> Callable[[int], bool]:
    def inner(value: int) -> bool:
        """Say whether it is above."""
        return value > limit

    return inner


class Doubled:
    factor = 2

    def of(self, rows: Any) -> Any:
        return rows * self.factor


class Tripled:
    factor = 3

    def of(self, rows: Any) -> Any:
        return rows * self.factor


class Shy:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("not now")


def in_file(module: str, factor: str = "1", default: str = "n=1") -> Callable[..., Any]:
    """Return a function as it is found in a file of that name, with a helper of the same file."""
    names: dict[str, Any] = {"__name__": module}
    first = "def first(x, n=3): return x * n"
    helper = f"def helper(x, {default}): return x * {factor}"
    exec(f"{first}\n{helper}\ndef stage(x): return helper(first(x))", names)  # what a file is
    function: Callable[..., Any] = names["stage"]
    return function


def test_a_digest_is_of_code_and_what_it_closes_over_and_the_same_in_every_process() -> None:
    def undocumented(limit: int) -> Callable[[int], bool]:
        def inner(value: int) -> bool:
            return value > limit

        return inner

    with_text, without = outer(1).__code__, undocumented(1).__code__
    assert list(_written(with_text, outer(1).__doc__)) == list(_written(without)), (
        "a docstring is no other code"
    )
    assert digest_of(outer(1)) == digest_of(outer(1))
    assert digest_of(outer(1)) != digest_of(outer(2))
    assert digest_of(in_file("shop")) == digest_of(in_file("moved")) != digest_of(in_file("shop", "2"))
    assert digest_of(summed) != digest_of(maximum)
    assert digest_of(f.udf(lambda x: x + 1)) != digest_of(f.udf(lambda x: x + 2))
    assert digest_of(undocumented(1)) == digest_of(undocumented(1))
    assert digest_of(lambda rows: Doubled().of(rows)) != digest_of(lambda rows: Tripled().of(rows))
    assert digest_of(in_file("shop", "n", "n=1")) != digest_of(in_file("shop", "n", "n=2"))
    low, high = partial(outer, limit=1), partial(outer, limit=2)
    assert digest_of(lambda rows: rows.where(low)) != digest_of(lambda rows: rows.where(high))
    assert may_mean_another({"a": digest_of(summed)}, {"a": digest_of(summed)}) == []
    shy = Shy()
    assert digest_of(lambda: shy) == UNREADABLE
    assert may_mean_another({"a": UNREADABLE}, {"a": UNREADABLE}) == ["a"]
