"""checkpoint, savepoint, restore and fork start the pipeline's job, in this process or through a real webserver."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import web_server
from tests.cli.conftest import Program
from tests.operations.world import World
from tests.root import ROOT

FILE = str(Path(__file__).with_name("location.py"))


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NOTES", str(tmp_path / "notes.json"))
    return tmp_path / "notes.json"


def noted(notes: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(notes.read_text())
    return found


# --- in this process ----------------------------------------------------------------------------------------


def test_a_savepoint_is_taken_by_the_pipelines_job(run: Program, notes: Path) -> None:
    done = json.loads(
        run.bare(
            *("savepoint", "sales", "-f", FILE, "--json"),
            *("--name", "before", "--note", "ask", "--label", "a=b", "--target", "/backup"),
        ).stdout
    )
    assert done["run"]["status"] == "SUCCESS"
    found = noted(notes)
    assert found["job"] == "sales_savepoint"
    assert found["config"] == {
        "target": "file:///backup",
        "name": "before",
        "note": "ask",
        "labels": {"a": "b"},
    }


@pytest.mark.parametrize(
    ("options", "scope"), [((), "configured"), (("--full",), "full"), (("--incremental",), "incremental")]
)
def test_a_checkpoint_is_taken_by_the_pipelines_job(
    run: Program, notes: Path, options: tuple[str, ...], scope: str
) -> None:
    done = json.loads(run.bare("checkpoint", "sales", "-f", FILE, "--json", *options).stdout)
    assert done["run"]["status"] == "SUCCESS"
    assert done["checkpoint"] is None, "no store was named"
    found = noted(notes)
    assert (found["job"], found["config"]) == (
        "sales_savepoint",
        {"action": "checkpoint", "scope": scope},
    )


def test_a_checkpoint_is_full_or_incremental_and_not_both(run: Program, notes: Path) -> None:
    refused = run.bare("checkpoint", "sales", "-f", FILE, "--full", "--incremental", code=2)
    assert "give one of --full and --incremental" in refused.stderr
    assert not notes.exists()


@pytest.mark.parametrize(("how", "drain"), [("suspend", False), ("drain", True)])
def test_a_stream_is_stopped_with_a_savepoint_by_the_savepoint_job(
    run: Program, notes: Path, how: str, drain: bool
) -> None:
    run.bare("savepoint", "sales", "-f", FILE, "--stop", how)
    found = noted(notes)
    assert (found["job"], found["config"]["action"], found["config"]["drain"]) == (
        "sales_savepoint",
        "stop",
        drain,
    )


def test_a_run_that_fails_says_why_and_ends_with_1(run: Program, notes: Path) -> None:
    failed = run.bare("savepoint", "sales", "-f", FILE, "--note", "fail", code=1)
    assert "savepoint: the disk of the savepoint folder is full" in failed.stdout
    assert notes.exists()


def test_a_restore_is_previewed_and_then_started_with_its_options(
    run: Program, world: World, notes: Path
) -> None:
    world.checkpoint(1)
    run("restore", "chk-1", "-f", FILE, "--claim-mode", "legacy", "--keep-rows")
    found = noted(notes)
    assert found["job"] == "sales"
    assert found["config"] == {
        "restore_from": "chk-1",
        "claim_mode": "legacy",
        "allow_non_restored_state": False,
        "roll_back_tables": False,
        "fork": False,
    }
    assert found["tags"]["dagster_ckpt/restore_from"] == "chk-1"
    run("restore", "latest", "-f", FILE, "--streaming")
    assert noted(notes)["job"] == "sales_streaming"


def test_a_restore_that_would_be_refused_is_not_started(
    run: Program, world: World, base: Path, notes: Path
) -> None:
    world.checkpoint(1)
    next((base / "checkpoints").rglob("manifest.parquet")).unlink()
    refused = run("restore", "chk-1", "-f", FILE, code=1)
    assert "CANNOT be restored" in refused.stdout
    assert not notes.exists()
    run("restore", "chk-1", "-f", FILE, "--no-preview")
    assert notes.exists()


def test_a_fork_is_started_from_the_other_pipelines_snapshot_by_its_place(
    run: Program, world: World, base: Path, notes: Path
) -> None:
    stored = world.savepoint(1)
    run("fork", "sales_fork", "savepoint-1", "--of", "sales", "-f", FILE)
    found = noted(notes)
    assert found["job"] == "sales_fork"
    assert found["config"]["fork"] is True
    assert found["config"]["restore_from"] == f"file://{base}/savepoints/{stored.folder}"


def test_a_preview_reads_the_stages_from_the_code(run: Program, world: World) -> None:
    world.checkpoint(1)
    found = run.json("preview", "chk-1", "-f", FILE, "--files-only")
    assert {s["uid"]: s["fate"] for s in found["stages"]} == {"totals": "restored", "written": "new"}
    assert found["warnings"] == []


def test_code_is_found_by_module_and_by_workspace_file(
    run: Program, tmp_path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    run.bare("savepoint", "sales", "-m", "tests.cli.location")
    notes.unlink()
    workspace = tmp_path / "workspace.yaml"
    workspace.write_text(
        f"load_from:\n  - python_file:\n      relative_path: {FILE}\n      attribute: defs\n"
    )
    run.bare("savepoint", "sales", "-w", str(workspace))
    notes.unlink()
    workspace.write_text("load_from:\n  - python_module: tests.cli.location\n")
    run.bare("savepoint", "sales", "-w", str(workspace))
    assert notes.exists()


def test_code_that_is_not_there_or_lacks_the_job_is_named(run: Program, tmp_path: Path) -> None:
    assert "the pipeline's code is needed" in run.bare("savepoint", "sales", code=2).stderr
    assert "give one of" in run.bare("savepoint", "sales", "-f", FILE, "-m", "x", code=2).stderr
    assert "not both" in run.bare("savepoint", "sales", "-f", FILE, "--url", "http://x", code=2).stderr
    assert "cannot be imported" in run.bare("savepoint", "sales", "-m", "no_such_module_here", code=2).stderr
    assert "name the pipeline without -p" in run.bare("savepoint", "-p", "sales", "-f", FILE, code=2).stderr
    assert (
        "nowhere.py is not there: give the file"
        in run.bare("savepoint", "sales", "-f", "nowhere.py", code=2).stderr
    )
    assert "no Dagster workspace" in run.bare("savepoint", "sales", "-w", "nowhere.yaml", code=2).stderr
    (tmp_path / "grpc.yaml").write_text("load_from:\n  - grpc_server:\n      port: 4000\n")
    assert "grpc_server" in run.bare("savepoint", "sales", "-w", str(tmp_path / "grpc.yaml"), code=2).stderr
    missing = run.bare("savepoint", "purchases", "-f", FILE, code=3)
    assert "It has: sales, sales_fork, sales_savepoint, sales_streaming" in missing.stderr


def test_a_pipeline_the_code_does_not_declare_is_not_previewed(run: Program, world: World) -> None:
    world.checkpoint(1)
    failed = run("preview", f"{world.storage.base_uri}/sales/chk-1", "-p", "nobody", "-f", FILE, code=3)
    assert "declares no pipeline 'nobody'" in failed.stderr


# --- through a webserver ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def webserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Dagster's webserver on the code location, and where its jobs write."""
    folder = tmp_path_factory.mktemp("webserver")
    at_once = "run_coordinator:\n  module: dagster._core.run_coordinator\n  class: DefaultRunCoordinator\n"
    (folder / "dagster.yaml").write_text(f"telemetry:\n  enabled: false\n{at_once}")
    environment = {**os.environ, "DAGSTER_HOME": str(folder), "NOTES": str(folder / "notes.json")}
    port = web_server.free_port()
    command = [sys.executable, "-m", "dagster_webserver", "-f", FILE, "-h", "127.0.0.1", "-p", str(port)]
    with web_server.started(command, folder / "log", env=environment, cwd=ROOT) as server:
        url = f"http://127.0.0.1:{port}"
        web_server.wait_until_it_answers(url, server, folder / "log")
        yield url, folder / "notes.json"


def there(url: str) -> tuple[str, ...]:
    return ("--url", url, "--timeout", "3000")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_job_is_started_through_the_webserver_and_waited_for(
    run: Program, webserver: tuple[str, Path]
) -> None:
    url, written = webserver
    done = json.loads(run.bare("savepoint", "sales", *there(url), "--note", "remote", "--json").stdout)
    assert done["run"]["status"] == "SUCCESS"
    assert done["run"]["where"] == f"{url}/runs/{done['run']['run_id']}"
    assert noted(written)["config"]["note"] == "remote"
    assert "FAILURE" in run.bare("savepoint", "sales", *there(url), "--note", "fail", code=1).stdout


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_webserver_is_not_waited_for_when_nobody_wants_to(
    run: Program, webserver: tuple[str, Path]
) -> None:
    url, _ = webserver
    started = json.loads(run.bare("savepoint", "sales", "--url", url, "--detach", "--json").stdout)
    assert started["run"]["status"] != "FAILURE"
    assert started["run"]["run_id"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_job_the_webserver_does_not_have_is_not_found(run: Program, webserver: tuple[str, Path]) -> None:
    url, _ = webserver
    assert (
        "has no job 'purchases_savepoint'" in run.bare("savepoint", "purchases", "--url", url, code=3).stderr
    )
