"""savepoint, checkpoint: taken by the pipeline's job."""

from __future__ import annotations

import click

from dagster_ckpt.cli.context import ExitCode, Invocation, command, label_option
from dagster_ckpt.cli.launch import Launched, LaunchTarget, ended, launch_options, launched, of_program
from dagster_ckpt.core.ids import CheckpointId, PipelineId, pipeline_id
from dagster_ckpt.core.model import CheckpointKind, LabelChanges, SnapshotLabel
from dagster_ckpt.core.request import CheckpointRequest, SnapshotScope
from dagster_ckpt.dagster.names import (
    SAVEPOINT_OP,
    STARTED_BY_TAG,
    SavepointAction,
    savepoint_job_name,
)
from dagster_ckpt.operations.snapshots.catalog import absolute_uri, snapshot_of_run

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
