"""An Azure account with a hierarchical namespace, played: its folders are there by themselves, and nobody is misled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_ckpt.adapters.fsspec_storage import FsspecCheckpointStorage, open_storage
from dagster_ckpt.core.paths import AlreadyExists
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import NotFound
from tests.adapters.filesystems import (
    ConditionalObjects,
    HierarchicalObjects,
    register_conditional,
    register_hierarchical,
)


@pytest.fixture
def storage() -> Iterator[FsspecCheckpointStorage]:
    register_hierarchical()
    yield open_storage("az://container/base")
    HierarchicalObjects.reset()


def folders() -> set[str]:
    return {path.removeprefix("/container/base/") for path in HierarchicalObjects.folders if "/base/" in path}


def test_folders_go_behind_the_last_object_in_them_and_others_stay(storage: FsspecCheckpointStorage) -> None:
    for key in ("p/chk-1/_metadata", "p/chk-1/orders/1/file", "p/shared/orders/1/file"):
        storage.create(key, b"x")
    storage.delete(["p/chk-1/orders/1/file", "p/chk-1/_metadata"])
    assert folders() == {"p", "p/shared", "p/shared/orders", "p/shared/orders/1"}
    storage.delete(["p/shared/orders/1/file", "p/shared/orders/1/never-was"])
    assert folders() == set()
    assert "/container/base" in HierarchicalObjects.folders, "the folder that the user names is the user's"


@pytest.mark.parametrize("lists_folders", [False, True])
def test_a_folder_is_never_listed_as_an_object(
    storage: FsspecCheckpointStorage, *, lists_folders: bool
) -> None:
    HierarchicalObjects.lists_folders = lists_folders
    HierarchicalObjects.folders |= {
        "/container/base/p",
        "/container/base/p/chk-7",
        "/container/base/p/chk-7/a",
    }
    assert list(storage.list("p")) == []
    assert list(storage.list("p/chk-7")) == []
    storage.create("p/chk-8/_metadata", b"x")
    assert [found.key for found in storage.list("")] == ["p/chk-8/_metadata"]


def test_a_folder_cannot_be_read_and_an_empty_object_can(
    storage: FsspecCheckpointStorage, tmp_path: Path
) -> None:
    empty = digest_bytes(b"")
    storage.create("p/chk-1/empty", b"")
    assert storage.read("p/chk-1/empty") == b""
    storage.fetch("p/chk-1/empty", tmp_path / "empty", empty)
    assert (tmp_path / "empty").read_bytes() == b""
    with pytest.raises(NotFound):
        storage.read("p/chk-1")
    with pytest.raises(NotFound):
        storage.fetch("p/chk-1", tmp_path / "folder", empty)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_the_name_of_a_folder_is_taken(storage: FsspecCheckpointStorage) -> None:
    storage.create("p/chk-1/_metadata", b"x")
    assert storage.create("p/chk-1", b"y") == AlreadyExists("p/chk-1")


def test_without_such_a_namespace_nothing_but_the_objects_is_removed() -> None:
    register_conditional("az")
    removed: list[str] = []
    remove = ConditionalObjects.rm_file

    def noted(self: ConditionalObjects, path: str) -> None:
        removed.append(path)
        remove(self, path)

    storage = open_storage("az://container/base")
    try:
        storage.create("p/chk-1/_metadata", b"x")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ConditionalObjects, "rm_file", noted)
            storage.delete(["p/chk-1/_metadata"])
            storage.delete(["p/chk-1/_metadata"])
    finally:
        ConditionalObjects.reset()
    asked = [path for path in removed if "dagster-ckpt-part" not in path]
    assert asked == ["/container/base/p/chk-1/_metadata"] * 2
