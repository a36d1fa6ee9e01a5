"""The program ``dagster-ckpt``."""

from __future__ import annotations

import json
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

__all__ = ["main"]

_COMMANDS = (
    "list", "history", "top", "page", "metrics", "audit", "show", "verify", "inspect", "diff", "diff-tables",
    "preview", "checkpoint", "savepoint", "restore", "fork", "blue-green", "replay",
    "dispose", "export", "import", "adopt", "adopt-project", "clean", "maintain", "doctor", "class-archive",
)  # fmt: skip
_ELSEWHERE = {
    "list": "list.list_",
    "top": "history.top",
    "import": "import_.import_",
    "blue-green": "blue_green.blue_green",
    "diff-tables": "diff_tables.diff_tables_",
    "class-archive": "class_archive.class_archive",
    "adopt-project": "adopt_project.adopt_project",
}
"""Module and name, where they are not those of the command."""


class _OnDemand(click.Group):
    """Group whose commands are imported when they are asked for: ``list`` needs no Arrow, and it is run in loops."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the help page."""
        return list(_COMMANDS)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the program; wrong usage is JSON, too, where that is asked for."""
        given = [str(word) for word in (extra.get("args") or (args[0] if args else None) or sys.argv[1:])]
        if "--json" not in given or not extra.get("standalone_mode", True):
            return super().main(*args, **extra)
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
        except click.UsageError as error:
            told = {"error": {"kind": "usage", "message": error.format_message()}}
            click.echo(json.dumps(told, ensure_ascii=False))
            sys.exit(error.exit_code)
        except click.Abort:
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. Raises UsageError with the nearest there is."""
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            near = get_close_matches(args[0], _COMMANDS, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            ctx.fail(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None where there is none of that name."""
        if cmd_name not in _COMMANDS:
            return None
        module, name = _ELSEWHERE.get(cmd_name, f"{cmd_name}.{cmd_name}").split(".")
        found: Any = getattr(import_module(f"dagster_ckpt.cli.commands.{module}"), name)
        assert isinstance(found, click.Command)
        return found


@click.group(
    cls=_OnDemand,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 fine, 1 found trouble, 2 bad usage, 3 not found, 4 corrupt, 5 unavailable, 6 conflict.",
)
@click.version_option(package_name="dagster-ckpt")
def main() -> None:
    """Checkpoints and savepoints of PySpark pipelines.

    A SNAPSHOT is 'latest', a key such as chk-31 or savepoint-7, a savepoint's folder name, or the path or URI of any
    snapshot's folder.
    """
