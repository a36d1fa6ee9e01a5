"""What a calling program can tell from the exit code, and that the page about it says the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dagster_ckpt.cli.context import ExitCode, exit_code_of
from dagster_ckpt.errors import (
    CheckpointError,
    Corrupt,
    Declined,
    Fenced,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from dagster_ckpt.operations.deployment import InUse
from tests.cli.conftest import Program
from tests.operations.care.test_dispose import restored_from
from tests.operations.world import SALES, World
from tests.root import ROOT


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest, 2),
        (NotFound, 3),
        (Corrupt, 4),
        (Unavailable, 5),
        (OutcomeUnknown, 5),
        (Fenced, 6),
        (InUse, 6),
        (Declined, 1),
    ],
)
def test_every_error_has_its_exit_code(error: type[CheckpointError], code: int) -> None:
    assert exit_code_of(error("because")) == code


def test_no_error_of_the_library_is_without_an_exit_code() -> None:
    def below(kind: type) -> set[type]:
        return {kind, *(found for sub in kind.__subclasses__() for found in below(sub))}

    ours = {kind for kind in below(CheckpointError) if kind.__module__.startswith("dagster_ckpt.")}
    assert all(exit_code_of(kind("because")) is not ExitCode.FINE for kind in ours)


def test_bad_usage_is_2(run: Program, world: World) -> None:
    world.checkpoint(1)
    assert "No such command" in run.bare("frobnicate", code=2).stderr
    assert "NAME=VALUE" in run("list", "--storage-option", "endpoint", code=2).stderr
    assert "say where the checkpoints are" in run.bare("list", code=2).stderr
    assert "names no snapshot" in run("show", "none", code=2).stderr
    assert "is a checkpoint" in run("dispose", "chk-1", code=2).stderr


def test_what_is_not_there_is_3(run: Program, world: World) -> None:
    assert "no coordinator store" in run("list", code=3).stderr
    world.checkpoint(1)
    assert "There are: chk-000001" in run("show", "chk-9", code=3).stderr
    assert "no stage 'nobody'" in run("inspect", "latest", "nobody", "--tables", code=3).stderr
    assert "There are: sales" in run("list", "-p", "nobody", code=3).stderr


def test_a_store_that_is_not_there_is_not_made(run: Program, base: Path) -> None:
    run("list", code=3)
    assert not base.exists()


def test_what_is_damaged_is_4(run: Program, world: World, base: Path) -> None:
    world.checkpoint(1)
    metadata = base / "checkpoints/sales/chk-1/_metadata"
    metadata.chmod(0o644)
    metadata.write_text("{")
    assert "not complete JSON" in run("show", "latest", code=4).stderr


def test_a_store_that_is_no_database_is_4(run: Program, base: Path) -> None:
    base.mkdir()
    (base / "coordinator.db").write_text("this is no database" * 100)
    run("list", code=4)


def test_what_cannot_be_reached_is_5(run: Program) -> None:
    """Port 9 of this machine: nobody listens there."""
    failed = run.bare("savepoint", "sales", "--url", "http://127.0.0.1:9", code=5)
    assert "cannot be reached" in failed.stderr


def test_what_somebody_needs_is_6(run: Program, world: World) -> None:
    from dagster_ckpt.core.config import ClaimMode

    world.savepoint(1)
    restored_from(world, SALES, ClaimMode.NO_CLAIM)
    assert "still needed" in run("dispose", "savepoint-1", "--yes", code=6).stderr


def test_an_error_is_json_too(run: Program, world: World) -> None:
    world.checkpoint(1)
    found = run.json("show", "chk-9", code=3)
    assert found["error"]["kind"] == "not_found"
    assert "chk-9" in found["error"]["message"]


def test_the_page_lists_the_exit_codes_as_they_are() -> None:
    page = (ROOT / "docs/reference/cli.md").read_text()
    rows = dict(re.findall(r"^\| (\d) \| `(\w+)` \|", page, flags=re.MULTILINE))
    assert {int(number): name for number, name in rows.items()} == {
        code.value: code.name for code in ExitCode
    }
