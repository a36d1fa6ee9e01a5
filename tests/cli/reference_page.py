"""Writes docs/reference/cli.md from the program's own help: python -m tests.cli.reference_page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import click

from dagster_ckpt.cli.app import main
from tests.root import ROOT

PAGE = ROOT / "docs" / "reference" / "cli.md"

HEAD = """\
# The command line: `dagster-ckpt`

Everything here works on the coordinator store and the checkpoint storage directly; Dagster need not run. `checkpoint`,
`savepoint`, `restore` and `fork` need the pipeline's code, so they start its Dagster job; a stream that is alive takes
a savepoint without it, and an attached program is restored by itself. This page is made from the
program's own help (`python -m tests.cli.reference_page`), and a test holds the two together.

## Where the deployment is

| option | environment | what |
|---|---|---|
| `--base DIR` | `DAGSTER_CKPT_BASE` | folder with `coordinator.db`, `checkpoints/`, `savepoints/` (`base_dir`) |
| `--store URL` | `DAGSTER_CKPT_STORE` | SQLAlchemy URL of the coordinator store; wins over `--base` |
| `--storage URI` | `DAGSTER_CKPT_STORAGE` | fsspec URI of checkpoint storage; wins over `--base` |
| `--savepoints URI` | `DAGSTER_CKPT_SAVEPOINTS` | folder for imported and adopted savepoints; wins over `--base` |
| `--url URL` | `DAGSTER_CKPT_URL` | a running Dagster webserver, for `checkpoint`, `savepoint`, `restore` and `fork` |

With none of them, `DAGSTER_HOME` says it: the resource's default place in Dagster's own storage directory.
A store that is not there is never made, except by `import`, `adopt` and `adopt-project`.

## Naming a snapshot

`latest`, a key (`chk-31`, `savepoint-7`, or just `31`), the name of a savepoint's folder, or the path or URI of any
snapshot's folder or of the `_metadata` file in it. A key needs `-p PIPELINE` where the store has several pipelines.

## Exit codes

| code | name | when |
|---|---|---|
| 0 | `FINE` | done |
| 1 | `TROUBLE` | found or failed: `verify`, `doctor`, `diff --exit-code`, a refused `preview`, a failed run |
| 2 | `USAGE` | the command can never work as it was given |
| 3 | `NOT_FOUND` | no such store, pipeline, snapshot, stage or job |
| 4 | `CORRUPT` | stored data is damaged; the message names it and the way out |
| 5 | `UNAVAILABLE` | store, storage or webserver cannot be reached, or it is unknown whether a change took effect |
| 6 | `CONFLICT` | someone else needs it or owns it; the message says who, and when it is free |

With `--json` the answer is one JSON document on standard output, an error `{"error": {"kind": …, "message": …}}`.
Progress bars and notes go to standard error, bars only to a terminal.

## Options of several commands

"""

COMMANDS = """
## Commands

All take the options that every command has; of the other shared ones, those that are named.
"""
SHARED_BY = 2
"""Commands that have an option of one text; from so many on it is described once."""
Option = tuple[str, str]
"""How an option is written, and its text."""
HELP: Option = ("-h, --help", "Show this message and exit.")
WIDTH: dict[str, Any] = {"terminal_width": 100, "max_content_width": 100}

_FLAG = re.compile(r"--?[a-z][a-z-]*")


def commands() -> dict[str, click.Command]:
    """Return every command by its name."""
    program = click.Context(main)
    found = {name: main.get_command(program, name) for name in main.list_commands(program)}
    return {name: command for name, command in found.items() if command is not None}


def context(command: click.Command, name: str) -> click.Context:
    """Return the context of a command's help at the width of the page, whatever the terminal is."""
    program = click.Context(main, info_name="dagster-ckpt", help_option_names=["-h", "--help"], **WIDTH)
    return click.Context(command, parent=program, info_name=name, **WIDTH)


def options(command: click.Command, name: str) -> list[Option]:
    """Return a command's options as its help has them."""
    there = context(command, name)
    # Not get_params: a command keeps its option --help as it was spelled when somebody first asked for it.
    records = (each.get_help_record(there) for each in command.params if isinstance(each, click.Option))
    return [(option, " ".join(text.split())) for option, text in filter(None, records)]


def shared() -> dict[Option, int]:
    """Return the options that several commands have, with the number of these."""
    counted = Counter(option for name, command in commands().items() for option in options(command, name))
    return {option: count for option, count in counted.items() if count >= SHARED_BY}


def text_of(command: click.Command, name: str) -> str:
    """Return a command's usage and text, without its options."""
    formatter = context(command, name).make_formatter()
    command.format_usage(context(command, name), formatter)
    command.format_help_text(context(command, name), formatter)
    return formatter.getvalue().strip()


def listed(found: Iterable[Option]) -> str:
    """Return options as a list."""
    return "".join(f"* `{option}`: {text}\n" for option, text in found)


def described(command: click.Command, name: str, everywhere: dict[Option, int]) -> str:
    """Return a command's chapter."""
    found = options(command, name)
    own = [option for option in found if option not in everywhere]
    others = [option for option in found if everywhere.get(option, 0) not in (0, len(commands()))]
    named = ", ".join(f"`{_FLAG.findall(option)[-1]}`" for option, _ in others)
    parts = [f"\n### {name}\n\n```text\n{text_of(command, name)}\n```\n"]
    if own or named:
        parts.append("\n" + listed(own) + (f"* {named}\n" if named else ""))
    return "".join(parts)


def page() -> str:
    """Return the whole page."""
    everywhere = shared()
    of_all = [option for option, count in everywhere.items() if count == len(commands())]
    of_some = [option for option in everywhere if option not in of_all]
    not_told = [option for option in of_all if f"`{option[0]}`" not in HEAD]
    return "".join(
        [
            HEAD,
            f"Every command also has:\n\n{listed([*not_told, HELP])}\nOf some:\n\n{listed(of_some)}",
            COMMANDS,
            *(described(command, name, everywhere) for name, command in sorted(commands().items())),
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page())
