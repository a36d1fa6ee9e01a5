"""export, import, adopt: a snapshot copied to another place; one from elsewhere or Spark's own made a savepoint."""

from __future__ import annotations

import re
import time
from pathlib import Path

import click

from dagster_ckpt.cli.context import (
    ExitCode,
    Invocation,
    StoreExpectation,
    command,
    key_values,
    label_option,
    pipeline_option,
    snapshots_known,
)
from dagster_ckpt.cli.launch import of_program, savepoint_added
from dagster_ckpt.core.ids import BatchId, StageUid, pipeline_id, stage_uid
from dagster_ckpt.core.model import LabelChanges, SnapshotLabel
from dagster_ckpt.core.units import counted, size
from dagster_ckpt.errors import NotFound
from dagster_ckpt.operations.snapshots.adopt import adopt_checkpoint
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


@command("adopt")
@click.argument("pipeline")
@click.argument("stages", nargs=-1, metavar="STAGE=DIR...")
@click.option(
    "--batch", type=click.IntRange(min=0), default=None, help="Committed batch; default: the newest."
)
@click.option(
    "--target", default="", metavar="URI", help="Folder to write below; default: the savepoint folder."
)
@label_option
def adopt(
    work: Invocation,
    *,
    pipeline: str,
    stages: tuple[str, ...],
    batch: int | None,
    target: str,
    label: LabelChanges,
) -> ExitCode | None:
    """Make Spark's own checkpoint directories a savepoint of PIPELINE.

    DIR is the checkpointLocation of a query, as a local path; it is only read. The query is best stopped first.

    Of a program (`adopt job.py`) it shows, as a diff, the same program with decorators. Nothing is run or changed.
    """
    file = Path(pipeline)
    if not stages and file.suffix == ".py":
        if not file.is_file():
            raise NotFound(f"there is no file {pipeline}")
        return of_program(work, pipeline_id(re.sub(r"\W+", "_", file.stem)), file)
    if not stages:
        raise click.UsageError(
            "give STAGE=DIR: each stage and its query's checkpointLocation; or a program, job.py"
        )
    directories = {
        StageUid(stage_uid(uid)): Path(folder) for uid, folder in key_values("STAGE=DIR", stages).items()
    }
    with work.output.progress("adopting") as progress:
        done = adopt_checkpoint(
            work.opened(StoreExpectation.MAY_BEGIN),
            pipeline=pipeline_id(pipeline),
            directories=directories,
            now=time.time(),
            target=target,
            batch_id=None if batch is None else BatchId(batch),
            label=label.applied_to(SnapshotLabel()),
            progress=progress,
        )
    savepoint_added(done.savepoint.pipeline, done.savepoint.key)
    work.output.result(done)
    work.output.say(f"{done.savepoint.key}: {done.savepoint.location.uri} ({size(done.savepoint.bytes)})")
    for one in done.stages:
        work.output.say(
            f"  {one.uid}: batch {one.batch_id} of query {one.query_id}, {counted(one.files, 'file')}"
        )
        if one.uncommitted_batch is not None:
            work.output.say(
                f"  {one.uid}: batch {one.uncommitted_batch} was begun and not committed; it will run again"
            )
    return None
