"""The program ``dagster-ckpt``."""

from __future__ import annotations

import click

from dagster_ckpt.cli.keep import adopt, dispose, export, import_
from dagster_ckpt.cli.look import diff, list_, preview, show, verify
from dagster_ckpt.cli.run import fork, restore, savepoint
from dagster_ckpt.cli.state import inspect
from dagster_ckpt.cli.tidy import clean, doctor

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
    list_, show, verify, inspect, diff, preview,
    savepoint, restore, fork,
    dispose, export, import_, adopt, clean, doctor,
):  # fmt: skip
    main.add_command(_command)
