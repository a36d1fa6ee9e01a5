"""doctor: the store and the storage compared."""

from __future__ import annotations

import time

import click

from dagster_ckpt.cli.context import ExitCode, Work, command
from dagster_ckpt.cli.output import size
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.operations.doctor import diagnose


@command("doctor")
@click.argument("pipeline", default="")
def doctor(work: Work, *, pipeline: str) -> ExitCode:
    """Compare the coordinator store with checkpoint storage: files missing, left over, unknown.

    Exit code 1 when there are problems a person should look at.
    """
    deployment = work.deployment
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
