"""The identity of a history: nothing starts behind what storage, working directory and sinks have seen."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.request import Completed
from dagster_ckpt.core.restore.facts import Seen
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ports import Committed
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from dagster_ckpt.testing.memory import MemoryCoordinatorStore

PIPELINE = PipelineId("pipeline")


def strict(**given: Any) -> CoordinatorHarness:
    return CoordinatorHarness(strict_history=True, **{"num_retained": 5, **given})


def copied(h: CoordinatorHarness) -> MemoryCoordinatorStore:
    """The store as it is now: what a backup would put back."""
    copy = MemoryCoordinatorStore()
    stored = h.store.load(PIPELINE)
    assert stored is not None
    assert isinstance(copy.compare_and_set(PIPELINE, 0, stored.body, ()), Committed)
    return copy


def seen(h: CoordinatorHarness, **given: Any) -> Seen:
    """The table of the harness's pipeline, as its newest attempt has left it."""
    return Seen(**{"where": "table /t", "lineage": h.record.lineage, "epoch": h.record.epoch, **given})


def test_a_history_gets_its_identity_with_its_first_record_and_keeps_it() -> None:
    h = strict()
    first = h.record.lineage
    assert first
    outcome = h.outcome(h.completed_checkpoint())
    assert isinstance(outcome, Completed)
    assert outcome.metadata.lineage == first
    assert h.next_attempt().record.lineage == first
    assert strict(seed=1).record.lineage != first


def test_a_record_of_before_histories_had_an_identity_gets_one_with_its_next_attempt() -> None:
    h = strict()
    old = copied(h)
    stored = old.load(PIPELINE)
    assert stored is not None
    without = CoordinatorRecord.model_validate_json(stored.body).model_copy(update={"lineage": ""})
    old.compare_and_set(PIPELINE, stored.version, without.model_dump_json(), ())
    unnamed = seen(h, lineage="")
    n = strict(store=old, owner="run-2", seen=[unnamed], seed=3)
    assert n.record.lineage == "history-3-1"


def test_a_store_that_was_put_back_starts_nothing_and_says_what_is_behind_what() -> None:
    h = strict()
    h.completed_checkpoint()
    backup = copied(h)
    h.completed_checkpoint()
    h.completed_checkpoint()
    with pytest.raises(InvalidRequest) as refused:
        strict(store=backup, storage=h.storage, owner="run-2")
    message = str(refused.value)
    assert "knows pipeline 'pipeline' up to attempt 1 and checkpoint 1" in message
    assert "the checkpoint storage memory://checkpoints has seen attempt 1 and checkpoint 3" in message
    assert "memory://checkpoints/pipeline/chk-3" in message
    assert backup.load(PIPELINE) is not None
    assert CoordinatorRecord.model_validate_json(backup.load(PIPELINE).body).epoch == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("ahead", [{"epoch": 2}, {"checkpoint_id": 2}])
def test_store_and_storage_put_back_together_are_told_by_a_sink(ahead: dict[str, int]) -> None:
    h = strict()
    h.completed_checkpoint()
    with pytest.raises(InvalidRequest, match=r"table /t has seen attempt"):
        h.next_attempt(seen=[seen(h, **ahead)])
    n = h.next_attempt(seen=[seen(h, epoch=1, checkpoint_id=1)])
    assert n.record.epoch == 2


def test_a_chosen_restore_goes_on_above_every_number_seen_in_a_history_of_its_own() -> None:
    h = strict()
    cp = h.completed_checkpoint()
    table = seen(h, epoch=7, checkpoint_id=40)
    n = h.next_attempt(restore_from=f"chk-{cp}", seen=[table])
    assert (n.record.epoch, n.record.next_id) == (8, 41)
    assert n.record.lineage != h.record.lineage or n.record.lineages
    assert table.lineage in n.record.lineages
    following = n.next_attempt("run-3", seen=[table])
    assert following.record.lineage == n.record.lineage
    assert following.record.epoch == 9


def test_adopting_a_history_goes_on_from_what_the_store_knows_and_not_in_its_directory() -> None:
    h = strict()
    h.completed_checkpoint()
    h.close()
    n = h.next_attempt(adopt_history=True, seen=[seen(h, epoch=4, checkpoint_id=9)])
    assert n.restored == 1
    assert (n.record.epoch, n.record.next_id) == (5, 10)


def test_a_lost_store_asks_where_snapshots_or_rows_are_left() -> None:
    h = strict()
    cp = h.completed_checkpoint()
    with pytest.raises(InvalidRequest, match=r"no record of pipeline 'pipeline'.*doctor pipeline --repair"):
        strict(storage=h.storage, owner="run-2")
    with pytest.raises(InvalidRequest, match="table /t has seen attempt 1 and checkpoint 1"):
        strict(seen=[seen(h, checkpoint_id=cp)])
    fresh = strict(storage=h.storage, owner="run-2", restore_from="none", seed=1)
    assert fresh.checkpoint() == cp + 1
    chosen = strict(storage=h.storage, owner="run-2", restore_from=f"memory://checkpoints/pipeline/chk-{cp}")
    assert h.record.lineage in chosen.record.lineages


def test_what_a_run_that_never_got_anywhere_left_behind_asks_nothing() -> None:
    n = strict(seen=[Seen(where="the working directory /w", epoch=3, holds=False)])
    assert n.record.epoch == 4


def test_places_of_another_deployment_are_refused_until_they_are_taken_over() -> None:
    h, other = strict(), strict(seed=1)
    h.completed_checkpoint()
    theirs = seen(other)
    for options in ({}, {"restore_from": "chk-1"}, {"restore_from": "none"}):
        with pytest.raises(InvalidRequest, match="table /t belongs to another history"):
            h.next_attempt(seen=[theirs], **options)
    n = h.next_attempt(seen=[theirs], adopt_history=True)
    assert {h.record.lineage, theirs.lineage} <= {n.record.lineage, *n.record.lineages}


def test_a_savepoint_of_another_deployment_with_the_same_name_is_refused() -> None:
    h, other = strict(), strict(seed=1)
    h.completed_checkpoint()
    savepoint = other.coordinator.location_of(other.completed_savepoint()).uri
    h.memory_storages["memory://savepoints"] = other.memory_storages["memory://savepoints"]
    with pytest.raises(InvalidRequest, match="is a snapshot of another history"):
        h.next_attempt(restore_from=savepoint)
    n = h.next_attempt(restore_from=savepoint, adopt_history=True)
    assert other.record.lineage in n.record.lineages


def test_an_attempt_that_is_alive_while_another_claims_is_not_taken_for_a_lost_history() -> None:
    """What was seen before the record was read is never ahead of it."""
    h = strict()

    class Looks(list[Seen]):
        def __iter__(self) -> Any:
            h.completed_checkpoint()  # the older attempt goes on while the newer one looks around
            return super().__iter__()

    n = h.next_attempt(seen=Looks([seen(h)]))
    assert n.record.epoch == 2
