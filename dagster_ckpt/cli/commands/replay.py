"""replay: a fork runs from the nearest snapshot before a moment, into side tables, and is compared."""

from __future__ import annotations

import click

from dagster_ckpt.cli.commands.blue_green import forked
from dagster_ckpt.cli.completion import pipelines_known
from dagster_ckpt.cli.context import ExitCode, Invocation, command, key_values
from dagster_ckpt.cli.launch import LaunchTarget, ended, launch_options, launched
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.core.units import moment
from dagster_ckpt.operations.readers.replay import plan_replay


@command("replay")
@click.argument("pipeline", shell_complete=pipelines_known)
@click.argument("since")
@click.option(
    "--only", "only", multiple=True, metavar="COLUMN=TEXT", help="Compare only such rows; may be repeated."
)
@click.option("--again", is_flag=True, help="Set the side tables of an earlier replay aside first.")
@click.option(
    "--plan", is_flag=True, help="Only say what it would begin with; needs the code (-m, -f or -w)."
)
@launch_options
def replay(
    work: Invocation,
    *,
    pipeline: str,
    since: str,
    only: tuple[str, ...],
    again: bool,
    plan: bool,
    target: LaunchTarget,
) -> ExitCode:
    """Process again what came after SINCE, with the job <pipeline>_care of the fork PIPELINE, into its side tables.

    SINCE is a moment (2026-11-17, '2026-11-17 14:00+01:00'; UTC where it does not say), for the nearest checkpoint or
    savepoint of its origin before it; or a snapshot. It runs to the end of what has arrived, and compares the side
    tables with those that readers find. To adopt it: blue-green swap, or restore the origin from the same snapshot.
    """
    from dagster_ckpt.dagster.names import CARE_OP, CONCURRENCY_TAG, CareAction, care_job_name

    name = pipeline_id(pipeline)
    narrowed = key_values("--only", only)
    if plan:
        with forked(name, target.code) as fork:
            start = plan_replay(fork.pipeline, since, fork.coordinator, named=fork.named, again=again)
        work.output.result(start)
        work.output.say(
            f"would begin with {start.key} of {start.origin}, taken {moment(start.taken_at)}: {start.uri}"
        )
        return ExitCode.FINE
    config = {"action": CareAction.REPLAY.value, "since": since, "only": narrowed, "again": again}
    run = launched(work, target, care_job_name(name), CARE_OP, config=config, tags={CONCURRENCY_TAG: name})
    code = ended(work, run)
    for line in run.comparison:
        work.output.say(line)
    if run.approved:
        work.output.say(
            f"to swap readers: dagster-ckpt blue-green swap {name} --approved {run.approved}"
            f"{target.code.as_given}"
        )
    if target.url and not run.has_failed:
        work.output.say(f"what it compared is told by the run: {run.where}")
    return code
