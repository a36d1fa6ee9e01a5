"""The page about the command line says what the program says."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from copy import copy
from importlib import import_module
from itertools import takewhile
from pathlib import Path

import click

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
        "upgrade",
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


LIBRARY = ROOT / "dagster_ckpt"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NO_COMMAND = ("here", "itself")
"""Words behind the program's name where the package is meant."""


def texts_of(source: Path) -> Iterator[str]:
    """Yield the texts of a module as it says them, ``X1`` for what is put in."""
    code = source.read_text()
    nodes = [*ast.walk(ast.parse(code))] if "dagster-ckpt" in code else []
    whole = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    parts = {id(value) for node in whole for value in node.values}
    for joined in whole:
        yield "".join(str(v.value) if isinstance(v, ast.Constant) else "X1" for v in joined.values)
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def printed_commands() -> set[str]:
    """Return every command in texts of the library, and in blocks of pages."""
    found = set()
    for source in LIBRARY.rglob("*.py"):
        for text in texts_of(source):
            found |= set(re.findall(r"dagster-ckpt ([a-z][^.,;:()'\"`\n]*)", text))
    for each in PAGES:
        text = each.read_text().replace("\\\n", " ")
        found |= set(re.findall(r"^(?:\$ )?dagster-ckpt ([a-z].*)", text, re.MULTILINE))
    return {" ".join(text.split()) for text in found if text.split()[0] not in NO_COMMAND}


def wrong_in(text: str) -> str:
    """Return why a command is none that the program takes; its name alone is only spoken of. Empty: it takes it."""
    name, *words = takewhile(lambda word: word not in ("|", ">", "&&"), shlex.split(text, comments=True))
    command = copy(
        main.get_command(click.Context(main), name)
    )  # it keeps its option --help, once asked for it
    if command is None:
        return f"no command {name!r}"
    context = click.Context(command)
    try:
        given, _, _ = command.make_parser(context).parse_args([*words])
    except click.UsageError as error:
        return error.message
    needed = [str(one.name) for one in command.params if one.required]
    if name in ("publish", "set-aside") and words and " -f " not in text:
        return "without the code of the pipeline"
    unset = [name for name in needed if not isinstance(given.get(name), str | tuple)]
    return f"without {unset[0]}" if words and unset else ""


def test_every_command_that_is_printed_is_one_that_the_program_takes() -> None:
    commands = printed_commands()
    assert len(commands) > 60
    assert {text: why for text in sorted(commands) if (why := wrong_in(text))} == {}
    assert all(map(wrong_in, ("clean --bse /data shop", "nothing shop", "restore -p shop")))
