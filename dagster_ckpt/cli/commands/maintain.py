"""maintain: small files of tables merged, old ones removed."""

from __future__ import annotations

import click

from dagster_ckpt.cli.code_location import CodeOptions, code_options, declared_in, job_in
from dagster_ckpt.cli.context import ExitCode, Invocation, command
from dagster_ckpt.core.units import size
from dagster_ckpt.operations.care.maintain import TableUpkeep, maintain_tables, plan_maintenance


@command("maintain")
@click.argument("pipeline", default="")
@click.option("--yes", is_flag=True, help="Do it; without this it is only said what would be done.")
@code_options
def maintain(work: Invocation, *, pipeline: str, yes: bool, code: CodeOptions) -> ExitCode:
    """Merge small files of a pipeline's tables and remove old ones, of Iceberg tables old snapshots.

    What any retained checkpoint or savepoint goes back to stays, whatever its age. The pipeline may run meanwhile.
    Needs its code (-m, -f or -w): its coordinator resource says where tables and checkpoints are.
    """
    import dagster as dg

    from dagster_ckpt.dagster.names import COORDINATOR_KEY, care_job_name

    chosen = work.pipeline(pipeline)
    declared = declared_in(code, chosen)
    if declared is None:
        raise click.UsageError("maintain needs the pipeline's code: give -m, -f or -w")
    job = job_in(code, care_job_name(chosen))
    with dg.build_resources({COORDINATOR_KEY: job.resource_defs[COORDINATOR_KEY]}) as resources:
        coordinator = getattr(resources, COORDINATOR_KEY)
        act = maintain_tables if yes else plan_maintenance
        with work.output.busy("maintaining the tables" if yes else "looking at the tables"):
            found = act(declared, coordinator)
    _show(work, found)
    if not yes and any(upkeep.files for table in found for upkeep in table.done):
        work.output.say("nothing was changed: repeat with --yes to do it")
    work.output.result({"dry_run": not yes, "tables": found})
    return ExitCode.TROUBLE if any(table.problem for table in found) else ExitCode.FINE


def _show(work: Invocation, found: tuple[TableUpkeep, ...]) -> None:
    rows = [
        (table.sink, upkeep.what, upkeep.files, upkeep.bytes and size(upkeep.bytes), upkeep.note)
        for table in found
        for upkeep in table.done
    ]
    rows += [(table.sink, "failed", 0, 0, table.problem) for table in found if table.problem]
    work.output.table("", ("sink", "what", "files>", "size>", "note"), rows)
