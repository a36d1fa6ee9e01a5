"""savepoint, checkpoint, export, import, adopt: snapshots taken by a job, copied, or come from elsewhere."""

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
from dagster_ckpt.cli.launch import (
    Launched,
    LaunchTarget,
    ended,
    launch_options,
    launched,
    of_program,
    savepoint_added,
)
from dagster_ckpt.core.ids import BatchId, CheckpointId, PipelineId, StageUid, pipeline_id, stage_uid
from dagster_ckpt.core.model import CheckpointKind, LabelChanges, SnapshotLabel
from dagster_ckpt.core.request import CheckpointRequest, SnapshotScope
from dagster_ckpt.core.units import counted, size
from dagster_ckpt.dagster.names import (
    SAVEPOINT_OP,
    STARTED_BY_TAG,
    SavepointAction,
    savepoint_job_name,
)
from dagster_ckpt.errors import NotFound
from dagster_ckpt.operations.snapshots.adopt import adopt_checkpoint
from dagster_ckpt.operations.snapshots.catalog import (
    FoundSnapshot,
    absolute_uri,
    find_snapshot,
    snapshot_of_run,
)
from dagster_ckpt.operations.snapshots.export import CopyChanges, export_snapshot, write_facts
from dagster_ckpt.operations.snapshots.registration import ImportMode, import_snapshot

_KINDS = {
    None: CheckpointKind.SAVEPOINT,
    "suspend": CheckpointKind.SYNC_SAVEPOINT_SUSPEND,
    "drain": CheckpointKind.SYNC_SAVEPOINT_TERMINATE,
}


@command("savepoint")
@click.argument("pipeline")
@click.option(
    "--target", "folder", default="", metavar="URI", help="Folder to write below; default: the resource's."
)
@click.option(
    "--stop",
    type=click.Choice(["suspend", "drain"]),
    default=None,
    help="End the running stream with it; drain: process what the sources have read to the end first.",
)
@label_option
@launch_options
def savepoint(
    work: Invocation,
    *,
    pipeline: str,
    folder: str,
    stop: str | None,
    label: LabelChanges,
    target: LaunchTarget,
) -> ExitCode:
    """Take a savepoint of PIPELINE: by the stream that is alive, or with job <pipeline>_savepoint (--stop: and end)."""
    chosen = pipeline_id(pipeline)
    place = absolute_uri(folder, work.locations.open_storage) if folder else ""  # the run may be elsewhere
    said = {"target": place, **label.applied_to(SnapshotLabel()).fields()}
    answer = asked_here(work, chosen, CheckpointRequest(kind=_KINDS[stop], **said), target)
    if answer is not None:
        return answer
    tags = {STARTED_BY_TAG: "dagster-ckpt savepoint"}
    if stop is not None:
        said |= {"action": SavepointAction.STOP.value, "drain": stop == "drain"}
    run = launched(work, target, savepoint_job_name(chosen), SAVEPOINT_OP, config=said, tags=tags)
    newest = taken_by(work, chosen, run)
    if newest is not None:
        work.output.say(f"{newest['key']}: {newest['uri']}")
    return ended(work, run, savepoint=newest)


def asked_here(
    work: Invocation, pipeline: PipelineId, request: CheckpointRequest, target: LaunchTarget
) -> ExitCode | None:
    """Take a snapshot without a job: by the stream that is alive, or of a program that is not; None: neither is one."""
    if target.url or target.code.is_given or not work.locations.is_given:
        return None
    done = asked_of_stream(work, pipeline, request)
    if done is not None or request.kind.is_synchronous:
        return done
    return of_program(work, pipeline, request)


def asked_of_stream(work: Invocation, pipeline: PipelineId, request: CheckpointRequest) -> ExitCode | None:
    """Let the stream that is alive take a snapshot, whichever program runs it; None: there is none."""
    from dagster_ckpt.dagster.runs.turn import request_from_running_stream

    taken = request_from_running_stream(
        work.deployment.store, pipeline, request, open_storage=work.locations.open_storage
    )
    if taken is None:
        return None
    work.output.snapshot(request.kind, CheckpointId(taken.checkpoint_id), taken.uri)
    return ExitCode.FINE


def taken_by(work: Invocation, pipeline: PipelineId, run: Launched) -> dict[str, str] | None:
    """Return the snapshot that the run took or asked for, where the store is within reach."""
    if run.status != "SUCCESS" or not work.locations.is_given:
        return None
    taken = snapshot_of_run(work.deployment, pipeline, run.run_id)
    return None if taken is None else {"key": taken.key, "uri": taken.uri}


@command("checkpoint")
@click.argument("pipeline")
@click.option("--full", is_flag=True, help="Upload everything, so that it builds on no other checkpoint.")
@click.option(
    "--incremental", is_flag=True, help="Upload only what is new, even where that is not configured."
)
@launch_options
def checkpoint(
    work: Invocation, *, pipeline: str, full: bool, incremental: bool, target: LaunchTarget
) -> ExitCode:
    """Take a checkpoint of PIPELINE now, with the job <pipeline>_savepoint: of its stream, or of the idle pipeline."""
    if full and incremental:
        raise click.UsageError("give one of --full and --incremental")
    chosen = pipeline_id(pipeline)
    scope = _scope(full=full, incremental=incremental)
    answer = asked_here(work, chosen, CheckpointRequest(scope=scope), target)
    if answer is not None:
        return answer
    run = launched(
        work,
        target,
        savepoint_job_name(chosen),
        SAVEPOINT_OP,
        config={"action": SavepointAction.CHECKPOINT.value, "scope": scope.value},
        tags={STARTED_BY_TAG: "dagster-ckpt checkpoint"},
    )
    taken = taken_by(work, chosen, run)
    if taken is not None:
        work.output.say(f"{taken['key']}: {taken['uri']}")
    return ended(work, run, checkpoint=taken)


def _scope(*, full: bool, incremental: bool) -> SnapshotScope:
    if full:
        return SnapshotScope.FULL
    return SnapshotScope.INCREMENTAL if incremental else SnapshotScope.CONFIGURED


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
