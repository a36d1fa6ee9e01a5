"""The bounded store of completed checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.core.config import CheckpointConfig, ClaimMode, ExternalizedCheckpointRetention
from dagster_ckpt.core.files.retention import CompletedStore, UnreadableEntry, recover
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import CheckpointProperties, RunStatus, properties_for, restored_properties
from dagster_ckpt.errors import Corrupt, InvalidRequest

CONFIG = CheckpointConfig()


@dataclass(frozen=True, slots=True)
class Entry:
    checkpoint_id: int
    properties: CheckpointProperties
    completed_at: float = 0.0
    is_left_behind: bool = False


def cp(number: int) -> Entry:
    return Entry(number, properties_for(CheckpointKind.CHECKPOINT, CONFIG))


def sp(number: int, completed_at: float = 0.0) -> Entry:
    return Entry(number, properties_for(CheckpointKind.SAVEPOINT, CONFIG), completed_at)


def stop_sp(number: int) -> Entry:
    return Entry(number, properties_for(CheckpointKind.SYNC_SAVEPOINT_SUSPEND, CONFIG))


def store_of(num_retained: int, *entries: Entry) -> CompletedStore[Entry]:
    return CompletedStore(num_retained=num_retained, entries=entries)


def ids(entries: tuple[Entry, ...]) -> list[int]:
    return [entry.checkpoint_id for entry in entries]


def test_a_store_that_retains_nothing_is_refused() -> None:
    """CompletedCheckpointStoreTest#testExceptionOnNoRetainedCheckpoints."""
    with pytest.raises(InvalidRequest, match="num_retained must be at least 1"):
        store_of(0)


def test_an_empty_store_has_no_latest_and_no_lowest() -> None:
    """CompletedCheckpointStoreTest#testEmptyState, #testAcquireLatestCompletedCheckpointId."""
    assert store_of(1).latest is None
    assert store_of(1).lowest_retained is None


def test_the_oldest_goes_when_more_than_the_limit_are_added() -> None:
    """CompletedCheckpointStoreTest#testAddCheckpointMoreThanMaxRetained."""
    store = store_of(2)
    subsumed: list[int] = []
    for number in range(1, 6):
        added = store.add(cp(number))
        store = added.store
        subsumed += ids(added.subsumed)
    assert ids(store.entries) == [4, 5]
    assert subsumed == [1, 2, 3]


@pytest.mark.parametrize(
    ("before", "added", "after"),
    [
        ((cp(1), cp(2), sp(3), sp(4)), sp(5), [2, 5]),
        ((cp(1), sp(2)), cp(3), [3]),
        ((cp(1), sp(2)), stop_sp(3), [3]),
        ((cp(1),), stop_sp(2), [2]),
        ((), sp(1), [1]),
        ((sp(1),), sp(2), [2]),
        ((cp(1),), sp(2), [1, 2]),
    ],
    ids=[
        "testAtLeastOneCheckpointRetained",
        "testOlderSavepointSubsumed",
        "testSubsumeAfterStoppingWithSavepoint",
        "stop-savepoint-alone",
        "one",
        "savepoints-only",
        "the-newest-checkpoint-stays-beyond-the-limit",
    ],
)
def test_subsumption_retaining_one(before: tuple[Entry, ...], added: Entry, after: list[int]) -> None:
    """DefaultCompletedCheckpointStoreTest, the cases named in the ids."""
    assert ids(store_of(1, *before).add(added).store.entries) == after


def test_nothing_is_subsumed_below_the_limit() -> None:
    """DefaultCompletedCheckpointStoreTest#testNotSubsumedIfNotNeeded."""
    added = store_of(3, cp(1), sp(2)).add(cp(3))
    assert ids(added.store.entries) == [1, 2, 3]
    assert added.subsumed == ()
    assert added.highest_subsumed is None


def test_walking_on_after_a_protected_entry_frees_later_savepoints() -> None:
    """CheckpointSubsumeHelper: no early stop at the newest checkpoint, which is not the newest entry."""
    added = store_of(2, cp(1), sp(2), sp(3)).add(sp(4))
    assert ids(added.store.entries) == [1, 4]
    assert ids(added.subsumed) == [2, 3]


def test_the_highest_subsumed_is_reported_and_named_to_stages_only_if_its_files_may_go() -> None:
    """SubtaskCheckpointCoordinatorTest#testNotifyCheckpointSubsumed; 1.9: 'subsumed id'."""
    discardable = store_of(1, cp(1), cp(2)).add(cp(3))
    assert (discardable.highest_subsumed, discardable.notified_subsumed) == (2, 2)
    kept = store_of(1, cp(1), sp(2)).add(cp(3))
    assert (kept.highest_subsumed, kept.notified_subsumed) == (2, None)


def test_a_restored_unclaimed_snapshot_counts_toward_the_limit_and_is_pushed_out() -> None:
    """1.10: savepoints enter the store only by restoring from them, and then do count."""
    restored = Entry(1, restored_properties(ClaimMode.NO_CLAIM, CONFIG))
    added = store_of(1, restored).add(cp(2))
    assert ids(added.store.entries) == [2]
    assert added.notified_subsumed is None


def test_the_same_checkpoint_is_never_added_twice() -> None:
    with pytest.raises(InvalidRequest, match="already in the store"):
        store_of(2, cp(1)).add(cp(1))


def test_the_lowest_retained_is_the_first_that_is_no_savepoint() -> None:
    """1.10: 'For shared-state GC, lowest retained = id of the first non-savepoint in the queue'."""
    assert store_of(5, sp(1), cp(2), cp(3)).lowest_retained == 2
    assert store_of(5, sp(1)).lowest_retained is None


def test_recovery_sorts_by_id_whatever_the_order_of_the_listing() -> None:
    """DefaultCompletedCheckpointStoreTest#testRecoverSortedCheckpoints."""
    assert ids(recover([cp(3), cp(1), cp(2)], num_retained=3).entries) == [1, 2, 3]


def test_recovery_fails_on_a_corrupt_entry_and_does_not_skip_it() -> None:
    """DefaultCompletedCheckpointStoreTest#testCorruptDataInStateHandleStoreShouldNotBeSkipped."""
    damaged = UnreadableEntry(checkpoint_id=3, cause="truncated JSON")
    with pytest.raises(Corrupt, match=r"checkpoint 3 cannot be read \(truncated JSON\).*restore_from"):
        recover([cp(1), cp(2), damaged], num_retained=3)


def test_recovery_fails_on_an_entry_listed_twice() -> None:
    with pytest.raises(Corrupt, match="checkpoint 2 is in the store twice"):
        recover([cp(2), cp(2)], num_retained=3)


def test_recovery_keeps_more_than_a_lowered_limit_until_the_next_completion() -> None:
    store = recover([cp(1), cp(2), cp(3)], num_retained=1)
    assert ids(store.entries) == [1, 2, 3]
    assert ids(store.add(cp(4)).store.entries) == [4]


def test_a_globally_terminal_end_discards_by_properties_and_forgets_all() -> None:
    """DefaultCompletedCheckpointStoreTest#testShutdownShouldDiscardStateHandleWhenJobIsGloballyTerminalState."""
    retain = CheckpointConfig(
        externalized_checkpoint_retention=ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    )
    kept_on_cancel = Entry(2, properties_for(CheckpointKind.CHECKPOINT, retain))
    store = store_of(3, cp(1), kept_on_cancel, sp(3))
    canceled, finished = store.shut_down(RunStatus.CANCELED), store.shut_down(RunStatus.FINISHED)
    assert ids(canceled.discarded) == [1]
    assert ids(finished.discarded) == [1, 2]
    assert ids(canceled.forgotten) == ids(finished.forgotten) == [1, 2, 3]
    assert canceled.kept == finished.kept == ()


def test_a_suspended_run_keeps_every_pointer() -> None:
    """DefaultCompletedCheckpointStoreTest#testShutdownShouldNotDiscardStateHandleWhenJobIsNotGloballyTerminalState."""
    ended = store_of(3, cp(1), sp(2)).shut_down(RunStatus.SUSPENDED)
    assert ids(ended.kept) == [1, 2]
    assert ended.discarded == ended.forgotten == ()


@given(
    kinds=st.lists(st.sampled_from([CheckpointKind.CHECKPOINT, CheckpointKind.SAVEPOINT]), max_size=30),
    num_retained=st.integers(1, 5),
)
def test_whatever_is_added_the_latest_and_the_newest_checkpoint_stay(
    kinds: list[CheckpointKind], num_retained: int
) -> None:
    """1.10 as invariants: nothing lost, nothing twice, bounded, and a base for increments is always kept."""
    store = store_of(num_retained)
    gone: list[int] = []
    for number, kind in enumerate(kinds, start=1):
        entry = Entry(number, properties_for(kind, CONFIG))
        added = store.add(entry)
        store = added.store
        gone += ids(added.subsumed)
        held = ids(store.entries)
        newest_checkpoint = max((n for n, k in enumerate(kinds[:number], 1) if not k.is_savepoint), default=0)
        assert store.latest is entry
        assert not newest_checkpoint or newest_checkpoint in held
        assert sorted(gone + held) == list(range(1, number + 1))
        assert held == sorted(held)
        assert len(held) <= max(num_retained, 2)
