"""A coordinator whose checkpoints are in its store: what is too large, and where a savepoint goes."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.messages import CheckpointFailureReason as Reason
from dagster_ckpt.core.model import CheckpointKind, SnapshotMetrics
from dagster_ckpt.core.paths import STORE_LIMITS
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness

HALF = STORE_LIMITS.per_checkpoint // 2
TWO_STAGES_FIT = SnapshotMetrics(bytes_full=HALF)


def two(**settings: object) -> CoordinatorHarness:
    in_store = {"checkpoint_storage": "store", "tolerable_failed_checkpoints": 5, **settings}
    return CoordinatorHarness(stages={"a": 1, "b": 1}, edges=[("a", "b")], **in_store)  # type: ignore[arg-type]


def test_stages_that_fit_one_by_one_and_not_together_have_no_checkpoint_and_the_previous_one_stays() -> None:
    h = two()
    kept = h.completed_checkpoint()
    number = h.checkpoint()
    h.acknowledge(number, "a", metrics=SnapshotMetrics(bytes_full=HALF + 1))
    assert h.failures == {}
    h.acknowledge(number, "b", metrics=TWO_STAGES_FIT)
    assert h.failures == {number: Reason.FINALIZE_CHECKPOINT_FAILURE}
    assert "a checkpoint of 50 mb (52428801 bytes) does not fit" in h.record.failed[-1].message
    assert h.completed == [kept]
    assert h.failure_counter == 1


def test_a_checkpoint_just_as_large_as_it_may_be_completes() -> None:
    h = two()
    number = h.checkpoint()
    for stage in ("a", "b"):
        h.acknowledge(number, stage, metrics=TWO_STAGES_FIT)
    assert h.completed == [number]


def test_a_savepoint_may_be_of_any_size_for_it_is_not_in_the_store() -> None:
    h = two()
    number = h.savepoint(target="memory://savepoints")
    for stage in ("a", "b"):
        h.acknowledge(number, stage, metrics=SnapshotMetrics(bytes_full=3 * HALF))
    assert [s.checkpoint_id for s in h.record.savepoints] == [number]


def test_a_savepoint_without_a_target_or_with_one_in_the_store_is_refused() -> None:
    h = two()
    for target, says in (("", "set savepoint_dir"), ("store://savepoints", "cannot be written to store://")):
        with pytest.raises(
            InvalidRequest, match=f"^a savepoint .*{says}.*the coordinator store holds checkpoints"
        ):
            h.coordinator.trigger(CheckpointRequest(kind=CheckpointKind.SAVEPOINT, target=target))
        stop = CheckpointRequest(kind=CheckpointKind.SYNC_SAVEPOINT_SUSPEND, target=target)
        with pytest.raises(
            InvalidRequest, match=r"^stop-with-savepoint .*the coordinator store holds checkpoints"
        ):
            h.coordinator.stop_with_savepoint(stop)
    assert h.pending == []
