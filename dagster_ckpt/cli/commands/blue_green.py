"""fork, blue-green, replay: another pipeline begins with a snapshot, is compared, and readers are swapped to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.cli.code_location import CodeOptions, declared_in, job_in
from dagster_ckpt.cli.commands.diff import show_examples
from dagster_ckpt.cli.commands.restore import is_possible, restore_options, start
from dagster_ckpt.cli.context import (
    ExitCode,
    Invocation,
    command,
    key_values,
    pipelines_known,
    refuse_unused,
    snapshots_known,
)
from dagster_ckpt.cli.launch import LaunchTarget, ended, launch_options, launched
from dagster_ckpt.core.config import ClaimMode, RestoreOptions
from dagster_ckpt.core.ids import PipelineId, pipeline_id
from dagster_ckpt.core.restore_point import At
from dagster_ckpt.core.units import moment
from dagster_ckpt.errors import NotFound
from dagster_ckpt.operations.deployment import load_record, readers_of
from dagster_ckpt.operations.readers.blue_green import compare_readers, name_of
from dagster_ckpt.operations.readers.open_sink import Coordinator
from dagster_ckpt.operations.readers.replay import plan_replay
from dagster_ckpt.operations.snapshots.catalog import find_snapshot


@command("blue-green")
@click.argument("action", type=click.Choice(["show", "compare", "swap", "back"]))
@click.argument("pipeline", shell_complete=pipelines_known)
@click.option("--approved", default="", metavar="TEXT", help="swap: the approval that a comparison gave.")
@click.option("--allow-stale", is_flag=True, help="swap: although tables have changed since the comparison.")
@click.option("--allow-behind", is_flag=True, help="swap: although the fork has read less of its topics.")
@click.option(
    "--only",
    "only",
    multiple=True,
    metavar="COLUMN=TEXT",
    help="compare: leave out other rows; may be repeated.",
)
@click.option(
    "--examples",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="compare: rows shown of each kind.",
)
@click.option("--exit-code", is_flag=True, help="compare: exit with 1 when readers would find other rows.")
@launch_options
def blue_green(
    work: Invocation,
    *,
    action: str,
    pipeline: str,
    approved: str,
    allow_stale: bool,
    allow_behind: bool,
    only: tuple[str, ...],
    examples: int,
    exit_code: bool,
    target: LaunchTarget,
) -> ExitCode:
    """Let readers of a pipeline's name find the tables of its fork PIPELINE, in one step, and back.

    show: which tables readers find, by the store alone. compare: the fork's tables with those, row by row; changes
    nothing, and gives the approval of a swap. swap: the job <pipeline>_care; without --approved only where all tables
    are the same. back: to what served before it.
    """
    name = pipeline_id(pipeline)
    swaps = {"--approved": approved, "--allow-stale": allow_stale, "--allow-behind": allow_behind}
    if action != "swap":
        refuse_unused(swaps, f"is for swap, and says nothing to {action}: leave it out")
    if action != "compare":
        compares = {"--only": only, "--exit-code": exit_code}
        refuse_unused(compares, f"is for compare, and says nothing to {action}: leave it out")
    if action == "show":
        return _show(work, name)
    if action == "compare":
        return _compare(work, name, target.code, key_values("--only", only), examples, exit_code=exit_code)
    from dagster_ckpt.dagster.names import CARE_OP, CareAction, care_job_name

    config: dict[str, Any] = {"action": CareAction.SWAP.value, "readers": "back"}
    if action == "swap":
        config |= {
            "readers": "to_fork",
            "approved": approved,
            "allow_stale": allow_stale,
            "allow_behind": allow_behind,
        }
    return ended(work, launched(work, target, care_job_name(name), CARE_OP, config=config, tags={}))


def _show(work: Invocation, name: PipelineId) -> ExitCode:
    store = work.deployment.store
    own = load_record(store, name)  # says what there is
    swap = readers_of(store, own)
    readers = swap.name if swap is not None and name in (swap.name, swap.serving) else name
    serving = own.serving if readers == name else load_record(store, readers).serving
    work.output.result({"name": readers, "serving": serving})
    if serving is None:
        work.output.say(f"readers of {name} find its own tables")
        return ExitCode.FINE
    work.output.say(
        f"readers of {readers} find the tables of {serving.pipeline} since {moment(serving.since)}; before: "
        f"{serving.before}"
    )
    rows = [(uid, table.place) for uid, table in sorted(serving.tables.items())]
    work.output.list("", ("table", "place"), rows)
    return ExitCode.FINE


def _compare(
    work: Invocation,
    name: PipelineId,
    code: CodeOptions,
    only: dict[str, str],
    examples: int,
    *,
    exit_code: bool,
) -> ExitCode:
    with forked(name, code) as fork, work.output.busy("comparing rows"):
        found = compare_readers(
            fork.pipeline, fork.coordinator, named=fork.named, only=only, examples=examples
        )
    work.output.result(found)
    for line in found.lines:
        work.output.say(line)
    for table in found.tables:
        if table.diff is not None:
            show_examples(work.output, table.diff)
    if found.serving != found.candidate:
        work.output.say(
            f"to swap readers: dagster-ckpt blue-green swap {name} --approved {found.approval}{code.as_given}"
        )
    return ExitCode.TROUBLE if exit_code and not found.is_same else ExitCode.FINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """A fork as its code declares it, with the resources of its jobs."""

    pipeline: CheckpointedPipeline
    coordinator: Coordinator
    named: Coordinator


@contextmanager
def forked(name: PipelineId, code: CodeOptions) -> Iterator[Forked]:
    """Yield a fork of the code. Raises UsageError where no code is given, NotFound, InvalidRequest."""
    import dagster as dg

    from dagster_ckpt.dagster.names import COORDINATOR_KEY, care_job_name, own_resource_key

    declared = declared_in(code, name)
    if declared is None:
        raise click.UsageError("the pipeline's code is needed: give -m, -f or -w")
    root = own_resource_key(name_of(declared).name, COORDINATOR_KEY)
    bound = job_in(code, care_job_name(name)).resource_defs
    if COORDINATOR_KEY not in bound:
        raise NotFound(f"job {care_job_name(name)!r} has no resource {COORDINATOR_KEY!r}")
    wanted = {key: bound[key] for key in (COORDINATOR_KEY, root) if key in bound}
    with dg.build_resources(wanted) as resources:
        own = getattr(resources, COORDINATOR_KEY)
        yield Forked(pipeline=declared, coordinator=own, named=getattr(resources, root, own))


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
    keep_rows_of: tuple[str, ...],
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
        keep_rows_of=keep_rows_of,
        fork=True,
    )
    if not no_preview and not is_possible(work, options, chosen, target):
        return ExitCode.TROUBLE
    return start(work, options, chosen, target, streaming=streaming)


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
