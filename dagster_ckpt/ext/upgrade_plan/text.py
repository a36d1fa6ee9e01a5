"""A plan of an upgrade as people read it: a comment of a pull request, or the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dagster_ckpt.cli.output import Output
from dagster_ckpt.ext.upgrade_plan.verdicts import StageVerdict, UpgradePlan


def headline(plan: UpgradePlan) -> str:
    """Return the verdict in one sentence."""
    worst, of = plan.verdict, f"pipeline {plan.pipeline} from {plan.snapshot}"
    match worst:
        case StageVerdict.REFUSED:
            return f"This code cannot go on: {of} would be refused"
        case StageVerdict.UNKNOWN:
            return f"Whether this code goes on cannot be told: {of}"
        case StageVerdict.GOES_ON | StageVerdict.WAITS | StageVerdict.REDISTRIBUTED:
            return f"This code goes on: {of}"
        case _:
            return f"This code goes on, and something changes: {of}"


def as_markdown(plan: UpgradePlan) -> str:
    """Return the plan as GitHub's Markdown."""
    lines = [f"**{headline(plan)}**", ""]
    lines += [f"* refused: {_cell(why)}" for why in plan.refusals]
    lines += ["", *_table(("stage", "verdict", "why"), _stages(plan))]
    if plan.sources:
        lines += ["", *_table(("stage", "source", "reads on"), _sources(plan))]
    if plan.sinks:
        lines += ["", *_table(("stage", "table", "becomes"), _sinks(plan))]
    return "\n".join(lines) + "\n"


def show(output: Output, plan: UpgradePlan) -> None:
    """Show the plan on the terminal."""
    output.say(headline(plan))
    for why in plan.refusals:
        output.say(f"  refused: {why}")
    output.table("stages", ("stage", "verdict"), [(uid, verdict) for uid, verdict, _ in _stages(plan)])
    for stage in plan.stages:
        for why in stage.why:
            output.say(f"  {stage.uid}: {why}")
    if plan.sources:
        output.table("sources", ("stage", "source", "reads on"), list(_sources(plan)))
    if plan.sinks:
        output.table("sinks", ("stage", "table", "becomes"), list(_sinks(plan)))


def _stages(plan: UpgradePlan) -> Iterator[tuple[str, str, str]]:
    return ((stage.uid, stage.verdict.value, "; ".join(stage.why)) for stage in plan.stages)


def _sources(plan: UpgradePlan) -> Iterator[tuple[str, str, str]]:
    return ((source.stage, source.source, source.reads_on) for source in plan.sources)


def _sinks(plan: UpgradePlan) -> Iterator[tuple[str, str, str]]:
    return ((sink.stage, sink.table, sink.becomes) for sink in plan.sinks)


def _table(heads: Sequence[str], rows: Iterator[tuple[str, str, str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(map(_cell, row))} |"


def _cell(text: str) -> str:
    """Return text as one cell, in which nothing is a link, a mark or another column."""
    flat = " ".join(text.split())
    marked = "".join(f"\\{sign}" if sign in "\\`*_{}[]<>|!#~" else sign for sign in flat)
    return marked.replace("@", "@\u200b")  # names nobody
