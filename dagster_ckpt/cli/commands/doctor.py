"""doctor: the store and the storage compared."""

from __future__ import annotations

import time

import click

from dagster_ckpt.cli.context import ExitCode, Work, command
from dagster_ckpt.cli.output import size
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.operations.doctor import diagnose
from dagster_ckpt.operations.repair import repair_store


@command("doctor")
@click.argument("pipeline", default="")
@click.option(
    "--repair", is_flag=True, help="Build records that were lost, or are behind, again from the storage."
)
def doctor(work: Work, *, pipeline: str, repair: bool) -> ExitCode:
    """Compare the coordinator store with checkpoint storage and tables: missing, left over, unknown, behind.

    Exit code 1 when there are problems a person should look at.
    """
    deployment = work.deployment
    if repair:
        for done in repair_store(deployment, pipeline_id(pipeline) if pipeline else None):
            added = ", ".join(done.added) or "no further snapshot"
            work.output.say(
                f"record of {done.pipeline} built again: {added}; the next number is {done.next_id}"
            )
    with work.output.busy("holding the store against the storage"):
        found = diagnose(deployment, pipeline_id(pipeline) if pipeline else None, now=time.time())
    work.output.result(found)
    names = ", ".join(found.pipelines) or "none"
    work.output.say(f"pipelines: {names}; {found.snapshots} restorable snapshots checked")
    if found.findings:
        rows = [(f.kind, f.what, f.message, f.bytes and size(f.bytes), f.advice) for f in found.findings]
        work.output.table("", ("finding", "what", "message", "size>", "advice"), rows)
    work.output.say("healthy" if found.is_healthy else "somebody should act")
    return ExitCode.FINE if found.is_healthy else ExitCode.TROUBLE
