"""Checkpoints in the coordinator store: how sizes are written, and what is too large."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.in_store import StorageKind, StoreLimits, is_in_store, size_text
from dagster_ckpt.errors import InvalidRequest

MB = 1024**2
LIMITS = StoreLimits(per_object=5 * MB, per_checkpoint=50 * MB)


@pytest.mark.parametrize(
    ("given", "means"),
    [("5 mb", 5 * MB), ("64KB", 64 * 1024), ("1 m", MB), (" 900 b ", 900), ("900", 900), (900, 900)],
)
def test_a_size_is_read_as_flink_reads_one(given: object, means: int) -> None:
    assert CheckpointConfig.of(store_max_object_size=given).store_max_object_size == means


@pytest.mark.parametrize("given", ["5 apples", "mb", "-5 mb", "0", "65 mb", "1.5.0 mb"])
def test_a_size_that_means_nothing_or_no_row_may_have_is_refused(given: str) -> None:
    with pytest.raises(InvalidRequest, match="store_max_object_size: "):
        CheckpointConfig.of(store_max_object_size=given)


@pytest.mark.parametrize(
    ("count", "text"),
    [(900, "900 b"), (1024, "1 kb"), (5 * MB, "5 mb"), (int(6.1 * MB), "6.1 mb"), (2 * 1024**3, "2 gb")],
)
def test_a_size_is_told_as_settings_spell_it(count: int, text: str) -> None:
    assert size_text(count) == text


def test_what_is_just_as_large_as_it_may_be_fits() -> None:
    assert LIMITS.refusal([5 * MB] * 10) == ""
    assert LIMITS.refusal([5 * MB], others=45 * MB) == ""
    assert LIMITS.refusal([]) == ""


def test_a_refusal_says_how_large_it_was_the_limit_and_the_way_out() -> None:
    assert LIMITS.refusal([10, 6 * MB]) == (
        "a file of 6 mb (6291456 bytes) does not fit into the coordinator store, where store_max_object_size is "
        "5 mb: set checkpoint_storage to filesystem and checkpoint_dir to a folder or bucket, or raise the limit; "
        "the previous checkpoint stays"
    )
    assert "a checkpoint of 50 mb (52428801 bytes)" in LIMITS.refusal([1], others=50 * MB)
    assert "store_max_checkpoint_size is 50 mb" in LIMITS.refusal([5 * MB] * 11)


def test_only_a_pipeline_whose_checkpoints_are_in_the_store_has_limits() -> None:
    assert CheckpointConfig.of(store_max_object_size="1 kb").store_limits is None
    limits = CheckpointConfig.of(checkpoint_storage="store", store_max_object_size="1 kb").store_limits
    assert limits == StoreLimits(per_object=1024, per_checkpoint=50 * MB)


def test_flinks_word_for_it_is_known_and_others_are_refused() -> None:
    assert CheckpointConfig.of(checkpoint_storage="jobmanager").checkpoint_storage is StorageKind.STORE
    with pytest.raises(InvalidRequest, match="checkpoint_storage: Input should be 'filesystem' or 'store'"):
        CheckpointConfig.of(checkpoint_storage="memory")


def test_savepoints_have_no_folder_in_the_store() -> None:
    with pytest.raises(InvalidRequest, match="savepoint_dir: the coordinator store holds checkpoints only"):
        CheckpointConfig.of(savepoint_dir="store://savepoints")


def test_a_folder_called_store_is_not_the_store() -> None:
    assert is_in_store("store://checkpoints/sales/chk-1")
    assert not is_in_store("store")
    assert not is_in_store("/data/store://x")
