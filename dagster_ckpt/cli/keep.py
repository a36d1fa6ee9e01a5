"""export, import, adopt, dispose: savepoints that come, move and go."""

from __future__ import annotations

import time
from pathlib import Path

import click

from dagster_ckpt.cli.dagster_partitions import savepoint_added, savepoint_removed
from dagster_ckpt.cli.frame import Work, command, key_values, label_option, pipeline_option
from dagster_ckpt.cli.locations import StoreExpectation
from dagster_ckpt.cli.output import size
from dagster_ckpt.core.ids import BatchId, StageUid, pipeline_id, stage_uid
from dagster_ckpt.operations.adopt import adopt_checkpoint
from dagster_ckpt.operations.catalog import find_snapshot
from dagster_ckpt.operations.dispose import dispose_savepoint, plan_disposal
from dagster_ckpt.operations.export import CopyChanges, export_snapshot
from dagster_ckpt.operations.registration import ImportMode, import_snapshot


@command("export")
@click.argument("snapshot")
@click.argument("target")
@pipeline_option
@label_option
def export(
    work: Work,
    *,
    snapshot: str,
    target: str,
    pipeline: str,
    name: str | None,
    note: str | None,
    labels: tuple[str, ...],
) -> None:
    """Copy a SNAPSHOT to TARGET (any fsspec URI) as a self-contained savepoint; every file is verified."""
    found = find_snapshot(work.deployment, snapshot, pipeline_id(pipeline) if pipeline else None)
    changes = CopyChanges(name=name, note=note, labels=key_values("--label", labels))
    with work.output.progress(f"exporting {found.key}") as progress:
        done = export_snapshot(
            found.stored, work.locations.open_storage(target), changes=changes, progress=progress
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
    work.output.say(f"{found.key} copied to {done.uri} ({done.files} files, {size(done.bytes)})")


@command("import")
@click.argument("uri")
@click.option("--no-copy", is_flag=True, help="Leave its files where they are; it must stay there.")
@click.option(
    "--target", default="", metavar="URI", help="Folder for the copy; default: the savepoint folder."
)
@label_option
def import_(
    work: Work,
    *,
    uri: str,
    no_copy: bool,
    target: str,
    name: str | None,
    note: str | None,
    labels: tuple[str, ...],
) -> None:
    """Make the snapshot at URI a savepoint of this deployment; every file is verified."""
    with work.output.progress("importing") as progress:
        done = import_snapshot(
            work.opened(StoreExpectation.MAY_BEGIN),
            uri,
            mode=ImportMode.REFERENCE if no_copy else ImportMode.COPY,
            target=target,
            name=name,
            note=note,
            labels=key_values("--label", labels),
            progress=progress,
        )
    savepoint_added(done.pipeline, done.key)
    work.output.result(done)
    work.output.say(f"{done.key} of pipeline {done.pipeline}: {done.location.uri} ({size(done.bytes)})")


@command("adopt")
@click.argument("pipeline")
@click.argument("stages", nargs=-1, required=True, metavar="STAGE=DIR...")
@click.option(
    "--batch", type=click.IntRange(min=0), default=None, help="Committed batch; default: the newest."
)
@click.option(
    "--target", default="", metavar="URI", help="Folder to write below; default: the savepoint folder."
)
@label_option
def adopt(
    work: Work,
    *,
    pipeline: str,
    stages: tuple[str, ...],
    batch: int | None,
    target: str,
    name: str | None,
    note: str | None,
    labels: tuple[str, ...],
) -> None:
    """Make Spark's own checkpoint directories a savepoint of PIPELINE.

    DIR is the checkpointLocation of a query, as a local path; it is only read. The query is best stopped first.
    """
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
            name=name or "",
            note=note or "",
            labels=key_values("--label", labels),
            progress=progress,
        )
    savepoint_added(done.savepoint.pipeline, done.savepoint.key)
    work.output.result(done)
    work.output.say(f"{done.savepoint.key}: {done.savepoint.location.uri} ({size(done.savepoint.bytes)})")
    for one in done.stages:
        work.output.say(f"  {one.uid}: batch {one.batch_id} of query {one.query_id}, {one.files} files")
        if one.begun_batch is not None:
            work.output.say(
                f"  {one.uid}: batch {one.begun_batch} was begun and not committed; it will run again"
            )


@command("dispose")
@click.argument("savepoint")
@pipeline_option
@click.option("--yes", is_flag=True, help="Do it; without this it is only said what would go.")
def dispose(work: Work, *, savepoint: str, pipeline: str, yes: bool) -> None:
    """Remove a SAVEPOINT; refused while a pipeline needs it. Without --yes nothing is changed."""
    plan = plan_disposal(work.deployment, savepoint, pipeline_id(pipeline) if pipeline else None)
    left = f"; {len(plan.unknown)} files in its folder that it does not name stay" if plan.unknown else ""
    what = f"{plan.key} at {plan.location.uri}: {len(plan.keys)} files, {size(plan.bytes)}{left}"
    if not yes:
        work.output.result({"dry_run": True, "plan": plan})
        work.output.say(f"would remove {what}\nrepeat with --yes to do it")
        return
    with work.output.progress(f"removing {plan.key}") as progress:
        done = dispose_savepoint(work.deployment, plan, progress=progress)
    if plan.is_recorded:
        savepoint_removed(plan.pipeline, plan.key)
    work.output.result({"dry_run": False, "plan": plan, "done": done})
    work.output.say(f"removed {what}")
