"""The page about the command line says what the program says."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib import import_module

import click
import pytest

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
        "plan",
        "audit",
        "metrics",
        "check",
        "show",
        "verify",
        "inspect",
        "diff",
        "diff-tables",
        "preview",
    ),
    *("checkpoint", "publish", "set-aside", "savepoint", "restore", "fork", "blue-green", "replay"),
    *("dispose", "export", "import", "adopt", "adopt-project"),
    *("clean", "maintain", "requeue", "doctor", "class-archive", "run"),
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


def _printed() -> Iterator[tuple[str, str]]:
    """Yield every text of the library that names a command, a value that is only known later as ``VALUE``."""
    for file in sorted((ROOT / "dagster_ckpt").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "VALUE" for part in node.values]
                yield file.name, "".join(map(str, parts))


def test_every_command_that_the_library_prints_is_understood_as_printed() -> None:
    pattern = re.compile(r"dagster-ckpt ([a-z][a-z-]*)((?: (?:[a-z]+(?= VALUE)|-[\w-]+|[A-Z][\w.]*))*)")
    tried = [(where, *found) for where, text in _printed() for found in pattern.findall(text) if found[1]]
    assert len(tried) >= 8
    for where, name, arguments in tried:
        command = commands().get(name)
        assert command is not None, (where, name)
        try:
            command.make_context(name, shlex.split(arguments))
        except click.UsageError as error:
            pytest.fail(f"{where}: dagster-ckpt {name}{arguments}: {error.format_message()}")
        if name in ("publish", "set-aside"):
            assert " -f " in arguments, f"{where}: {name} needs the pipeline's code"
