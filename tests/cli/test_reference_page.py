"""The page about the command line says what the program says."""

from __future__ import annotations

import tomllib
from importlib import import_module

from dagster_ckpt.cli.app import main
from tests.cli.conftest import Program
from tests.cli.reference_page import PAGE, commands, page
from tests.root import ROOT

COMMANDS = [
    *(
        "list",
        "history",
        "top",
        "page",
        "audit",
        "metrics",
        "show",
        "verify",
        "inspect",
        "diff",
        "diff-tables",
        "preview",
    ),
    *("checkpoint", "publish", "set-aside", "savepoint", "restore", "fork", "blue-green", "replay"),
    *("dispose", "export", "import", "adopt", "adopt-project"),
    *("clean", "maintain", "doctor", "class-archive"),
]


def test_the_page_is_the_programs_own_help() -> None:
    assert PAGE.read_text() == page(), "write it anew: python -m tests.cli.reference_page"


def test_every_command_is_there_and_takes_json() -> None:
    assert sorted(commands()) == sorted(COMMANDS)
    for name, command in commands().items():
        assert "as_json" in {parameter.name for parameter in command.params}, name


def test_every_command_and_option_is_explained() -> None:
    for name, command in commands().items():
        assert command.help, name


def test_the_programs_name_leads_to_it() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    module, _, function = document["project"]["scripts"]["dagster-ckpt"].partition(":")
    assert getattr(import_module(module), function) is main


def test_help_of_every_command_is_printed(run: Program) -> None:
    for name in COMMANDS:
        assert f"main {name}" in run.bare(name, "--help").stdout
