"""Writes docs/reference/cli.md from the program's own help: python -m tests.cli.reference_page."""

from __future__ import annotations

import click

from dagster_ckpt.cli.app import main
from tests.root import ROOT

PAGE = ROOT / "docs" / "reference" / "cli.md"

HEAD = """\
# The command line: `dagster-ckpt`

Everything here works on the coordinator store and the checkpoint storage directly; Dagster need not run. `checkpoint`,
`savepoint`, `restore` and `fork` need the pipeline's code, so they start its Dagster job. This page is made from the
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

## Commands
"""


def help_of(command: click.Command, name: str) -> str:
    """Return a command's help at the width of the page, whatever the terminal is."""
    width = {"terminal_width": 100, "max_content_width": 100}
    program = click.Context(main, info_name="dagster-ckpt", help_option_names=["-h", "--help"], **width)
    return command.get_help(click.Context(command, parent=program, info_name=name, **width))


def commands() -> dict[str, click.Command]:
    """Return every command by its name."""
    program = click.Context(main)
    found = {name: main.get_command(program, name) for name in main.list_commands(program)}
    return {name: command for name, command in found.items() if command is not None}


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for name, command in sorted(commands().items()):
        parts.append(f"\n### {name}\n\n```text\n{help_of(command, name)}\n```\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
