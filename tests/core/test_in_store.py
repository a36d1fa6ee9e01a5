"""Checkpoints in the coordinator store: how sizes are written, and what is too large."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.paths import STORE_LIMITS, StorageKind, is_in_store, size_text
from dagster_ckpt.errors import InvalidRequest

MB = 1024**2


@pytest.mark.parametrize(
    ("count", "text"),
    [(900, "900 b"), (1024, "1 kb"), (5 * MB, "5 mb"), (int(6.1 * MB), "6.1 mb"), (2 * 1024**3, "2 gb")],
)
def test_a_size_is_told_as_people_say_it(count: int, text: str) -> None:
    assert size_text(count) == text


def test_what_is_just_as_large_as_it_may_be_fits() -> None:
    assert STORE_LIMITS.refusal([5 * MB] * 10) == ""
    assert STORE_LIMITS.refusal([5 * MB], others=45 * MB) == ""
    assert STORE_LIMITS.refusal([]) == ""


def test_a_refusal_says_how_large_it_was_the_limit_and_the_way_out() -> None:
    assert STORE_LIMITS.refusal([10, 6 * MB]) == (
        "a file of 6 mb (6291456 bytes) does not fit into the coordinator store, which holds files of up to 5 mb: "
        "set checkpoint_storage to filesystem and checkpoint_dir to a folder or bucket; "
        "the previous checkpoint stays"
    )
    assert "a checkpoint of 50 mb (52428801 bytes)" in STORE_LIMITS.refusal([1], others=50 * MB)
    assert "holds checkpoints of up to 50 mb" in STORE_LIMITS.refusal([5 * MB] * 11)


def test_only_a_pipeline_whose_checkpoints_are_in_the_store_has_limits() -> None:
    assert CheckpointConfig.of().store_limits is None
    assert CheckpointConfig.of(checkpoint_storage="store").store_limits == STORE_LIMITS


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
