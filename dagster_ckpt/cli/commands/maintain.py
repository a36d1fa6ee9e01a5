"""clean, dispose, maintain, requeue: what is over goes, tables are kept in order, rows go through their stage again.

publish, set-aside: the two ways out for rows that wait for a sink.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from dagster_ckpt.cli.code_location import CodeOptions, code_options, declared_in, job_in
from dagster_ckpt.cli.context import ExitCode, Invocation, command, pipeline_option, snapshots_known, user
from dagster_ckpt.cli.launch import Launched, LaunchTarget, ended, launched, savepoint_removed
from dagster_ckpt.core.files.cleaning import Disposition
from dagster_ckpt.core.ids import PipelineId, StageUid, pipeline_id
from dagster_ckpt.core.units import counted, size
from dagster_ckpt.dagster.names import (
    COORDINATOR_KEY,
    SAVEPOINT_OP,
    STARTED_BY_TAG,
    SavepointAction,
    savepoint_job_name,
)
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.operations.care.clean import (
    Cleaned,
    CleaningPlan,
    carry_out_cleaning,
    dispose_savepoint,
    plan_cleaning,
    plan_disposal,
)
from dagster_ckpt.operations.care.maintain import (
    RequeueableRows,
    TableUpkeep,
    maintain_tables,
    order_requeue,
    plan_maintenance,
    preview_requeue,
)
from dagster_ckpt.operations.deployment import Operator
from dagster_ckpt.operations.readers.waiting import WaitingRows, waiting_rows

if TYPE_CHECKING:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline

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
    rows += [
        (one.stage, f"({why})", number, one.waiting) for one in found for why, number in one.others.items()
    ]
    if rows:
        work.output.table("", ("stage", "condition", "rows>", "orders that wait>"), rows)
    else:
        work.output.say("no such row is in a quarantine")


@command("publish")
@click.argument("pipeline")
@code_options
def publish(work: Invocation, *, pipeline: str, code: CodeOptions) -> ExitCode:
    """Publish the rows of PIPELINE that wait for its sinks, with a checkpoint of the idle pipeline; nothing is read.

    Give the code (-m, -f or -w) with the definition that the rows were staged for.
    """
    chosen = pipeline_id(pipeline)
    waiting = _waiting(work, chosen, code)
    if not waiting:
        return _nothing_waits(work, chosen)
    for one in waiting:
        work.output.say(f"{one.sink}: {counted(one.rows, 'row waits', 'rows wait')} for {one.place}")
    run = _checkpoint(work, chosen, code, {})
    left = () if run.has_failed else _waiting(work, chosen, code)
    for one in left:
        work.output.say(f"{one.sink}: {counted(one.rows, 'row still waits', 'rows still wait')}. {one.why}")
    done = ended(work, run, waited=waiting, waiting=left)
    return ExitCode.TROUBLE if left else done


@command("set-aside")
@click.argument("pipeline")
@click.option("--sink", default="", metavar="UID", help="Sink whose rows are meant, where several have some.")
@click.option("--yes", is_flag=True, help="Do it; without this the rows are only shown.")
@code_options
def set_aside(work: Invocation, *, pipeline: str, sink: str, yes: bool, code: CodeOptions) -> ExitCode:
    """Show the rows of PIPELINE that a sink cannot show; with --yes write them to files and go on without them.

    The files lie in the folder .set_aside beside the tables. A restore of an older checkpoint brings the rows again.
    Needs the pipeline's code (-m, -f or -w).
    """
    chosen = pipeline_id(pipeline)
    waiting = _waiting(work, chosen, code)
    if not waiting:
        return _nothing_waits(work, chosen)
    for one in waiting:
        _show(work, one)
    if not yes:
        work.output.say(
            "nothing was changed: repeat with --yes to do it, or mend what refuses them and publish"
        )
        work.output.result({"dry_run": True, "waiting": waiting})
        return ExitCode.FINE
    run = _checkpoint(work, chosen, code, {"set_aside": [_meant(waiting, sink)]})
    return ended(work, run, waiting=waiting)


def _waiting(work: Invocation, pipeline: PipelineId, code: CodeOptions) -> tuple[WaitingRows, ...]:
    import dagster as dg

    declared = declared_in(code, pipeline)
    if declared is None:
        raise click.UsageError("the pipeline's code is needed: give -m, -f or -w")
    job = job_in(code, savepoint_job_name(pipeline))
    with dg.build_resources({COORDINATOR_KEY: job.resource_defs[COORDINATOR_KEY]}) as resources:
        return waiting_rows(declared, getattr(resources, COORDINATOR_KEY))


def _nothing_waits(work: Invocation, pipeline: PipelineId) -> ExitCode:
    work.output.say(f"nothing waits: every sink of {pipeline} shows what was prepared for it")
    work.output.result({"waiting": []})
    return ExitCode.FINE


def _show(work: Invocation, one: WaitingRows) -> None:
    of = "no checkpoint yet" if one.checkpoint_id is None else f"checkpoint {one.checkpoint_id}"
    batches = ", ".join(map(str, one.batches))
    work.output.say(
        f"{one.sink}: {counted(one.rows, 'row waits', 'rows wait')} for {one.place} "
        f"(batches {batches}, refused with {of})"
    )
    work.output.say(one.why or "nothing is known against them: publish tries them again")
    if one.examples:
        work.output.table("", one.columns, one.examples)


def _meant(waiting: Sequence[WaitingRows], sink: str) -> StageUid:
    uids = [one.sink for one in waiting]
    if sink and sink not in uids:
        raise InvalidRequest(f"nothing waits for sink {sink!r}; rows wait for {', '.join(uids)}")
    if not sink and len(uids) > 1:
        raise InvalidRequest(f"rows wait for several sinks: name one with --sink ({', '.join(uids)})")
    return StageUid(sink) if sink else uids[0]


def _checkpoint(
    work: Invocation, pipeline: PipelineId, code: CodeOptions, config: dict[str, Any]
) -> Launched:
    return launched(
        work,
        LaunchTarget(code=code),
        savepoint_job_name(pipeline),
        SAVEPOINT_OP,
        config={"action": SavepointAction.CHECKPOINT.value, **config},
        tags={STARTED_BY_TAG: f"dagster-ckpt {'set-aside' if config else 'publish'}"},
    )
