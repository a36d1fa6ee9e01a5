"""fork: another pipeline begins with a snapshot of this one."""

from __future__ import annotations

import click

from dagster_ckpt.cli.commands.restore import is_possible, restore_options, start
from dagster_ckpt.cli.completion import snapshots_known
from dagster_ckpt.cli.context import ExitCode, Invocation, command
from dagster_ckpt.cli.launch import LaunchTarget, launch_options
from dagster_ckpt.core.config import ClaimMode, RestoreOptions
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.core.restore_point import At
from dagster_ckpt.operations.snapshots.catalog import find_snapshot


@command("fork")
@click.argument("new_pipeline")
@click.argument("snapshot", shell_complete=snapshots_known)
@click.option("--of", "origin", default="", metavar="NAME", help="Pipeline whose snapshot it is.")
@restore_options
@launch_options
def fork(
    work: Invocation,
    *,
    new_pipeline: str,
    snapshot: str,
    origin: str,
    claim_mode: str,
    allow_non_restored_state: bool,
    allow_missing_files: bool,
    no_preview: bool,
    streaming: bool,
    target: LaunchTarget,
) -> ExitCode:
    """Start NEW_PIPELINE, which the code declares with pipeline.fork(...), from another pipeline's SNAPSHOT.

    Its queries get new ids and its tables begin with the rows of the snapshot; the original runs on.
    """
    chosen = pipeline_id(new_pipeline)
    found = find_snapshot(work.deployment, snapshot, pipeline_id(origin) if origin else None)
    options = RestoreOptions(
        restore_from=At(found.location.uri),
        claim_mode=ClaimMode(claim_mode),
        allow_non_restored_state=allow_non_restored_state,
        allow_missing_files=allow_missing_files,
        fork=True,
    )
    if not no_preview and not is_possible(work, options, chosen, target):
        return ExitCode.TROUBLE
    return start(work, options, chosen, target, streaming=streaming)
