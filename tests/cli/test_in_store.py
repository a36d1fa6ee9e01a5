"""The program on a deployment whose checkpoints are in the coordinator store."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatus
from tests.cli.conftest import Program
from tests.operations.world import BASE, World

URI = "store://checkpoints"


@pytest.fixture
def kept(world: World) -> World:
    """Three checkpoints in the store, the first of which is over and has left its files."""
    assert isinstance(world.store, SqlCoordinatorStore)
    world.storages[BASE] = world.store.checkpoint_storage()
    for number in (1, 2, 3):
        world.checkpoint(number)
    return world


def test_snapshots_are_listed_shown_and_verified_by_key_and_by_uri(kept: World, run: Program) -> None:
    rows = run.json("list", "-p", "sales")
    assert [row["uri"] for row in rows] == [f"{URI}/sales/chk-{n}" for n in (3, 2, 1)]
    for name in ("chk-2", f"{URI}/sales/chk-2", f"{URI}/sales/chk-2/_metadata"):
        assert run.json("show", name)["uri"] == f"{URI}/sales/chk-2"
        assert run.json("verify", name)[0]["problems"] == []
    folders = run.json("list", "--from-storage", "--storage", URI)
    assert [folder["uri"] for folder in folders] == [f"{URI}/sales/chk-{n}" for n in (1, 2, 3)]


def test_doctor_and_clean_look_into_the_store(kept: World, run: Program) -> None:
    assert "healthy" in run("doctor", "--storage", URI).stdout
    kept.over(1, CheckpointStatus.SUBSUMED)
    found = run.json("doctor", "--storage", URI)["findings"]
    assert [f["kind"] for f in found] == ["orphaned"]
    before = {o.key for o in kept.storage.list("sales")}
    done = run.json("clean", "--storage", URI, "--yes")["done"][0]
    gone = before - {o.key for o in kept.storage.list("sales")}
    assert gone
    assert done["files"] == len(gone)
    assert "healthy" in run("doctor", "--storage", URI).stdout
    kept.storage.delete(["sales/chk-2/_metadata"])
    assert run.json("doctor", "--storage", URI, code=1)["findings"][0]["kind"] == "missing"


def test_a_checkpoint_is_exported_to_a_folder_imported_elsewhere_and_never_into_the_store(
    kept: World, run: Program, tmp_path: Path
) -> None:
    done = run.json("export", "chk-3", str(tmp_path / "usb"))
    assert done["uri"].startswith(f"file://{tmp_path}/usb/savepoint-sales-")
    there = Program(tmp_path / "other")
    brought = there.json("import", done["uri"])
    assert there.json("verify", brought["location"]["folder"])[0]["problems"] == []
    for refused in (
        run("export", "chk-3", "store://exports", code=2),
        run("import", done["uri"], "--target", "store://savepoints", code=2),
    ):
        assert "a savepoint is yours to keep and needs a folder or bucket outside of it" in refused.output
    assert list(kept.store.checkpoint_storage("store://exports").list("")) == []  # type: ignore[attr-defined]


def test_without_a_store_nothing_is_made_up(run: Program, base: Path, tmp_path: Path) -> None:
    refused = run("list", "--from-storage", "--storage", URI, code=3)
    assert "there is no coordinator store" in refused.output
    assert not base.exists()
