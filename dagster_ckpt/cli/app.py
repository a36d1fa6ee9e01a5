"""The program ``dagster-ckpt``."""

from __future__ import annotations

import click

from dagster_ckpt.cli.commands.adopt import adopt
from dagster_ckpt.cli.commands.checkpoint import checkpoint
from dagster_ckpt.cli.commands.clean import clean
from dagster_ckpt.cli.commands.diff import diff
from dagster_ckpt.cli.commands.dispose import dispose
from dagster_ckpt.cli.commands.doctor import doctor
from dagster_ckpt.cli.commands.export import export
from dagster_ckpt.cli.commands.fork import fork
from dagster_ckpt.cli.commands.history import history, top
from dagster_ckpt.cli.commands.import_ import import_
from dagster_ckpt.cli.commands.inspect import inspect
from dagster_ckpt.cli.commands.list import list_
from dagster_ckpt.cli.commands.maintain import maintain
from dagster_ckpt.cli.commands.page import page
from dagster_ckpt.cli.commands.preview import preview
from dagster_ckpt.cli.commands.restore import restore
from dagster_ckpt.cli.commands.savepoint import savepoint
from dagster_ckpt.cli.commands.show import show
from dagster_ckpt.cli.commands.verify import verify

__all__ = ["main"]


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 fine, 1 found trouble, 2 bad usage, 3 not found, 4 corrupt, 5 unavailable, 6 conflict.",
)
@click.version_option(package_name="dagster-ckpt")
def main() -> None:
    """Checkpoints and savepoints of PySpark pipelines.

    A SNAPSHOT is 'latest', a key such as chk-31 or savepoint-7, a savepoint's folder name, or the path or URI of any
    snapshot's folder.
    """


for _command in (
    list_, history, top, page, show, verify, inspect, diff, preview,
    checkpoint, savepoint, restore, fork,
    dispose, export, import_, adopt, clean, maintain, doctor,
):  # fmt: skip
    main.add_command(_command)
