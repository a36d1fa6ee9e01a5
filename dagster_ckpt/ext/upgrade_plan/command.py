"""plan: whether a change breaks the state of a pipeline, told before it is deployed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import click

from dagster_ckpt.cli.code_location import CodeOptions, code_options, declared_in, session_settings_in
from dagster_ckpt.cli.context import ExitCode, Invocation, command, pipeline_option
from dagster_ckpt.cli.output import Output
from dagster_ckpt.cli.spark_session import spark_options, started
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.upgrade_plan.comparison import StageVerdict, UpgradePlan
from dagster_ckpt.ext.upgrade_plan.plan import plan_upgrade
from dagster_ckpt.operations.snapshots.catalog import find_snapshot
from dagster_ckpt.operations.snapshots.export import ExportedFacts, facts_in, facts_of_found


def headline(plan: UpgradePlan) -> str:
    """Return the verdict in one sentence."""
    of = f"pipeline {plan.pipeline} from {plan.snapshot}"
    match plan.verdict:
        case StageVerdict.REFUSED:
            return f"This code cannot go on: {of} would be refused"
        case StageVerdict.UNKNOWN:
            return f"Whether this code goes on cannot be told: {of}"
        case StageVerdict.GOES_ON | StageVerdict.WAITS | StageVerdict.REDISTRIBUTED:
            return f"This code goes on: {of}"
    return f"This code goes on, and something changes: {of}"


def as_markdown(plan: UpgradePlan) -> str:
    """Return the plan as GitHub's Markdown."""
    lines = [f"**{headline(plan)}**", ""]
    lines += [f"* refused: {_cell(why)}" for why in plan.refusals]
    for _, heads, rows in _tables(plan):
        lines += ["", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
        lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def show(output: Output, plan: UpgradePlan) -> None:
    """Show the plan on the terminal."""
    output.say(headline(plan))
    for why in plan.refusals:
        output.say(f"  refused: {why}")
    for stage in plan.stages:
        for why in stage.why:
            output.say(f"  {stage.uid}: {why}")
    for title, heads, rows in _tables(plan):
        shown = 2 if title == "stages" else 3
        output.table(title, heads[:shown], [row[:shown] for row in rows])


def _tables(plan: UpgradePlan) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """Yield title, heads and rows of each table of a plan."""
    stages = [(stage.uid, stage.verdict.value, "; ".join(stage.why)) for stage in plan.stages]
    yield "stages", ("stage", "verdict", "why"), list(stages)
    if plan.sources:
        yield "sources", ("stage", "source", "reads on"), list(map(astuple, plan.sources))
    if plan.sinks:
        yield "sinks", ("stage", "table", "becomes"), list(map(astuple, plan.sinks))


def _cell(text: str) -> str:
    """Return text as one cell, in which nothing is a link, a mark or another column."""
    flat = " ".join(text.split())
    marked = "".join(f"\\{sign}" if sign in "\\`*_{}[]<>|!#~" else sign for sign in flat)
    return marked.replace("@", "@\u200b")  # names nobody


@command("plan", short_help="whether a change breaks state, told in a pull request")
@click.option(
    "--against",
    default="latest",
    show_default=True,
    metavar="FACTS",
    help="File that `export --facts` has written, or the key or URI of a snapshot.",
)
@pipeline_option
@click.option("--allow-non-restored-state", is_flag=True, help="Drop state of stages that are gone.")
@click.option("--markdown", is_flag=True, help="Answer as a comment of a pull request.")
@code_options
@spark_options
def plan(
    work: Invocation,
    *,
    against: str,
    pipeline: str,
    allow_non_restored_state: bool,
    markdown: bool,
    code: CodeOptions,
    master: str,
    conf: tuple[str, ...],
) -> ExitCode:
    """Plan what becomes of every stage, source and sink when this code (-m, -f or -w) goes on from a snapshot.

    Exit code 1 where it would be refused, or where that cannot be told. No source, table or state is opened: the plans
    of the queries are compared with the snapshot's facts, and sources that cannot be reached are stood in for.
    """
    if not code.is_given:
        raise InvalidRequest("give the code that is to be planned: -f FILE, -m MODULE or -w WORKSPACE")
    facts = _facts(work, against, pipeline)
    if markdown and work.output.as_json:
        raise InvalidRequest("give --markdown or --json, not both")
    declared = declared_in(code, pipeline_id(pipeline or facts.metadata.pipeline))
    assert declared is not None
    options = RestoreOptions(allow_non_restored_state=allow_non_restored_state)
    settings = (*_zone_of(facts), *session_settings_in(code), *conf)
    with started(master, settings) as spark, tempfile.TemporaryDirectory() as scratch:
        found = plan_upgrade(facts, declared, spark, Path(scratch), options)
    work.output.result(found)
    if markdown:
        click.echo(as_markdown(found), nl=False)
    else:
        show(work.output, found)
    is_trouble = found.verdict in (StageVerdict.REFUSED, StageVerdict.UNKNOWN)
    return ExitCode.TROUBLE if is_trouble else ExitCode.FINE


def _facts(work: Invocation, against: str, pipeline: str) -> ExportedFacts:
    if Path(against).is_file():
        return facts_in(Path(against))
    if against.endswith(".json"):
        write = f"dagster-ckpt export SNAPSHOT {against} --facts"
        raise InvalidRequest(f"{against} is not there: write it with {write}")
    named = pipeline_id(pipeline) if pipeline else None
    return facts_of_found(work.deployment, find_snapshot(work.deployment, against, named))


def _zone_of(facts: ExportedFacts) -> Iterator[str]:
    """Yield the time zone of the deployment's sessions, which is its machines' where no code sets one."""
    plans = [stage.plan for stage in facts.stages.values()]
    zones = [plan.get("read_in_zone") or next(iter(plan.get("time_zones") or ()), "") for plan in plans]
    yield from [f"spark.sql.session.timeZone={zone}" for zone in zones if zone][:1]
