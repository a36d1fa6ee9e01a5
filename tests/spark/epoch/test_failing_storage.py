"""Checkpoint storage that fails: the checkpoint fails, the pipeline goes on, and no half checkpoint is ever listed."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest

from dagster_ckpt import Unavailable, checkpoints_asset_key
from dagster_ckpt.testing.faults import Operation
from tests.lab.lab import Lab, failure_text
from tests.spark.epoch.faulty import FAILURES, FaultyCoordinatorResource
from tests.spark.epoch.small_pipeline import Feed, read_lines, shop


@pytest.fixture
def faulty(lab: Lab) -> Iterator[Lab]:
    lab.kind = FaultyCoordinatorResource
    FAILURES.disarm()
    yield lab
    FAILURES.disarm()


def retries(result: dg.ExecuteInProcessResult) -> list[str]:
    return [e.step_key or "" for e in result.all_events if e.event_type_value == "STEP_UP_FOR_RETRY"]


def test_a_passing_storage_error_retries_the_op_and_the_checkpoint_completes(
    faulty: Lab, small_feed: Feed
) -> None:
    pipeline = shop(small_feed.folder)
    FAILURES.arm(Operation.CREATE, Unavailable("the disk is busy"), matching="*/matched/*", times=1)
    result = faulty.succeeds(pipeline)
    assert retries(result) == ["matched"]
    assert faulty.partitions(pipeline) == ["chk-000001"]
    assert read_lines(faulty.tables) == small_feed.expected_lines()


@pytest.mark.parametrize("lab", [{}, {"tolerable_failed_checkpoints": 1}], indirect=True)
def test_a_run_without_its_checkpoint_fails_unless_told_else_and_the_next_epoch_makes_it_good(
    faulty: Lab, small_feed: Feed, request: pytest.FixtureRequest
) -> None:
    pipeline = shop(small_feed.folder)
    FAILURES.arm(Operation.CREATE, Unavailable("disk full"), matching="*/matched/*", times=1000)
    result = faulty.run(pipeline)
    tolerates = bool(request.node.callspec.params["lab"])
    assert result.success == tolerates, failure_text(result)
    assert tolerates or "disk full" in failure_text(result)
    assert faulty.partitions(pipeline) == []
    assert faulty.record(pipeline).completed == ()
    assert read_lines(faulty.tables) == {}, "nothing is published without a checkpoint"
    left = [p for p in (faulty.folder / "checkpoints").rglob("*") if p.is_file()]
    assert left == [], "the parts of the failed checkpoint are removed"
    checks = faulty.instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(checkpoints_asset_key(pipeline.name), "checkpoint_succeeded"), limit=5
    )
    assert [c.status.value for c in checks] == ["FAILED"]

    FAILURES.disarm()
    small_feed.order(("ann", 7))
    faulty.succeeds(pipeline)
    directory = faulty.record(pipeline).working_directory
    assert not tolerates or directory.endswith("attempt-1"), "adopted: no data is chased"
    small_feed.check(faulty.tables)


def test_metadata_that_cannot_be_written_leaves_no_checkpoint_behind(faulty: Lab, small_feed: Feed) -> None:
    pipeline = shop(small_feed.folder)
    FAILURES.arm(Operation.CREATE, Unavailable("gone"), matching="*/_metadata", times=1000)
    faulty.fails(pipeline)
    assert faulty.partitions(pipeline) == []
    assert faulty.record(pipeline).failed[-1].reason == "FINALIZE_CHECKPOINT_FAILURE"


@pytest.mark.parametrize("lab", [{"tolerable_failed_checkpoints": 0, "snapshot_retries": 0}], indirect=True)
def test_more_failures_than_tolerated_fail_the_run(faulty: Lab, small_feed: Feed) -> None:
    pipeline = shop(small_feed.folder)
    FAILURES.arm(Operation.CREATE, Unavailable("disk full"), matching="*/matched/*", times=1000)
    faulty.fails(pipeline, "disk full")


@pytest.mark.nightly
@pytest.mark.parametrize("lab", [{"tolerable_failed_checkpoints": 1}], indirect=True)
@pytest.mark.parametrize(
    ("operation", "where"), [(Operation.CREATE, "*/_metadata"), (Operation.LIST, "*chk-*")]
)
def test_failures_of_no_stage_count_as_those_of_one_do(
    faulty: Lab, small_feed: Feed, operation: Operation, where: str
) -> None:
    """Nobody asked for them at the end of an epoch: every run succeeded, and no row was ever published."""
    pipeline = shop(small_feed.folder)
    FAILURES.arm(operation, Unavailable("disk full"), matching=where, times=1000)
    assert faulty.run(pipeline).success, "one is tolerated"
    faulty.fails(pipeline, "disk full")
    FAILURES.disarm()
    faulty.succeeds(pipeline)
    assert read_lines(faulty.tables) == small_feed.expected_lines()


def test_storage_that_can_never_be_written_is_told_before_anything_runs(lab: Lab, small_feed: Feed) -> None:
    pipeline = shop(small_feed.folder)
    lab.folder.mkdir(parents=True)
    (lab.folder / "checkpoints").write_text("a file where the folder should be")
    lab.fails(pipeline, str(lab.folder / "checkpoints"), "name another")
