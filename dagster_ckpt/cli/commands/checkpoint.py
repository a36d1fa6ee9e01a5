"""checkpoint: taken at once by the pipeline's job."""

from __future__ import annotations

import click

from dagster_ckpt.cli.commands.savepoint import taken_by
from dagster_ckpt.cli.context import ExitCode, Invocation, command
from dagster_ckpt.cli.launch import LaunchTarget, ended, launch_options, launched
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.core.request import SnapshotScope
from dagster_ckpt.dagster.names import SAVEPOINT_OP, STARTED_BY_TAG, SavepointAction, savepoint_job_name


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
    run = launched(
        work,
        target,
        savepoint_job_name(chosen),
        SAVEPOINT_OP,
        config={
            "action": SavepointAction.CHECKPOINT.value,
            "scope": _scope(full=full, incremental=incremental).value,
        },
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
