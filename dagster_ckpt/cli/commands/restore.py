"""restore, preview: a run of the pipeline's job from a snapshot, and what that would do."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from dagster_ckpt.cli.code_location import CodeOptions, code_options, declared_in, job_in, resources_in
from dagster_ckpt.cli.context import ExitCode, Invocation, command, pipeline_option, snapshots_known
from dagster_ckpt.cli.launch import LaunchTarget, ended, launch_options, launched, of_program
from dagster_ckpt.cli.output import Output, show_positions
from dagster_ckpt.core.config import ClaimMode, RestoreOptions
from dagster_ckpt.core.ids import PipelineId, pipeline_id
from dagster_ckpt.core.restore_point import restore_point
from dagster_ckpt.core.units import counted, size
from dagster_ckpt.dagster.names import (
    COORDINATOR_KEY,
    RESTORE_OP,
    RESTORE_TAG,
    STARTED_BY_TAG,
    STREAM_OP,
    epoch_job_name,
    restore_job_name,
    streaming_job_name,
)
from dagster_ckpt.errors import NotFound
from dagster_ckpt.operations.restores.parts import TablePreview
from dagster_ckpt.operations.restores.preview import RestorePreview, preview_restore
from dagster_ckpt.operations.snapshots.catalog import absolute, find_snapshot

if TYPE_CHECKING:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


keep_rows_of_option = click.option(
    "--keep-rows-of",
    metavar="UID",
    multiple=True,
    help="Only of this sink, which cannot go back, or begin as a fork's; may be repeated.",
)


@command("preview")
@click.argument("snapshot", default="latest")
@pipeline_option
@click.option(
    "--fork-of", default="", metavar="NAME", help="The snapshot is this pipeline's, and --pipeline forks it."
)
@click.option(
    "--claim-mode", type=click.Choice([m.value for m in ClaimMode]), default="no_claim", show_default=True
)
@click.option("--allow-non-restored-state", is_flag=True, help="Drop state of stages that are gone.")
@click.option("--allow-missing-files", is_flag=True, help="Leave out rows of files that are gone.")
@click.option("--keep-rows", is_flag=True, help="Leave rows in tables that came after the restore point.")
@keep_rows_of_option
@click.option(
    "--files-only",
    is_flag=True,
    help="With the code: answer at once, without starting its queries on a copy.",
)
@code_options
def preview(
    work: Invocation,
    *,
    snapshot: str,
    pipeline: str,
    fork_of: str,
    claim_mode: str,
    allow_non_restored_state: bool,
    allow_missing_files: bool,
    keep_rows: bool,
    keep_rows_of: tuple[str, ...],
    files_only: bool,
    code: CodeOptions,
) -> ExitCode:
    """Preview the restore of SNAPSHOT. Exit code 1 when it would be refused.

    With the pipeline's code (-m, -f or -w) its stages are compared as they are now, and every query is started on a
    copy, with Spark, into a null sink: that finds a query which cannot go on from the snapshot's state. Without the
    code, stages are compared as they last ran.
    """
    options = RestoreOptions(
        restore_from=restore_point(snapshot),
        claim_mode=ClaimMode(claim_mode),
        allow_non_restored_state=allow_non_restored_state,
        allow_missing_files=allow_missing_files,
        roll_back_tables=not keep_rows,
        keep_rows_of=keep_rows_of,
        fork=bool(fork_of),
    )
    chosen = pipeline_id(pipeline) if fork_of and pipeline else work.pipeline(pipeline)
    declared = declared_in(code, chosen)
    snapshot_of = pipeline_id(fork_of) if fork_of else None
    found = _previewed(work, options, chosen, declared, code, snapshot_of=snapshot_of)
    if declared and found.is_possible and not files_only and not options.fork:
        with work.output.busy("starting every query on a copy"):
            found = _with_queries_tried(work, found, options, declared, code)
    work.output.result(found)
    show_preview(work.output, found)
    return ExitCode.FINE if found.is_possible else ExitCode.TROUBLE


def _previewed(
    work: Invocation,
    options: RestoreOptions,
    pipeline: PipelineId,
    declared: CheckpointedPipeline | None,
    code: CodeOptions,
    *,
    snapshot_of: PipelineId | None = None,
) -> RestorePreview:
    """Return the preview; the code's own sinks are asked whether they can show, or begin with, such rows."""
    previewed = partial(
        preview_restore,
        work.deployment,
        options,
        pipeline,
        graph=declared.graph if declared else None,
        hooks=declared.hook_uids if declared else None,
        code=declared,
        snapshot_of=snapshot_of,
    )
    if declared is None:
        return previewed()
    try:
        with resources_in(code, restore_job_name(pipeline), [COORDINATOR_KEY]) as resources:
            return previewed(coordinator=getattr(resources, COORDINATOR_KEY))
    except NotFound:  # the code has no job that says where tables are
        return previewed()


def _with_queries_tried(
    work: Invocation,
    found: RestorePreview,
    options: RestoreOptions,
    pipeline: CheckpointedPipeline,
    code: CodeOptions,
) -> RestorePreview:
    """Return the preview after a trial with the resources of the code location."""
    import dagster as dg

    from dagster_ckpt.dagster.jobs.gate import with_queries_tried

    job = job_in(code, restore_job_name(pipeline.name))
    snapshot = find_snapshot(work.deployment, options.restore_from, pipeline.name)
    with dg.build_resources(dict(job.resource_defs)) as resources:
        coordinator = getattr(resources, COORDINATOR_KEY)
        return with_queries_tried(found, resources, pipeline, coordinator, snapshot)


def show_preview(output: Output, found: RestorePreview) -> None:
    """Show what a restore would do."""
    verdict = "can be restored" if found.is_possible else "CANNOT be restored"
    output.say(f"{found.snapshot} {verdict} as pipeline {found.pipeline} ({size(found.bytes)} of state)")
    for refusal in found.refusals:
        output.say(f"  refused: {refusal}")
    for warning in found.warnings:
        output.say(f"  note: {warning}")
    stages = [
        (s.uid, s.fate, s.saved_uid, s.batch_id, s.partitions and f"{s.partitions[0]} -> {s.partitions[1]}",
         size(s.bytes))
        for s in found.stages
    ]  # fmt: skip
    output.table("stages", ("stage", "gets", "state of", "batch>", "partitions", "size>"), stages)
    replays = [
        (r.stage, r.step.source, r.step.start, r.step.end, r.step.number, r.batches) for r in found.replay
    ]
    if replays:
        title = f"read again, up to {found.compared_with}"
        output.table(title, ("stage", "source", "from", "to", "units>", "batches>"), replays)
    show_positions(output, found.positions)
    if found.tables:
        output.table(
            "tables", ("stage", "table", "what happens"), [(t.stage, t.uri, _fate(t)) for t in found.tables]
        )
    if found.hooks:
        output.table("hooks", ("hook", "gets"), [(h.uid, h.fate) for h in found.hooks])
    if found.schemas:
        rows = [(m.stage, m.what, m.saved, m.current) for m in found.schemas]
        output.table("state that is kept in another way now", ("stage", "what", "saved", "now"), rows)


def _fate(t: TablePreview) -> str:
    parts = [str(t.fate)]
    if t.rows_leaving:
        leave = "leaves" if t.rows_leaving == 1 else "leave"
        verb = "past the restore point" if t.fate == "keeps_rows" else leave
        parts.append(f"{counted(t.rows_leaving, 'row')} {verb}")
    if t.rows_returning:
        parts.append(f"{counted(t.rows_returning, 'row comes back', 'rows come back')}")
    if t.message:
        parts.append(t.message)
    return "; ".join(parts)


def restore_options(function: Any) -> Any:
    """Add how to restore."""
    for option in (
        keep_rows_of_option,
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
    found = _previewed(work, options, pipeline, declared, target.code)
    if not found.is_possible:
        work.output.result({"preview": found, "run": None})
        show_preview(work.output, found)
    return found.is_possible


def start(
    work: Invocation, options: RestoreOptions, pipeline: PipelineId, target: LaunchTarget, *, streaming: bool
) -> ExitCode:
    """Start the pipeline's job from the snapshot the options name; an extension restores what no job runs."""
    if not (target.url or target.code.is_given):
        done = of_program(work, pipeline, options)
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
