"""maintain, requeue: small files of tables merged, old ones removed; quarantined rows put through their stage again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from dagster_ckpt.cli.code_location import CodeOptions, code_options, declared_in, job_in
from dagster_ckpt.cli.context import ExitCode, Invocation, command
from dagster_ckpt.core.units import size
from dagster_ckpt.operations.care.maintain import TableUpkeep, maintain_tables, plan_maintenance
from dagster_ckpt.operations.care.requeue import RequeueableRows, order_requeue, preview_requeue

if TYPE_CHECKING:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


@command("maintain")
@click.argument("pipeline", default="")
@click.option("--yes", is_flag=True, help="Do it; without this it is only said what would be done.")
@code_options
def maintain(work: Invocation, *, pipeline: str, yes: bool, code: CodeOptions) -> ExitCode:
    """Merge small files of a pipeline's tables and remove old ones, of Iceberg tables old snapshots.

    What any retained checkpoint or savepoint goes back to stays, whatever its age. The pipeline may run meanwhile.
    Needs its code (-m, -f or -w): its coordinator resource says where tables and checkpoints are.
    """
    with _declared(work, pipeline, code, of="maintain") as (declared, coordinator):
        act = maintain_tables if yes else plan_maintenance
        with work.output.busy("maintaining the tables" if yes else "looking at the tables"):
            found = act(declared, coordinator)
    _show_upkeep(work, found)
    if not yes and any(upkeep.files for table in found for upkeep in table.done):
        work.output.say("nothing was changed: repeat with --yes to do it")
    work.output.result({"dry_run": not yes, "tables": found})
    return ExitCode.TROUBLE if any(table.problem for table in found) else ExitCode.FINE


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
    with _declared(work, pipeline, code, of="requeue") as (declared, coordinator):
        found = (preview_requeue if preview else order_requeue)(declared, coordinator, where)
    _show_rows(work, found)
    if not preview and any(one.rows for one in found):
        work.output.say("ordered: the next batch of each stage takes its rows")
    work.output.result({"preview": preview, "quarantines": found})
    return ExitCode.FINE


@contextmanager
def _declared(
    work: Invocation, pipeline: str, code: CodeOptions, *, of: str
) -> Iterator[tuple[CheckpointedPipeline, Any]]:
    """Yield a pipeline as its code declares it, and its coordinator resource."""
    import dagster as dg

    from dagster_ckpt.dagster.names import COORDINATOR_KEY, care_job_name

    chosen = work.pipeline(pipeline)
    declared = declared_in(code, chosen)
    if declared is None:
        raise click.UsageError(f"{of} needs the pipeline's code: give -m, -f or -w")
    job = job_in(code, care_job_name(chosen))
    with dg.build_resources({COORDINATOR_KEY: job.resource_defs[COORDINATOR_KEY]}) as resources:
        yield declared, getattr(resources, COORDINATOR_KEY)


def _show_upkeep(work: Invocation, found: tuple[TableUpkeep, ...]) -> None:
    rows = [
        (table.sink, upkeep.what, upkeep.files, upkeep.bytes and size(upkeep.bytes), upkeep.note)
        for table in found
        for upkeep in table.done
    ]
    rows += [(table.sink, "failed", 0, 0, table.problem) for table in found if table.problem]
    work.output.table("", ("sink", "what", "files>", "size>", "note"), rows)


def _show_rows(work: Invocation, found: tuple[RequeueableRows, ...]) -> None:
    rows = [
        (one.stage, name, number, one.waiting) for one in found for name, number in one.conditions.items()
    ]
    rows += [(one.stage, "(cannot be requeued)", one.others, one.waiting) for one in found if one.others]
    if rows:
        work.output.table("", ("stage", "condition", "rows>", "orders that wait>"), rows)
    else:
        work.output.say("no such row is in a quarantine")
