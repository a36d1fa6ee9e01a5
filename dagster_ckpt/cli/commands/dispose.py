"""dispose: a savepoint and its files go."""

from __future__ import annotations

import click

from dagster_ckpt.cli.completion import snapshots_known
from dagster_ckpt.cli.context import Invocation, command, pipeline_option, user
from dagster_ckpt.cli.dagster_partitions import savepoint_removed
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.core.units import counted, size
from dagster_ckpt.operations.audit import Operator
from dagster_ckpt.operations.care.dispose import dispose_savepoint, plan_disposal


@command("dispose")
@click.argument("savepoint", shell_complete=snapshots_known)
@pipeline_option
@click.option("--yes", is_flag=True, help="Do it; without this it is only said what would go.")
def dispose(work: Invocation, *, savepoint: str, pipeline: str, yes: bool) -> None:
    """Remove a SAVEPOINT; refused while a pipeline needs it. Without --yes nothing is changed."""
    plan = plan_disposal(work.deployment, savepoint, pipeline_id(pipeline) if pipeline else None)
    left = (
        f"; {counted(len(plan.unknown), 'file')} in its folder that it does not name stay"
        if plan.unknown
        else ""
    )
    what = f"{plan.key} at {plan.location.uri}: {counted(len(plan.keys), 'file')}, {size(plan.bytes)}{left}"
    if not yes:
        work.output.result({"dry_run": True, "plan": plan})
        work.output.say(f"would remove {what}\nrepeat with --yes to do it")
        return
    with work.output.progress(f"removing {plan.key}") as progress:
        operator = Operator(who=user(), shown=(what,))
        done = dispose_savepoint(work.deployment, plan, progress=progress, operator=operator)
    if plan.is_recorded:
        savepoint_removed(plan.pipeline, plan.key)
    work.output.result({"dry_run": False, "plan": plan, "done": done})
    work.output.say(f"removed {what}")
