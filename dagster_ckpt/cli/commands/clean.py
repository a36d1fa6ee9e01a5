"""clean, dispose: what checkpoints that are over have left goes; so does a savepoint nobody needs."""

from __future__ import annotations

import click

from dagster_ckpt.cli.context import Invocation, command, pipeline_option, snapshots_known, user
from dagster_ckpt.cli.launch import savepoint_removed
from dagster_ckpt.core.files.cleaning import Disposition
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.core.units import counted, size
from dagster_ckpt.operations.care.clean import (
    Cleaned,
    CleaningPlan,
    carry_out_cleaning,
    dispose_savepoint,
    plan_cleaning,
    plan_disposal,
)
from dagster_ckpt.operations.deployment import Operator

_SHOWN = 20


@command("clean")
@click.argument("pipelines", nargs=-1, metavar="[PIPELINE]...")
@click.option("--yes", is_flag=True, help="Do it; without this it is only said what would go.")
@click.option("--verbose", "-v", is_flag=True, help="Name every file, also those that stay.")
def clean(work: Invocation, *, pipelines: tuple[str, ...], yes: bool, verbose: bool) -> None:
    """Remove what checkpoints that are over have left in storage (default: of all pipelines).

    Only files are removed whose checkpoint failed, was subsumed or discarded, and that nothing restorable, nothing
    pending and no other pipeline uses. Without --yes nothing is changed.
    """
    deployment = work.deployment
    names = [pipeline_id(name) for name in pipelines] or deployment.store.pipelines()
    with work.output.busy("looking for what is left over"):
        plans = [plan_cleaning(deployment, name) for name in names]
    for plan in plans:
        _show_plan(work, plan, verbose=verbose)
    done: list[Cleaned] = []
    if yes:
        for plan in plans:
            with work.output.progress(f"cleaning {plan.pipeline}") as progress:
                done.append(carry_out_cleaning(deployment, plan, progress=progress))
            work.output.say(
                f"{plan.pipeline}: removed {counted(done[-1].files, 'file')}, freed {size(done[-1].bytes)}"
            )
    elif any(plan.files for plan in plans):
        work.output.say("nothing was changed: repeat with --yes to remove them")
    totals = [{str(d): counts for d, counts in plan.totals().items()} for plan in plans]
    work.output.result({"dry_run": not yes, "plans": plans, "totals": totals, "done": done})


def _show_plan(work: Invocation, plan: CleaningPlan, *, verbose: bool) -> None:
    output = work.output
    columns = ("files>", "size>", "verdict")
    rows = [(files, size(total), _VERDICT[d]) for d, (files, total) in plan.totals().items()]
    left = [o for folder in plan.folders for o in folder.objects]
    if left:
        rows.append(
            (len(left), size(sum(o.size for o in left)), "removable: folders of savepoints that failed")
        )
    output.table(f"{plan.pipeline} ({plan.base_uri})", columns, rows)
    for obstacle in plan.obstacles:
        output.say(f"  nothing can be called unused: {obstacle}")
    shown = plan.classified if verbose else plan.removable[:_SHOWN]
    if shown:
        output.table("", ("verdict", "size>", "file", "why"), [
            (c.disposition, size(c.size), c.key, c.reason) for c in shown
        ])  # fmt: skip
    hidden = len(plan.removable) - _SHOWN
    if hidden > 0 and not verbose:
        output.say(f"  and {hidden} more (--verbose names all)")


_VERDICT = {
    Disposition.KEEP_REFERENCED: "needed by a snapshot that can be restored",
    Disposition.KEEP_UNKNOWN: "kept: cannot be assigned, or is being written",
    Disposition.REMOVE: "removable: left by checkpoints that are over",
}


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
