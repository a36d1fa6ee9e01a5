"""What a stranger types: options that would change nothing are refused by name, and every answer fits and says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dagster_ckpt.cli import app
from dagster_ckpt.core.units import duration
from tests.cli.conftest import Program
from tests.operations.world import World


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("blue-green swap sales --only day=2026-11-17", "--only is for compare, and says nothing to swap"),
        ("blue-green back sales --exit-code", "--exit-code is for compare, and says nothing to back"),
        ("blue-green compare sales --allow-stale", "--allow-stale is for swap, and says nothing to compare"),
        ("blue-green show sales --approved x", "--approved is for swap, and says nothing to show"),
        ("verify chk-1 --all", "chk-1 is named beside --all, which reads everything: give one"),
        ("list --from-storage --history", "--history asks the store, and --from-storage the storage alone"),
        ("list --pipelines --history", "--history is about snapshots, and --pipelines lists pipelines"),
        ("checkpoint sales -f x.py --detach", "--detach is for a run through a webserver: give --url"),
        ("restore latest -f x.py --no-preview --timeout 3", "--timeout is for a run through a webserver"),
        ("savepoint sales -f x.py --location y", "--location is for a run through a webserver"),
        ("checkpoint sales --url localhost --timeout -1", "'--timeout': -1.0 is not in the range x>=0"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(
    run: Program, world: World, words: str, said: str
) -> None:
    world.checkpoint(1)
    assert said in " ".join(run(*words.split(), code=2).stderr.split())


def test_a_webserver_of_the_environment_beside_code_is_told_by_its_name(
    run: Program, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.checkpoint(1)
    monkeypatch.setenv("DAGSTER_CKPT_URL", "localhost:3000")
    told = run("checkpoint", "sales", "-f", "x.py", code=2).stderr
    assert "DAGSTER_CKPT_URL of the environment" in told


def test_what_is_in_the_storage_is_listed_of_one_pipeline(run: Program, world: World) -> None:
    world.checkpoint(1)
    world.checkpoint(2)
    assert len(run.json("list", "--from-storage")) == 2
    assert len(run.json("list", "--from-storage", "-p", "sales", "--limit", "1")) == 1
    assert json.loads(run("list", "--from-storage", "-p", "other", "--json").stdout) == []


def test_the_list_of_pipelines_fits_80_columns(
    run: Program, world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    world.checkpoint(1)
    world.savepoint(2)
    told = run("list", "--pipelines").stdout.splitlines()
    assert told[0].split() == ["pipeline", "status", "latest", "taken", "kept", "savepoints", "pending"]
    assert max(map(len, told)) <= 80
    assert "attempt" in run("list", "--pipelines", "--long").stdout


def test_the_help_of_the_program_tells_every_command_in_whole_words_at_80_columns(
    run: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    told = run.bare("--help").stdout.splitlines()
    commands = told[told.index("Commands:") + 1 : told.index("", told.index("Commands:"))]
    assert len(commands) == len(app.COMMANDS_HERE), "one line each"
    assert max(map(len, told)) <= 80
    assert not any("..." in line for line in commands)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("audit -p nobody", 3, "knows no pipeline 'nobody'"),
        ("show /nowhere", 3, "file:///nowhere is no checkpoint or savepoint: it has no _metadata file"),
        ("import /nowhere", 3, "none lies in the root of the file system: check the path"),
        ("checkpoint sales --url 127.0.0.1:1", 5, "the webserver at 127.0.0.1:1 cannot be reached: "),
    ],
)
def test_a_mistake_is_told_in_one_line(run: Program, world: World, words: str, code: int, said: str) -> None:
    world.checkpoint(1)
    told = run(*words.split(), code=code).stderr
    assert said in told
    assert len(told.splitlines()) == 1


def test_where_nothing_is_stored_that_is_said(run: Program, world: World, tmp_path: Path) -> None:
    world.store.pipelines()
    assert run("list").stdout == "no snapshot: nothing has run\n"
    world.write(world.record())
    assert run("list", "--history").stdout == "no snapshot of 1 pipeline: sales\n"
    world.checkpoint(1)
    told = run.bare("list", "--from-storage", "--storage", str(tmp_path / "empty")).stdout
    assert told == f"no snapshot is stored there: {tmp_path / 'empty'}\n"
    assert "(the same moment)" in run("diff", "latest", "latest").stdout


def test_what_no_person_has_to_act_upon_is_not_called_healthy(run: Program, world: World) -> None:
    world.live("totals")
    told = run("doctor").stdout
    assert "overdue" in told
    assert told.endswith("nobody has to act\n")


def test_a_snapshot_of_a_clock_that_was_ahead_is_not_taken_now(
    run: Program, world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world.checkpoint(1)
    monkeypatch.setattr("time.time", lambda: -3 * 86_400.0)
    for words in ("list", "list --pipelines", "history -p sales"):
        assert "3 d ahead" in run(*words.split()).stdout
    run("page", "-p", "sales", "-o", str(tmp_path / "page.html"))
    assert "3 d ahead" in (tmp_path / "page.html").read_text()


def test_a_clock_that_was_set_back_within_a_checkpoint_leaves_no_duration() -> None:
    assert duration(-3_600.0) == "-"
