"""Local copies of checkpoints."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.core.files.retention import LocalBackup, LocalCopies, RecoverySource, prioritize
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.model import FileEntry, FileKind

n = CheckpointId


def holding(*numbers: int) -> LocalCopies:
    copies = LocalCopies()
    for number in numbers:
        copies = copies.store(n(number)).copies
    return copies


def test_a_completion_prunes_all_older_copies() -> None:
    """TaskLocalStateStoreImplTest#confirmCheckpoint, #pruneCheckpoints."""
    change = holding(1, 2, 3, 4).confirm(n(3))
    assert change.pruned == (1, 2)
    assert change.copies.stored == (3, 4)


def test_an_abort_prunes_exactly_that_copy() -> None:
    """TaskLocalStateStoreImplTest#abortCheckpoint."""
    change = holding(1, 2, 3).abort(n(2))
    assert change.pruned == (2,)
    assert change.copies.stored == (1, 3)
    assert holding(1).abort(n(9)).pruned == ()


def test_a_copy_that_cannot_be_read_is_deleted_and_not_found_again() -> None:
    """TaskLocalStateStoreImplTest#deletesLocalStateIfRetrievalFails."""
    change = holding(1, 2).unreadable(n(2))
    assert change.pruned == (2,)
    assert change.copies.find(n(2)) is None


def test_nothing_is_kept_or_found_when_backups_are_off() -> None:
    """TaskLocalStateStoreImplTest#retrieveNullIfDisableLocalRecovery."""
    change = LocalCopies(backup=LocalBackup.OFF).store(n(1))
    assert change.pruned == (1,)
    assert change.copies.find(n(1)) is None
    assert LocalCopies(backup=LocalBackup.OFF, stored=(n(1),)).find(n(1)) is None


def test_a_copy_that_is_there_is_found() -> None:
    assert holding(1, 2).find(n(2)) == 2
    assert holding(1, 2).find(n(3)) is None


@given(st.lists(st.tuples(st.sampled_from(["store", "confirm", "abort"]), st.integers(1, 9)), max_size=30))
def test_copies_are_pruned_once_and_never_from_the_confirmed_one_on(steps: list[tuple[str, int]]) -> None:
    copies = LocalCopies()
    for what, number in steps:
        before = set(copies.stored)
        match what:
            case "store":
                change = copies.store(n(number))
            case "confirm":
                change = copies.confirm(n(number))
                assert all(pruned < number for pruned in change.pruned)
            case _:
                change = copies.abort(n(number))
        assert set(change.pruned) <= before
        assert not set(change.pruned) & set(change.copies.stored)
        copies = change.copies


def file(path: str, checksum: str = "c", operator: str | None = "0", partition: int | None = 0) -> FileEntry:
    return FileEntry(
        path=path,
        size=1,
        checksum=checksum,
        kind=FileKind.STATE_DELTA,
        operator=operator,
        partition=partition,
        first_checkpoint=1,
        key=f"k/{path}",
    )


def sources(entries: list[FileEntry], local: list[FileEntry] | None) -> dict[str, tuple[RecoverySource, ...]]:
    by_path = None if local is None else {entry.path: entry for entry in local}
    return {c.entry.path: c.sources for c in prioritize(entries, by_path)}


def test_a_copy_that_matches_completely_is_tried_first_and_storage_last() -> None:
    """PrioritizedOperatorSubtaskStateTest#testPrioritization."""
    entries = [file("a"), file("b")]
    assert sources(entries, entries) == dict.fromkeys("ab", (RecoverySource.LOCAL, RecoverySource.STORAGE))


def test_one_file_that_differs_sends_its_whole_partition_to_storage() -> None:
    entries = [file("a"), file("b"), file("c", partition=1)]
    for local in (
        [file("a"), file("b", "other"), file("c", partition=1)],
        [file("a"), file("c", partition=1)],
    ):
        found = sources(entries, local)
        assert found["a"] == found["b"] == (RecoverySource.STORAGE,)
        assert found["c"] == (RecoverySource.LOCAL, RecoverySource.STORAGE)


def test_without_a_copy_everything_comes_from_storage() -> None:
    """PrioritizedOperatorSubtaskStateTest#testTryCreateMixedLocalAndRemoteAlternative: remote is the
    truth."""
    assert sources([file("a")], None) == {"a": (RecoverySource.STORAGE,)}


def test_a_file_only_the_copy_has_is_not_restored() -> None:
    assert set(sources([file("a")], [file("a"), file("more")])) == {"a"}


def test_a_worker_that_leaves_keeps_no_copy() -> None:
    """TaskLocalStateStoreImplTest#dispose."""
    change = holding(1, 2, 3).confirm(n(2)).copies.dispose()
    assert (change.pruned, change.copies.stored) == ((2, 3), ())
