"""The registry of files that several checkpoints share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.core.config import ClaimMode
from dagster_ckpt.core.files.cleaning import FolderUse, PlaceholderHandle, SharedStateRegistry
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.messages import StateHandle, StateScope
from dagster_ckpt.core.request import SharingStrategy
from dagster_ckpt.errors import InvalidRequest


def shared(key: str, size: int = 1) -> StateHandle:
    return StateHandle(key, size, StateScope.SHARED)


def n(number: int) -> CheckpointId:
    return CheckpointId(number)


def deleted(registry: SharedStateRegistry, lowest: int) -> set[str]:
    return {handle.key for handle in registry.unregister_unused(n(lowest)).files}


def in_use(registry: SharedStateRegistry, lowest: int) -> set[int]:
    return set(registry.unregister_unused(n(lowest)).checkpoints_in_use)


def test_a_file_lives_until_every_checkpoint_that_used_it_is_subsumed() -> None:
    """SharedStateRegistryTest#testRegistryNormal."""
    registry = SharedStateRegistry()
    first, second = shared("a"), shared("b")
    assert registry.register("a", first, n(1)) is first
    registry.register("b", second, n(1))
    registry.register("a", PlaceholderHandle("a"), n(2))
    assert deleted(registry, 2) == {"b"}
    assert deleted(registry, 3) == {"a"}
    assert len(registry) == 0


def test_the_handle_registered_first_stays_and_is_returned() -> None:
    """SharedStateRegistryTest#testRegistryNormal: the caller must go on with the returned handle."""
    registry = SharedStateRegistry()
    original, equal = shared("a"), shared("a")
    registry.register("a", original, n(1))
    assert registry.register("a", equal, n(2)) is original
    assert registry.register("a", PlaceholderHandle("a"), n(3)) is original
    assert registry.register("a", original, n(4)) is original
    assert deleted(registry, 4) == set()


def test_a_different_file_under_a_known_key_is_refused() -> None:
    """1.21: a different unequal real handle is a state error."""
    registry = SharedStateRegistry()
    registry.register("a", shared("a", size=1), n(1))
    with pytest.raises(InvalidRequest, match=r"checkpoint 2 registers .* under 'a'.*never replaced"):
        registry.register("a", shared("a", size=2), n(2))
    with pytest.raises(InvalidRequest, match="never replaced"):
        registry.register_all([shared("a", size=2)], n(2))
    assert registry.unregister_unused(n(2)).files == (), "checkpoint 2 names it all the same"


def test_a_placeholder_of_an_unknown_file_is_refused() -> None:
    """1.21: a placeholder for an unknown key is a state error."""
    with pytest.raises(InvalidRequest, match="checkpoint 2 reuses shared file 'a'"):
        SharedStateRegistry().register("a", PlaceholderHandle("a"), n(2))


def test_unregistering_from_an_empty_registry_deletes_nothing() -> None:
    """SharedStateRegistryTest#testUnregisterWithUnexistedKey."""
    registry = SharedStateRegistry()
    assert deleted(registry, 100) == set()
    assert in_use(registry, 100) == set()


def test_use_by_an_older_checkpoint_never_moves_last_use_backwards() -> None:
    """FLINK-24611: completions out of order."""
    registry = SharedStateRegistry()
    registry.register("a", shared("a"), n(5))
    registry.register("a", shared("a"), n(3))
    assert deleted(registry, 5) == set()
    assert deleted(registry, 6) == {"a"}


def test_nothing_is_registered_after_close() -> None:
    registry = SharedStateRegistry()
    registry.close()
    with pytest.raises(InvalidRequest, match="shut down"):
        registry.register("a", shared("a"), n(1))
    with pytest.raises(InvalidRequest, match="shut down"):
        registry.register_all([shared("a")], n(1))


@pytest.mark.parametrize(
    ("mode", "gone"),
    [(ClaimMode.CLAIM, {"old", "kept"}), (ClaimMode.LEGACY, set()), (ClaimMode.NO_CLAIM, set())],
)
def test_files_of_a_restored_checkpoint_are_deleted_only_when_claimed(
    mode: ClaimMode, gone: set[str]
) -> None:
    """CheckpointCoordinatorTest#testSharedStateRegistrationOnRestore."""
    registry = SharedStateRegistry()
    registry.register_restored(
        [shared("old"), shared("kept")], n(5), claim_mode=mode, sharing=SharingStrategy.FORWARD_BACKWARD
    )
    registry.register_all([shared("new")], n(6))
    if mode is not ClaimMode.NO_CLAIM:
        registry.register("kept", PlaceholderHandle("kept"), n(6))
    assert deleted(registry, 6) == gone & {"old"}
    assert deleted(registry, 7) == (gone & {"kept"}) | {"new"}


def test_a_snapshot_restored_without_claim_is_not_registered() -> None:
    """1.16: unclaimed ones are not registered, so nothing can build on their files."""
    registry = SharedStateRegistry()
    registry.register_restored(
        [shared("a")], n(5), claim_mode=ClaimMode.NO_CLAIM, sharing=SharingStrategy.FORWARD_BACKWARD
    )
    assert "a" not in registry
    assert registry.highest_not_claimed == 5


def test_what_is_not_ours_is_remembered_over_a_restart_of_the_coordinator() -> None:
    """A file of a LEGACY snapshot, reused by checkpoint 6, is registered first by 6 after a recovery."""
    recovered = SharedStateRegistry(highest_not_claimed=n(5))
    recovered.register("old", shared("old"), n(6), created_by=n(5))
    recovered.register("new", shared("new"), n(6))
    assert deleted(recovered, 7) == {"new"}


def test_the_folder_of_a_claimed_native_savepoint_stays_while_its_files_are_used() -> None:
    """SharedStateRegistryTest#testUnregisterUnusedSavepointState ({1}, later {})."""
    registry = SharedStateRegistry()
    registry.register_restored(
        [shared("a"), shared("b")], n(1), claim_mode=ClaimMode.CLAIM, sharing=SharingStrategy.NO_SHARING
    )
    registry.register("a", PlaceholderHandle("a"), n(2))
    assert in_use(registry, 2) == {1}
    assert in_use(registry, 3) == set()


def test_the_folder_of_a_claimed_retained_checkpoint_may_go_at_once() -> None:
    """SharedStateRegistryTest#testUnregisterInitialCheckpoint: its shared files live in the shared
    folder."""
    registry = SharedStateRegistry()
    registry.register_restored(
        [shared("a")], n(1), claim_mode=ClaimMode.CLAIM, sharing=SharingStrategy.FORWARD_BACKWARD
    )
    registry.register("a", PlaceholderHandle("a"), n(2))
    assert in_use(registry, 2) == set()


@pytest.mark.parametrize("restored", [True, False])
def test_a_file_inside_a_checkpoints_folder_keeps_that_folder(restored: bool) -> None:
    """SharedStateRegistryTest#testUnregisterInitialCheckpointUsedInChangelog,
    #testUnregisterNonInitialCheckpoint."""
    registry = SharedStateRegistry()
    if restored:
        registry.register_restored(
            [], n(1), claim_mode=ClaimMode.CLAIM, sharing=SharingStrategy.FORWARD_BACKWARD
        )
    registry.register("a", shared("a"), n(1), folder_use=FolderUse.PINS_FOLDER)
    registry.register("a", PlaceholderHandle("a"), n(2))
    assert in_use(registry, 2) == {1}
    assert in_use(registry, 3) == set()


def test_files_of_an_aborted_checkpoint_stay_until_a_later_one_is_the_lowest_retained() -> None:
    """CheckpointCoordinatorTest#testSharedStateNotDiscaredOnAbort."""
    registry = SharedStateRegistry()
    registry.register_all([shared("of-aborted-2")], n(2))
    registry.checkpoint_completed(n(1))
    assert {h.key for h in registry.unconfirmed()} == {"of-aborted-2"}
    registry.register("of-aborted-2", PlaceholderHandle("of-aborted-2"), n(3))
    registry.checkpoint_completed(n(3))
    assert registry.unconfirmed() == ()
    assert deleted(registry, 3) == set()


def test_a_hundred_thousand_files_cost_one_pass_each() -> None:
    """The same files are used by ten checkpoints; each is deleted exactly once."""
    registry = SharedStateRegistry()
    handles = [shared(f"f{i}") for i in range(100_000)]
    for number in range(1, 4):
        registry.register_all(handles, n(number))
        registry.checkpoint_completed(n(number))
        assert registry.unregister_unused(n(number)).files == ()
    assert len(registry.unregister_unused(n(4)).files) == 100_000
    assert len(registry) == 0


@given(
    uses=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 6)), max_size=60),
    lowest=st.lists(st.integers(1, 14), max_size=6),
)
def test_no_file_a_retained_checkpoint_uses_is_ever_deleted(
    uses: list[tuple[int, int]], lowest: list[int]
) -> None:
    """Any order of registrations, any rising sequence of lowest retained ids, against a set of uses."""
    registry = SharedStateRegistry()
    used: dict[str, int] = {}
    for number, file in uses:
        registry.register(f"f{file}", shared(f"f{file}"), n(number))
        used[f"f{file}"] = max(used.get(f"f{file}", 0), number)
    for bound in sorted(lowest):
        expected = {key for key, last in used.items() if last < bound}
        assert deleted(registry, bound) == expected
        used = {key: last for key, last in used.items() if last >= bound}
