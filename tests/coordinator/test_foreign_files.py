"""An acknowledgement that is not taken deletes the files of its own checkpoint, whatever else it names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, ExecutionAttempt, StageUid
from dagster_ckpt.core.messages import AcknowledgeResult as Result
from dagster_ckpt.core.messages import StateHandle, StateScope
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness

BASE = "memory://checkpoints"
Acknowledge = Callable[..., Result]
Part = Callable[[CoordinatorHarness], Acknowledge]

OLD_TRY = ExecutionAttempt(StageUid("a"), 0, CoordinatorEpoch(1), number=99)
OLD_EPOCH = ExecutionAttempt(StageUid("a"), 0, CoordinatorEpoch(77))
NOBODY = ExecutionAttempt(StageUid("nobody"), 0, CoordinatorEpoch(1))
UPWARDS = ExecutionAttempt(StageUid(".."), 0, CoordinatorEpoch(1))


@pytest.fixture(params=["subtask", "stage"])
def part(request: pytest.FixtureRequest) -> Part:
    """Acknowledges for one subtask, or for a whole stage."""

    def chosen(h: CoordinatorHarness) -> Acknowledge:
        return h.acknowledge if request.param == "subtask" else h.acknowledge_stage

    return chosen


def two(num_retained: int = 3) -> CoordinatorHarness:
    return CoordinatorHarness(
        stages={"a": 1, "b": 1},
        edges=[("a", "b")],
        timeout=10.0,
        tolerable_failed_checkpoints=9,
        num_retained=num_retained,
    )


def retained(h: CoordinatorHarness) -> list[StateHandle]:
    """Complete a checkpoint; return what it cannot be restored without, each named as if it were private."""
    cp = h.checkpoint()
    private, shared = h.private(cp, "a"), h.shared(cp, "a", "sst")
    h.acknowledge(cp, "a", handles=[private, shared])
    h.acknowledge(cp, "b")
    folder = h.paths.checkpoint(CheckpointId(cp))
    named = [private.key, shared.key, f"{folder}/_metadata", f"{folder}/a/subtask_handles.json"]
    handles = [StateHandle(key, 1, StateScope.EXCLUSIVE) for key in named]
    assert all(h.is_stored(handle) for handle in handles)
    return handles


def test_an_attempt_nobody_knows_cannot_delete_what_is_retained(part: Part) -> None:
    h = two()
    needed = retained(h)
    cp = h.checkpoint()
    for stranger in (OLD_TRY, OLD_EPOCH):
        own = h.private(cp, "a", f"of-{stranger.number}-{stranger.epoch}")
        assert part(h)(cp, "a", attempt=stranger, handles=[*needed, own]) is Result.UNKNOWN
        assert not h.is_stored(own)
    assert all(h.is_stored(handle) for handle in needed)


def test_a_late_acknowledgement_cannot_delete_what_is_retained(part: Part) -> None:
    h = two()
    needed = retained(h)
    cp = h.checkpoint()
    own = h.private(cp, "a")
    h.expire(cp)
    assert part(h)(cp, "a", handles=[*needed, own]) is Result.DISCARDED
    assert not h.is_stored(own)
    assert all(h.is_stored(handle) for handle in needed)


@pytest.mark.parametrize("num_retained", [1, 3], ids=["forgotten", "remembered"])
def test_an_acknowledgement_long_after_its_checkpoint_failed_cannot_delete_what_is_retained(
    part: Part, num_retained: int
) -> None:
    h = two(num_retained)
    h.completed_checkpoint()
    cp = h.checkpoint()
    h.expire(cp)
    for stage in ("a", "b"):
        h.acknowledge(cp, stage)
    needed = retained(h)
    own = StateHandle(f"{h.paths.checkpoint(CheckpointId(cp))}/a/state", 1)
    h.storage.create(own.key, b"written after the folder was removed")
    assert part(h)(cp, "a", handles=[*needed, own]) is Result.DISCARDED
    assert not h.is_stored(own)
    assert all(h.is_stored(handle) for handle in needed)


def test_an_acknowledgement_after_its_stage_declined_cannot_delete_what_is_retained(part: Part) -> None:
    h = two()
    needed = retained(h)
    cp = h.checkpoint()
    own = h.private(cp, "a")
    h.decline(cp, "a")
    assert part(h)(cp, "a", handles=[*needed, own]) is Result.DISCARDED
    assert not h.is_stored(own)
    assert all(h.is_stored(handle) for handle in needed)


def test_a_second_acknowledgement_deletes_nothing_at_all(part: Part) -> None:
    h = two()
    needed = retained(h)
    cp = h.checkpoint()
    first, other = h.private(cp, "a"), h.private(cp, "a", "again")
    part(h)(cp, "a", handles=[first])
    assert part(h)(cp, "a", handles=[*needed, other]) is Result.DUPLICATE
    assert all(h.is_stored(handle) for handle in (*needed, first, other))


@pytest.mark.parametrize(
    "spelled",
    [
        "pipeline/chk-{late}/a/../../chk-{kept}/a/state",
        "pipeline/chk-{late}/../chk-{kept}/a/state",
        "pipeline/chk-{late}//a/state",
        "/pipeline/chk-{kept}/a/state",
        "pipeline/chk-{late}0/a/state",
        "pipeline/chk-{late}",
        "../elsewhere",
    ],
)
def test_a_key_that_leaves_the_folder_of_the_checkpoint_is_never_deleted(part: Part, spelled: str) -> None:
    h = two()
    kept = h.completed_checkpoint()
    late = h.checkpoint()
    key = spelled.format(late=late, kept=kept)
    h.memory_storages[BASE].contents[key] = b"somebody's"
    assert part(h)(late, "a", attempt=OLD_TRY, handles=[StateHandle(key)]) is Result.UNKNOWN
    h.expire(late)
    assert part(h)(late, "a", handles=[StateHandle(key)]) is Result.DISCARDED
    assert key in h.files()


def test_a_stage_whose_name_leaves_the_folder_deletes_nothing() -> None:
    h = two()
    needed = retained(h)
    cp = h.checkpoint()
    tricks = [StateHandle(key.key.replace("pipeline/", f"pipeline/chk-{cp}/../")) for key in needed]
    for trick in tricks:
        h.memory_storages[BASE].contents[trick.key] = b"as a file system would resolve it"
    assert h.acknowledge(cp, "a", attempt=UPWARDS, handles=tricks) is Result.UNKNOWN
    assert all(h.is_stored(handle) for handle in (*needed, *tricks))


def test_a_stranger_cannot_delete_what_another_stage_has_written_for_the_same_checkpoint(part: Part) -> None:
    """Files are stored before they are acknowledged: until then nothing but their folder says whose they are."""
    h = two()
    cp = h.checkpoint()
    of_b = h.private(cp, "b")
    assert part(h)(cp, "a", attempt=OLD_TRY, handles=[of_b]) is Result.UNKNOWN
    assert h.acknowledge(cp, "a", attempt=NOBODY, handles=[of_b]) is Result.UNKNOWN
    h.acknowledge(cp, "a")
    h.acknowledge(cp, "b", handles=[of_b])
    assert h.completed == [cp]
    assert h.is_stored(of_b)


def test_a_file_that_a_later_checkpoint_shares_stays_though_it_lies_in_the_folder_of_one_that_failed(
    part: Part,
) -> None:
    h = two()
    failed = h.checkpoint()
    h.expire(failed)
    key = f"{h.paths.checkpoint(CheckpointId(failed))}/a/taken-up"
    h.storage.create(key, b"x")
    cp = h.checkpoint()
    h.acknowledge(cp, "a", handles=[StateHandle(key, 1, StateScope.SHARED)])
    h.acknowledge(cp, "b")
    assert part(h)(failed, "a", handles=[StateHandle(key, 1)]) is Result.DISCARDED
    assert key in h.files()


def test_a_late_part_of_a_savepoint_deletes_its_own_files_and_none_of_the_checkpoints(part: Part) -> None:
    h = two()
    needed = retained(h)
    number = h.savepoint(target="memory://savepoints")
    own = h.private(number, "a")
    h.expire(number)
    assert part(h)(number, "a", handles=[*needed, own]) is Result.DISCARDED
    assert all(h.is_stored(handle) for handle in needed)
