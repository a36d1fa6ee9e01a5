"""audit: who restored, forked and disposed of what."""

from __future__ import annotations

import time

import click

from dagster_ckpt.cli.context import ExitCode, Invocation, command, pipeline_option
from dagster_ckpt.core.units import ago, moment
from dagster_ckpt.operations.audit import AuditRow, audit_of
from dagster_ckpt.operations.records import load_record

NOTHING = "from nothing"
"""In place of a snapshot, where a run was to begin without state."""


@command("audit")
@pipeline_option
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most so many.")
@click.option("--previews", is_flag=True, help="With what was shown before each.")
def audit(work: Invocation, *, pipeline: str, limit: int, previews: bool) -> ExitCode:
    """Show who restored, forked, swapped readers to and disposed of what, newest first."""
    chosen = work.pipeline(pipeline)
    found = audit_of(work.deployment, chosen, limit=limit)
    if not found:
        load_record(work.deployment.store, chosen)  # says what there is
    work.output.result(found)
    if not found:
        work.output.say("nobody has restored, forked, swapped or disposed of anything, or begun from nothing")
        return ExitCode.FINE
    if not previews:
        now = time.time()
        rows = [(ago(max(0.0, now - row.at)), row.what, row.key or NOTHING, _who(row)) for row in found]
        work.output.list("", ("when", "what", "snapshot", "who"), rows)
        return ExitCode.FINE
    for row in found:
        work.output.say(f"{moment(row.at)}  {row.what} {row.key or NOTHING}  {_who(row)}")
        if row.uri:
            work.output.say(f"  {row.uri}")
        for line in row.shown.splitlines():
            work.output.say(f"  | {line}")
    return ExitCode.FINE


def _who(row: AuditRow) -> str:
    """Return who it was, and the run, in a cell."""
    run = f"run {row.run_id[:8]}" if row.run_id else ""
    return ", ".join(one for one in (row.who, run) if one) or "-"
