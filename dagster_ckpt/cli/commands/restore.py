"""restore: a run of the pipeline's job from a snapshot."""

from __future__ import annotations

from typing import Any

import click

from dagster_ckpt.cli.code_location import declared_in
from dagster_ckpt.cli.commands.preview import show_preview
from dagster_ckpt.cli.context import ExitCode, Invocation, command, pipeline_option, snapshots_known
from dagster_ckpt.cli.launch import LaunchTarget, ended, launch_options, launched
from dagster_ckpt.core.config import ClaimMode, RestoreOptions
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.restore_point import restore_point
from dagster_ckpt.dagster.names import (
    RESTORE_OP,
    RESTORE_TAG,
    STARTED_BY_TAG,
    STREAM_OP,
    epoch_job_name,
    streaming_job_name,
)
from dagster_ckpt.extensions import PROGRAMS, extension, extension_names
from dagster_ckpt.operations.restores.preview import preview_restore
from dagster_ckpt.operations.snapshots.catalog import absolute


def restore_options(function: Any) -> Any:
    """Add how to restore."""
    for option in (
        click.option("--streaming", is_flag=True, help="Start the streaming job."),
        click.option("--no-preview", is_flag=True, help="Do not look first whether the restore can be made right."),
        click.option("--allow-non-restored-state", is_flag=True, help="Drop state of stages that are gone."),
        click.option("--allow-missing-files", is_flag=True,
                     help="Leave out rows of files that are gone, which sources would read again."),
        click.option("--claim-mode", type=click.Choice([m.value for m in ClaimMode]), default="no_claim",
                     show_default=True, help="Who owns the snapshot afterwards."),
    ):  # fmt: skip
        function = option(function)
    return function


@command("restore")
@click.argument("snapshot", shell_complete=snapshots_known)
@pipeline_option
@click.option("--keep-rows", is_flag=True, help="Leave rows in tables that came after the restore point.")
@click.option(
    "--keep-rows-of",
    metavar="UID",
    multiple=True,
    help="Leave them in the table of this sink only, which cannot go back; may be repeated.",
)
@restore_options
@launch_options
def restore(
    work: Invocation,
    *,
    snapshot: str,
    pipeline: str,
    keep_rows: bool,
    keep_rows_of: tuple[str, ...],
    claim_mode: str,
    allow_non_restored_state: bool,
    allow_missing_files: bool,
    no_preview: bool,
    streaming: bool,
    target: LaunchTarget,
) -> ExitCode:
    """Run a pipeline from SNAPSHOT. Where store and storage are given, it is previewed and may be refused first."""
    chosen = work.pipeline(pipeline)
    options = RestoreOptions(
        restore_from=absolute(
            restore_point(snapshot), work.locations.open_storage
        ),  # the run may be in another folder
        claim_mode=ClaimMode(claim_mode),
        allow_non_restored_state=allow_non_restored_state,
        allow_missing_files=allow_missing_files,
        roll_back_tables=not keep_rows,
        keep_rows_of=keep_rows_of,
    )
    if not no_preview and not is_possible(work, options, chosen, target):
        return ExitCode.TROUBLE
    return start(work, options, chosen, target, streaming=streaming)


def is_possible(
    work: Invocation, options: RestoreOptions, pipeline: PipelineId, target: LaunchTarget
) -> bool:
    """Return whether a restore would be made, and say why where it would not; True where the store is out of reach."""
    if not work.locations.is_given:
        return True  # the run itself decides
    declared = declared_in(target.code, pipeline)
    found = preview_restore(
        work.deployment,
        options,
        pipeline,
        graph=declared.graph if declared else None,
        hooks=declared.hook_uids if declared else None,
        code=declared,
    )
    if not found.is_possible:
        work.output.result({"preview": found, "run": None})
        show_preview(work.output, found)
    return found.is_possible


def start(
    work: Invocation, options: RestoreOptions, pipeline: PipelineId, target: LaunchTarget, *, streaming: bool
) -> ExitCode:
    """Start the pipeline's job from the snapshot the options name; an extension restores what no job runs."""
    if not (target.url or target.code.is_given):
        for name in extension_names(PROGRAMS):
            done: ExitCode | None = extension(PROGRAMS, name)(work, pipeline, options)
            if done is not None:
                return done
    config = {
        "restore_from": str(options.restore_from),
        "claim_mode": options.claim_mode.value,
        "allow_non_restored_state": options.allow_non_restored_state,
        "roll_back_tables": options.roll_back_tables,
        "fork": options.fork,
        **({"keep_rows_of": list(options.keep_rows_of)} if options.keep_rows_of else {}),
        **({"allow_missing_files": True} if options.allow_missing_files else {}),
    }
    job = streaming_job_name(pipeline) if streaming else epoch_job_name(pipeline)
    op = STREAM_OP if streaming else RESTORE_OP
    tags = {STARTED_BY_TAG: "dagster-ckpt restore", RESTORE_TAG: str(options.restore_from)}
    run = launched(work, target, job, op, config=config, tags=tags)
    return ended(work, run)
