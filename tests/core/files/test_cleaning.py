"""When subsumed checkpoints are deleted, and which stored files may be."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.core.config import CheckpointConfig, ClaimMode
from dagster_ckpt.core.files.cleaning import (
    Cleanups,
    Disposition,
    StorageFacts,
    classify,
    exclusive_keys,
    removal_order,
)
from dagster_ckpt.core.ids import CheckpointId, PipelineId
from dagster_ckpt.core.model import (
    CheckpointKind,
    CheckpointMetadata,
    FileEntry,
    FileKind,
    ObjectRef,
    StageSnapshot,
)
from dagster_ckpt.core.paths import StoredObject
from dagster_ckpt.core.request import CheckpointProperties, properties_for, restored_properties
from dagster_ckpt.errors import InvalidRequest

CONFIG = CheckpointConfig()
OWN = properties_for(CheckpointKind.CHECKPOINT, CONFIG)
PIPELINE = PipelineId("flights")


@dataclass(frozen=True, slots=True)
class Entry:
    checkpoint_id: int
    properties: CheckpointProperties = OWN


def holding(*numbers: int) -> Cleanups[Entry]:
    empty: Cleanups[Entry] = Cleanups()
    return empty.hold([Entry(number) for number in numbers])


def ids(entries: tuple[Entry, ...]) -> list[int]:
    return [entry.checkpoint_id for entry in entries]


def test_a_checkpoint_above_the_lowest_retained_is_not_cleaned() -> None:
    """CheckpointsCleanerTest#testNotCleanHigherCheckpoint."""
    released = holding(3, 1, 2).release(CheckpointId(2), ())
    assert ids(released.delete) == [1]
    assert ids(released.cleaner.held) == [2, 3]


def test_a_checkpoint_in_use_is_not_cleaned_until_it_is_free() -> None:
    """CheckpointsCleanerTest#testNotCleanCheckpointInUse."""
    released = holding(1, 2).release(CheckpointId(5), {CheckpointId(1)})
    assert ids(released.delete) == [2]
    assert ids(released.cleaner.release(CheckpointId(5), ()).delete) == [1]


def test_nothing_is_cleaned_while_no_checkpoint_is_retained() -> None:
    assert holding(1).release(None, ()).delete == ()


def test_what_is_not_ours_is_forgotten_without_a_deletion() -> None:
    """SavepointITCase#testTriggerSavepointAndResumeWithNoClaim: the snapshot is kept."""
    unclaimed = Entry(1, restored_properties(ClaimMode.NO_CLAIM, CONFIG))
    empty: Cleanups[Entry] = Cleanups()
    released = empty.hold([unclaimed]).release(CheckpointId(2), ())
    assert released.delete == ()
    assert released.forget == (unclaimed,)
    assert released.cleaner.is_idle


def test_deletions_are_counted_until_each_has_ended() -> None:
    """CRD#testEnqueueOnTooManyCleaning counts them; a close waits for zero."""
    cleaner = holding(1, 2).release(CheckpointId(3), ()).cleaner.started()
    assert cleaner.in_flight == 3
    cleaner = cleaner.ended().ended()
    assert not cleaner.is_idle
    cleaner = cleaner.ended()
    assert cleaner.is_idle
    with pytest.raises(InvalidRequest, match="never started"):
        cleaner.ended()


@given(st.lists(st.tuples(st.sets(st.integers(1, 9)), st.integers(1, 10), st.sets(st.integers(1, 9)))))
def test_every_held_checkpoint_is_released_once_and_never_too_early(
    steps: list[tuple[set[int], int, set[int]]],
) -> None:
    cleaner: Cleanups[Entry] = Cleanups()
    seen: set[int] = set()
    gone: list[int] = []
    for arrivals, lowest, in_use in steps:
        cleaner = cleaner.hold([Entry(number) for number in arrivals - seen])
        seen |= arrivals
        released = cleaner.release(CheckpointId(lowest), {CheckpointId(i) for i in in_use})
        assert all(number < lowest and number not in in_use for number in ids(released.delete))
        gone += ids(released.delete)
        cleaner = released.cleaner
    assert sorted(gone + ids(cleaner.held)) == sorted(seen)
    assert cleaner.in_flight == len(gone)


# --- files in storage -----------------------------------------------------------------------------


def verdicts(facts: StorageFacts, *keys: str) -> dict[str, Disposition]:
    return {c.key: c.disposition for c in classify([StoredObject(key, 1) for key in keys], facts)}


def storage_facts(**given: object) -> StorageFacts:
    values = {"pipeline": PIPELINE, "referenced": set(), "over": {CheckpointId(3), CheckpointId(4)}} | given
    return StorageFacts(**values)  # type: ignore[arg-type]


def test_a_referenced_file_is_kept_even_if_its_checkpoint_is_over() -> None:
    key = "flights/shared/agg/3/query/state/0/0/a.sst"
    assert verdicts(storage_facts(referenced={key}), key) == {key: Disposition.KEEP_REFERENCED}


@pytest.mark.parametrize(
    "key",
    ["flights/chk-3/_metadata", "flights/chk-4/agg/query/offsets/1", "flights/shared/agg/3/query/x.sst"],
)
def test_what_a_checkpoint_that_is_over_left_behind_is_removed(key: str) -> None:
    assert verdicts(storage_facts(), key) == {key: Disposition.REMOVE}


@pytest.mark.parametrize(
    "key",
    [
        "flights/chk-5/_metadata",
        "flights/shared/agg/5/x",
        "flights/notes.txt",
        "flights/chk-3",
        "flights/chk-03/_metadata",
        "flights/chk-3x/_metadata",
        "other/chk-3/_metadata",
        "flights2/chk-3/_metadata",
        "savepoint-flights-abcdef/_metadata",
        "flights/shared/3/x",
    ],
)
def test_what_cannot_be_named_is_kept_and_reported(key: str) -> None:
    assert verdicts(storage_facts(), key) == {key: Disposition.KEEP_UNKNOWN}


def test_files_of_a_completion_with_unknown_outcome_are_kept() -> None:
    """CheckpointCoordinatorFailureTest#testCleanupOmissionForPossibleInconsistentStateException."""
    key = "flights/chk-3/_metadata"
    assert verdicts(storage_facts(uncertain={CheckpointId(3)}), key) == {key: Disposition.KEEP_UNKNOWN}


def test_data_goes_before_file_lists_and_metadata_last_oldest_first() -> None:
    keys = [
        "flights/chk-10/_metadata",
        "flights/chk-2/_metadata",
        "flights/chk-10/agg/manifest.parquet",
        "flights/chk-10/agg/query/offsets/1",
        "flights/chk-2/agg/query/offsets/1",
        "flights/shared/agg/1/x",
    ]
    assert removal_order(keys, PIPELINE) == [
        "flights/shared/agg/1/x",
        "flights/chk-2/agg/query/offsets/1",
        "flights/chk-10/agg/query/offsets/1",
        "flights/chk-10/agg/manifest.parquet",
        "flights/chk-2/_metadata",
        "flights/chk-10/_metadata",
    ]


def file(key: str | None) -> FileEntry:
    return FileEntry(path="p", size=1, checksum="c", kind=FileKind.QUERY, first_checkpoint=3, key=key)


def snapshot(kind: CheckpointKind, manifest: str) -> CheckpointMetadata:
    stage = StageSnapshot(uid="agg", parallelism=1, manifest=ObjectRef(key=manifest, size=1, checksum="c"))
    return CheckpointMetadata(
        pipeline=PIPELINE,
        checkpoint_id=3,
        kind=kind,
        epoch=1,
        triggered_at=0,
        completed_at=1,
        stages=(stage,),
    )


def test_discarding_a_checkpoint_names_its_own_files_and_never_shared_ones() -> None:
    """CompletedCheckpointTest#testCleanUpOnSubsume."""
    metadata = snapshot(CheckpointKind.CHECKPOINT, "flights/chk-3/agg/manifest.parquet")
    entries = [file("flights/chk-3/agg/query/offsets/1"), file("flights/shared/agg/3/x"), file(None)]
    assert exclusive_keys(metadata, entries, folder="flights/chk-3") == [
        "flights/chk-3/agg/query/offsets/1",
        "flights/chk-3/agg/manifest.parquet",
        "flights/chk-3/_metadata",
    ]


def test_disposing_of_a_savepoint_names_everything_in_its_folder() -> None:
    metadata = snapshot(CheckpointKind.SAVEPOINT, "agg/manifest.parquet")
    keys = exclusive_keys(metadata, [file("agg/query/state/x")], folder="savepoint-flights-abcdef")
    assert keys == [
        "savepoint-flights-abcdef/agg/query/state/x",
        "savepoint-flights-abcdef/agg/manifest.parquet",
        "savepoint-flights-abcdef/_metadata",
    ]
