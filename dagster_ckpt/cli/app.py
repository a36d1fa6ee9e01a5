"""The program ``dagster-ckpt``."""

from __future__ import annotations

import gc
import json
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.extensions import COMMANDS, extension, extension_names

COMMANDS_HERE = {
    "list": "what pipelines can be restored from, newest first",
    "history": "a pipeline's last checkpoints, failed ones too",
    "top": "its checkpoints live",
    "page": "the checkpoint page, as a file or served",
    "audit": "who restored, forked, swapped readers and disposed of what",
    "check": "whether the pipelines of the code could start, without Java",
    "show": "what a snapshot holds: stages, offsets, sizes, tables",
    "verify": "read every file of snapshots and compare checksums",
    "inspect": "the state a stage had at a snapshot",
    "diff": "what two snapshots differ in",
    "diff-tables": "which rows two published tables differ in",
    "preview": "what restoring a snapshot would do",
    "checkpoint": "take a checkpoint of a pipeline now",
    "publish": "publish the rows that wait for sinks",
    "set-aside": "write rows that cannot be shown to files",
    "savepoint": "take a savepoint, also to stop a stream",
    "restore": "run a pipeline from a snapshot",
    "fork": "start another pipeline from a snapshot",
    "blue-green": "compare a fork, swap readers to its tables, and back",
    "replay": "process again what came after a moment, and compare",
    "dispose": "remove a savepoint nobody needs",
    "export": "copy a snapshot as a self-contained savepoint",
    "import": "make a snapshot from elsewhere a savepoint",
    "adopt": "make Spark's own checkpoint directories a savepoint",
    "clean": "remove what checkpoints that are over have left",
    "maintain": "merge small files of tables, and remove old ones",
    "requeue": "put quarantined rows through their stage again",
    "doctor": "compare store, storage and tables; build lost records again",
}
"""In the order of the help page, each in words that fit a line of 80 columns."""
_OBJECTS_BETWEEN_COLLECTIONS = 50_000
"""Python's own 700 are a fifth of the time of a command that imports Dagster: nothing that is imported is garbage."""
_ELSEWHERE = {
    "list": "list.list_",
    "top": "history.top",
    "page": "history.page",
    "check": "verify.check",
    "checkpoint": "savepoint.checkpoint",
    "inspect": "show.inspect",
    "preview": "restore.preview",
    "publish": "maintain.publish",
    "set-aside": "maintain.set_aside",
    "audit": "history.audit",
    "clean": "maintain.clean",
    "dispose": "maintain.dispose",
    "export": "savepoint.export",
    "import": "savepoint.import_",
    "adopt": "savepoint.adopt",
    "replay": "blue_green.replay",
    "fork": "blue_green.fork",
    "blue-green": "blue_green.blue_green",
    "requeue": "maintain.requeue",
    "doctor": "verify.doctor",
    "diff-tables": "diff.diff_tables_",
}
"""Module and name, where they are not those of the command."""


class _OnDemand(click.Group):
    """Group whose commands are imported when they are asked for: ``list`` needs no Arrow, and it is run in loops."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the help page."""
        return [*COMMANDS_HERE, *extension_names(COMMANDS)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, without importing those of the library."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS_HERE.items()))
        with formatter.section("Commands of extensions"):
            formatter.write_dl([(name, _told(name)) for name in extension_names(COMMANDS)])

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the program; wrong usage is JSON, too, where that is asked for."""
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
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
        if (
            args
            and not args[0].startswith("-")
            and args[0] not in COMMANDS_HERE
            and args[0] not in (known := self.list_commands(ctx))
        ):
            near = get_close_matches(args[0], known, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            ctx.fail(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None where there is none of that name."""
        if cmd_name not in COMMANDS_HERE:
            return _of_extension(cmd_name) if cmd_name in extension_names(COMMANDS) else None
        module, name = _ELSEWHERE.get(cmd_name, f"{cmd_name}.{cmd_name}").split(".")
        found: Any = getattr(import_module(f"dagster_ckpt.cli.commands.{module}"), name)
        assert isinstance(found, click.Command)
        return found


def _of_extension(name: str) -> click.Command:
    """Return a command of an extension. Raises UsageError for one that cannot be imported, or is none."""
    try:
        found = extension(COMMANDS, name)
    except InvalidRequest as error:
        raise click.UsageError(str(error)) from error
    if not isinstance(found, click.Command):
        raise click.UsageError(f"{name!r} of {COMMANDS} is no command made with click: tell its author")
    return found


def _told(name: str) -> str:
    """Return a command's line of the help page; what is the matter, where it cannot be had."""
    try:
        return _of_extension(name).get_short_help_str(limit=60)
    except click.UsageError as error:
        return error.message


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
