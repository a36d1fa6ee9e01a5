"""import: a snapshot from elsewhere becomes a savepoint of this deployment."""

from __future__ import annotations

import click

from dagster_ckpt.cli.context import Invocation, command, label_option
from dagster_ckpt.cli.dagster_partitions import savepoint_added
from dagster_ckpt.cli.locations import StoreExpectation
from dagster_ckpt.core.model import LabelChanges
from dagster_ckpt.core.units import size
from dagster_ckpt.operations.snapshots.registration import ImportMode, import_snapshot


@command("import")
@click.argument("uri")
@click.option("--no-copy", is_flag=True, help="Leave its files where they are; it must stay there.")
@click.option(
    "--target", default="", metavar="URI", help="Folder for the copy; default: the savepoint folder."
)
@label_option
def import_(
    work: Invocation,
    *,
    uri: str,
    no_copy: bool,
    target: str,
    label: LabelChanges,
) -> None:
    """Make the snapshot at URI a savepoint of this deployment; every file is verified."""
    with work.output.progress("importing") as progress:
        done = import_snapshot(
            work.opened(StoreExpectation.MAY_BEGIN),
            uri,
            mode=ImportMode.REFERENCE if no_copy else ImportMode.COPY,
            target=target,
            label=label,
            progress=progress,
        )
    savepoint_added(done.pipeline, done.key)
    work.output.result(done)
    work.output.say(f"{done.key} of pipeline {done.pipeline}: {done.location.uri} ({size(done.bytes)})")
