"""What bad input gets: one clear error, nothing lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt import (
    CheckpointedPipeline,
    InvalidRequest,
    checkpointed_pipeline,
    checkpoints_asset_key,
    spark_sink,
    spark_source,
)
from dagster_ckpt.authoring.pipeline import CheckpointedPipeline as Pipeline
from dagster_ckpt.sinks import DeltaTable, IcebergTable, SinkTarget
from dagster_ckpt.spark.attempt.query_state import is_read_as_itself
from tests.lab.lab import Lab, failure_text
from tests.lab.pipelines import reads, sink, wired
from tests.spark.epoch.small_pipeline import ORDERS, Feed, read_lines, shop

pytestmark = pytest.mark.usefixtures("nothing_inlined")


@pytest.fixture
def ran(lab: Lab, small_feed: Feed) -> tuple[Lab, Feed, CheckpointedPipeline]:
    """A pipeline that has completed chk-1 and has something new to read."""
    pipeline = shop(small_feed.folder)
    lab.succeeds(pipeline)
    small_feed.order(("ann", 6))
    return lab, small_feed, pipeline


def refused(lab: Lab, pipeline: CheckpointedPipeline, *said: str, **restore: Any) -> None:
    """The run fails in its first op, says all of ``said``, and changes nothing."""
    before = lab.record(pipeline)
    lab.fails(pipeline, *said, **restore)
    assert lab.record(pipeline) == before, "nothing was changed"


def goes_on(lab: Lab, feed: Feed, pipeline: CheckpointedPipeline) -> None:
    lab.succeeds(pipeline)
    feed.check(lab.tables)


def test_a_restore_point_that_names_nothing_is_refused_and_the_next_run_goes_on(ran: Any) -> None:
    lab, feed, pipeline = ran
    refused(lab, pipeline, "chk-7", "chk-000001", restore_from="chk-7")
    refused(lab, pipeline, "yesterday", "latest", restore_from="yesterday")
    refused(lab, pipeline, "_metadata", restore_from=str(lab.folder / "nowhere"))
    goes_on(lab, feed, pipeline)


def _cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _remove(path: Path) -> None:
    path.unlink()


def test_a_damaged_checkpoint_is_named_and_nothing_is_started(ran: Any) -> None:
    lab, feed, pipeline = ran
    stored = lab.folder / "checkpoints" / "shop"
    for pattern in ("chk-1/_metadata", "chk-1/matched/manifest.parquet", "shared/matched/1/**/*"):
        chosen = next(p for p in sorted(stored.glob(pattern)) if p.is_file())
        kept = chosen.read_bytes()
        for damage in (_cut_short, _remove):
            damage(chosen)
            result = lab.run(pipeline, restore_from="chk-1")
            assert not result.success
            text = failure_text(result)
            assert "chk-1" in text, text
            assert chosen.name in text, text
            assert [e.step_key for e in result.get_step_failure_events()] == ["restore"]
            chosen.unlink(missing_ok=True)  # it may be linked to the running query's own file
            chosen.write_bytes(kept)
    lab.succeeds(pipeline, restore_from="chk-1")
    assert read_lines(lab.tables) == feed.expected_lines()


def test_a_checkpoint_of_another_pipeline_is_refused_unless_it_is_forked(ran: Any) -> None:
    lab, feed, pipeline = ran
    other = pipeline.fork("other", table_dir=str(lab.folder / "other"))
    uri = str(lab.folder / "checkpoints" / "shop" / "chk-1")
    lab.fails(other, "'shop'", restore_from=uri)
    lab.fails(
        _with_column_renamed(other),
        "columns were (number int, country string), and now they are (id int",
        "take a savepoint of the idle origin",
        restore_from=uri,
        fork=True,
    )
    lab.succeeds(other, restore_from=uri, fork=True)
    assert read_lines(lab.folder / "other") == feed.expected_lines()


def _with_column_renamed(pipeline: CheckpointedPipeline) -> CheckpointedPipeline:
    """Values of the snapshot's rows that wait would be in the one column, and those to come in the other."""
    lines = pipeline.stages["lines"]

    def renamed(**inputs: Any) -> Any:
        return lines.fn(**inputs).withColumnRenamed("number", "id")

    return replace(pipeline, stages={**pipeline.stages, "lines": replace(lines, fn=renamed)})


def _without_totals(pipeline: CheckpointedPipeline) -> CheckpointedPipeline:
    stages = {uid: stage for uid, stage in pipeline.stages.items() if uid != "totals"}
    upstream = {uid: inputs for uid, inputs in pipeline.upstream.items() if uid != "totals"}
    return Pipeline(name=pipeline.name, stages=stages, upstream=upstream)


@pytest.mark.nightly
def test_a_removed_stage_that_holds_state_is_named_and_skipped_on_request(ran: Any) -> None:
    lab, feed, pipeline = ran
    smaller = _without_totals(pipeline)
    refused(lab, smaller, "totals", "allow_non_restored_state", restore_from="chk-1")
    lab.succeeds(smaller, restore_from="chk-1", allow_non_restored_state=True)
    assert read_lines(lab.tables) == feed.expected_lines()


def test_a_renamed_stage_keeps_its_state_under_previous_uids(ran: Any) -> None:
    lab, feed, pipeline = ran
    from dataclasses import replace

    def renamed(previous: tuple[str, ...]) -> CheckpointedPipeline:
        stages: dict[Any, Any] = {}
        for uid, stage in pipeline.stages.items():
            new = replace(stage.with_uid("joined"), previous_uids=previous) if uid == "matched" else stage
            stages[new.uid] = new
        upstream = {
            "joined" if uid == "matched" else uid: tuple("joined" if i == "matched" else i for i in inputs)
            for uid, inputs in pipeline.upstream.items()
        }
        return Pipeline(name=pipeline.name, stages=stages, upstream=upstream)  # type: ignore[arg-type]

    refused(lab, renamed(()), "matched", restore_from="chk-1")
    lab.succeeds(renamed(("matched",)), restore_from="chk-1")
    feed.check(lab.tables)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("timeout", -1.0),
        ("interval", 0.001),
        ("num_retained", 0),
        ("max_concurrent_checkpoints", 0),
        ("tolerable_failed_checkpoints", -1),
        ("mode", "twice"),
        ("intervall", 1.0),
    ],
)
def test_an_impossible_setting_is_refused_when_the_pipeline_is_defined(setting: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=setting):
        checkpointed_pipeline(lambda: None, name="p", checkpointing={setting: value})


@pytest.mark.parametrize("setting", ["key", "previous_uids", "required_resource_keys"])
def test_one_name_where_a_list_belongs_is_not_taken_for_its_letters(setting: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"'rows' has {setting}='ab': give a list, {setting}=\['ab'\]"):

        @spark_sink(**{setting: "ab"})
        def rows(matched: Any) -> Any:
            return matched


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda source, made: (source, made), r"given the stage 'source', not its output: call it"),
        (lambda source, made: (made, None), r"'both' was given None, which is no stage's output"),
    ],
)
def test_what_is_wired_to_a_stage_must_be_an_output(given: Any, said: str) -> None:
    @spark_source
    def source(spark: Any) -> Any:
        return spark

    @spark_sink
    def both(left: Any, right: Any) -> Any:
        return left

    with pytest.raises(InvalidRequest, match=said):

        @checkpointed_pipeline
        def miswired() -> None:
            both(*given(source, source()))


@pytest.mark.nightly
def test_a_gated_restore_previews_then_restores_as_approved_and_not_when_something_happened_since(
    ran: Any,
) -> None:
    lab, feed, pipeline = ran
    job, before = "shop_restore", lab.record(pipeline)

    def previewed() -> tuple[str, str]:
        done = lab.succeeds(pipeline, job=job, restore_from="chk-1", mode="gate")
        assert not any(event.step_key == "matched" for event in done.get_step_success_events())
        [record] = lab.instance.fetch_observations(checkpoints_asset_key(pipeline.name), limit=1).records
        shown = record.asset_observation.metadata
        return shown["approved"].value, shown["approve"].value

    approval, link = previewed()
    assert lab.record(pipeline) == before, "a preview changes nothing"
    assert f"/jobs/{job}/playground/setup?config=" in link
    assert approval in link
    lab.succeeds(pipeline)
    lab.fails(
        pipeline,
        "since the preview 1 run has claimed the pipeline and 1 checkpoint was triggered",
        job=job,
        restore_from="chk-1",
        approved=approval,
    )
    approval, _ = previewed()
    done = lab.succeeds(pipeline, job=job, restore_from="chk-1", approved=approval)
    said = [log.user_message for log in lab.instance.all_logs(done.run_id)]
    assert any(line.startswith("restoring chk-000001, completed ") for line in said), said
    assert read_lines(lab.tables) == feed.expected_lines()


@pytest.mark.nightly
def test_a_key_that_spark_compares_without_case_is_refused(lab: Lab, small_feed: Feed) -> None:
    """Tables tell keys apart by their bytes: 'ann' and 'ANN' were two rows of one key."""

    def by(name: str) -> CheckpointedPipeline:
        return wired(
            "collated",
            reads("orders", "customer STRING, amount INT", small_feed.folder / "orders"),
            sink(
                "newest", lambda orders: orders.selectExpr(f"{name} AS customer", "amount"), key=["customer"]
            ),
        )

    small_feed.order(("ANN", 6))
    lab.fails(
        by("collate(customer, 'UTF8_LCASE')"), "the key column 'customer' of", "has the collation UTF8_LCASE"
    )
    lab.succeeds(by("collate(lower(customer), 'UTF8_BINARY')"))


@pytest.mark.parametrize("to", [DeltaTable("newest"), IcebergTable("db.newest")], ids=["Delta", "Iceberg"])
def test_a_key_that_is_no_plain_value_is_refused_before_a_row_is_read(
    lab: Lab, small_feed: Feed, to: SinkTarget
) -> None:
    """Its rows were staged and in a checkpoint, and could never be published."""

    def by(key: str) -> CheckpointedPipeline:
        return wired(
            "nested",
            reads("orders", ORDERS, small_feed.folder / "orders"),
            sink("newest", lambda orders: orders.selectExpr(f"{key} AS who", "amount"), key=["who"], to=to),
        )

    lab.fails(by("struct(customer)"), "is of type struct, whose values cannot be compared: use plain columns")
    lab.succeeds(by("to_json(struct(customer))"))


@pytest.mark.nightly
def test_a_file_whose_name_is_a_pattern_is_refused_by_its_name_and_read_once_it_is_renamed(ran: Any) -> None:
    lab, feed, pipeline = ran
    feed.order(("bob", 7))
    newest = max((feed.folder / "orders").glob("*.json"))
    named = newest.rename(newest.with_name("order [1].json"))
    lab.fails(pipeline, "order [1].json")
    named.rename(newest)
    goes_on(lab, feed, pipeline)


def test_a_folder_whose_name_is_a_pattern_of_itself_alone_is_read(tmp_path: Path) -> None:
    (tmp_path / "what?now").mkdir()
    file = tmp_path / "what?now" / "1.json"
    file.touch()
    assert is_read_as_itself(str(file))
    assert not is_read_as_itself(str(tmp_path / "what[?]now" / "1.json"))
    (tmp_path / "whatAnow").mkdir()
    (tmp_path / "whatAnow" / "1.json").touch()
    assert not is_read_as_itself(str(file))
