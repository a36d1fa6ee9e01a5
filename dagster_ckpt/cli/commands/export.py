"""export, import: a snapshot copied to another place, and one from elsewhere made a savepoint of this deployment."""

from __future__ import annotations

import click

from dagster_ckpt.cli.completion import snapshots_known
from dagster_ckpt.cli.context import Invocation, command, label_option, pipeline_option
from dagster_ckpt.cli.dagster_partitions import savepoint_added
from dagster_ckpt.cli.locations import StoreExpectation
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.core.model import LabelChanges
from dagster_ckpt.core.units import counted, size
from dagster_ckpt.operations.snapshots.catalog import FoundSnapshot, find_snapshot
from dagster_ckpt.operations.snapshots.export import CopyChanges, export_snapshot
from dagster_ckpt.operations.snapshots.plan_facts import write_facts
from dagster_ckpt.operations.snapshots.registration import ImportMode, import_snapshot


@command("export")
@click.argument("snapshot", shell_complete=snapshots_known)
@click.argument("target")
@pipeline_option
@click.option(
    "--facts",
    is_flag=True,
    help="Write a small file with what `plan` compares, and no state, rows or credentials.",
)
@label_option
def export(
    work: Invocation,
    *,
    snapshot: str,
    target: str,
    pipeline: str,
    facts: bool,
    label: LabelChanges,
) -> None:
    """Copy a SNAPSHOT to TARGET (any fsspec URI) as a self-contained savepoint; every file is verified."""
    found = find_snapshot(work.deployment, snapshot, pipeline_id(pipeline) if pipeline else None)
    if facts:
        if label != LabelChanges():
            raise click.UsageError("--name, --note and --label are of copies, and --facts copies nothing")
        _export_facts(work, found, target)
        return
    with work.output.progress(f"exporting {found.key}") as progress:
        done = export_snapshot(
            found.stored,
            work.deployment.savepoint_storage(target),
            changes=CopyChanges(label=label),
            progress=progress,
        )
    work.output.result(
        {
            "uri": done.uri,
            "key": found.key,
            "files": done.files,
            "bytes": done.bytes,
            "metadata": done.metadata,
        }
    )
    work.output.say(f"{found.key} copied to {done.uri} ({counted(done.files, 'file')}, {size(done.bytes)})")


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


def _export_facts(work: Invocation, found: FoundSnapshot, target: str) -> None:
    written = write_facts(work.deployment, found, target)
    work.output.result({"uri": target, "key": found.key, "bytes": written})
    work.output.say(f"facts of {found.key} written to {target} ({size(written)})")
