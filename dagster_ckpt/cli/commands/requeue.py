"""requeue: quarantined rows put through their stage again."""

from __future__ import annotations

import click

from dagster_ckpt.cli.code_location import CodeOptions, code_options, declared_in, job_in
from dagster_ckpt.cli.context import ExitCode, Invocation, command
from dagster_ckpt.operations.care.requeue import RequeueableRows, order_requeue, preview_requeue


@command("requeue")
@click.argument("pipeline", default="")
@click.option(
    "--where",
    default="",
    metavar="SQL",
    help="Which rows: comparisons of condition, id, stage, batch and tries, joined by AND; default: all.",
)
@click.option("--preview", is_flag=True, help="Only say how many, and which conditions.")
@code_options
def requeue(work: Invocation, *, pipeline: str, where: str, preview: bool, code: CodeOptions) -> ExitCode:
    """Put quarantined rows through today's conditions of their stage again, exactly once.

    The next batch of the stage takes them, in a stream that runs or in the next run. They are there with that batch's
    checkpoint, and back in the quarantine after a restore of an earlier one; rows that fail again have one try more.
    Needs the pipeline's code (-m, -f or -w).
    """
    import dagster as dg

    from dagster_ckpt.dagster.names import COORDINATOR_KEY, care_job_name

    chosen = work.pipeline(pipeline)
    declared = declared_in(code, chosen)
    if declared is None:
        raise click.UsageError("requeue needs the pipeline's code: give -m, -f or -w")
    job = job_in(code, care_job_name(chosen))
    with dg.build_resources({COORDINATOR_KEY: job.resource_defs[COORDINATOR_KEY]}) as resources:
        act = preview_requeue if preview else order_requeue
        found = act(declared, getattr(resources, COORDINATOR_KEY), where)
    _show(work, found)
    if not preview and any(one.rows for one in found):
        work.output.say("ordered: the next batch of each stage takes its rows")
    work.output.result({"preview": preview, "quarantines": found})
    return ExitCode.FINE


def _show(work: Invocation, found: tuple[RequeueableRows, ...]) -> None:
    rows = [
        (one.stage, name, number, one.waiting) for one in found for name, number in one.conditions.items()
    ]
    rows += [(one.stage, "(cannot be requeued)", one.others, one.waiting) for one in found if one.others]
    work.output.table("", ("stage", "condition", "rows>", "orders that wait>"), rows)
    if not rows:
        work.output.say("no such row is in a quarantine")
