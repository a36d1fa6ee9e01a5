"""What is created is readable by nobody whom the process' umask, or the store's own rule, keeps out."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_ckpt.adapters.fsspec_storage import open_storage
from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.spark.files import link_or_copy, replace_whole


@pytest.fixture(params=[0o022, 0o077], ids=["022", "077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    mask: int = request.param
    before = os.umask(mask)
    yield mask
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """Mode bits of everything below a folder."""
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def test_a_sqlite_store_and_its_folder_are_for_their_owner_alone(tmp_path: Path, umask: int) -> None:
    store = SqlCoordinatorStore(url(tmp_path / "deep" / "base" / "coordinator.db"))
    store.compare_and_set(PipelineId("sales"), 0, "{}")
    found = modes(tmp_path)
    assert found["base"] == 0o700
    files = {name: mode for name, mode in found.items() if name.startswith("coordinator.db")}
    assert files
    assert set(files.values()) == {0o600}
    store.close()


def test_a_store_and_a_folder_that_are_there_keep_their_modes(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o770)
    (folder / "coordinator.db").touch()
    (folder / "coordinator.db").chmod(0o660)
    store = SqlCoordinatorStore(url(folder / "coordinator.db"))
    store.compare_and_set(PipelineId("sales"), 0, "{}")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o770
    assert {m for name, m in modes(folder).items() if name.startswith("coordinator.db")} == {0o660}
    store.close()


def test_checkpoints_and_working_files_have_the_mode_the_process_gives_files(
    tmp_path: Path, umask: int
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"rows")
    storage = open_storage(str(tmp_path / "checkpoints"))
    storage.create("sales/chk-1/_metadata", b"{}")
    storage.create("sales/shared/a", source)
    work = tmp_path / "work"
    work.mkdir()
    storage.fetch("sales/shared/a", work / "fetched", digest_bytes(b"rows"))
    replace_whole(work / "replaced", b"")
    link_or_copy(source, work / "linked")
    for path in (tmp_path / "checkpoints", *(tmp_path / "checkpoints").rglob("*"), *work.iterdir()):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & umask == 0, path
        assert mode == (0o777 if path.is_dir() else 0o666) & ~umask, path
