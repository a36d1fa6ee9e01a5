"""The setting ``checkpoint_storage``: what it makes of the resource's storages, folders and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt import CheckpointCoordinatorResource
from dagster_ckpt.core.paths import CHECKPOINTS_IN_STORE
from dagster_ckpt.errors import InvalidRequest
from tests.spark.epoch.small_pipeline import shop


def resource(folder: Path, **settings: Any) -> CheckpointCoordinatorResource:
    return CheckpointCoordinatorResource(base_dir=str(folder), **settings)


def test_checkpoints_go_where_the_pipeline_says_and_else_where_the_resource_says(tmp_path: Path) -> None:
    small, large = shop(tmp_path, checkpoint_storage="store"), shop(tmp_path)
    folder = f"file://{tmp_path}/checkpoints"
    plain, in_store = resource(tmp_path), resource(tmp_path, checkpoint_storage="jobmanager")
    assert [plain.storage(p).base_uri for p in (small, large)] == [CHECKPOINTS_IN_STORE, folder]
    assert in_store.storage(large).base_uri == CHECKPOINTS_IN_STORE
    assert in_store.storage(shop(tmp_path, checkpoint_storage="filesystem")).base_uri == folder
    assert plain.deployment(small).storage.base_uri == CHECKPOINTS_IN_STORE
    assert plain.deployment().storage.base_uri == folder


def test_what_one_storage_of_a_deployment_writes_the_other_reads(tmp_path: Path) -> None:
    made = resource(tmp_path, checkpoint_storage="store")
    made.storage().create("shop/chk-1/_metadata", b"content")
    there = made.deployment().open_storage("store://checkpoints/shop")
    assert there.read("chk-1/_metadata") == b"content"


def test_no_folder_for_savepoints_is_made_up_where_nobody_chose_one(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """Flink: JobManagerCheckpointStorage has no default savepoint directory either."""
    bare = CheckpointCoordinatorResource(checkpoint_storage="store")
    bare.use_instance(instance)
    assert bare.checkpoint_config(shop(tmp_path)).savepoint_dir == ""
    with pytest.raises(InvalidRequest, match="name a target"):
        bare.deployment().savepoint_storage()
    assert resource(tmp_path, checkpoint_storage="store").resolved_savepoint_dir == f"{tmp_path}/savepoints"
    named = CheckpointCoordinatorResource(checkpoint_storage="store", savepoint_dir="s3://keep")
    assert named.resolved_savepoint_dir == "s3://keep"


def test_a_folder_in_the_store_is_refused_with_the_setting_that_is_meant(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="set checkpoint_storage to store"):
        resource(tmp_path, checkpoint_dir="store://checkpoints").storage()
    with pytest.raises(InvalidRequest, match="checkpoint_storage: Input should be 'filesystem' or 'store'"):
        resource(tmp_path, checkpoint_storage="tape").storage()
