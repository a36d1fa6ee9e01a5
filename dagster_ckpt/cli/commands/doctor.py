"""doctor: the store and the storage compared."""

from __future__ import annotations

import time
from dataclasses import replace

import click

from dagster_ckpt.cli.code_location import CodeOptions, code_options
from dagster_ckpt.cli.context import ExitCode, Invocation, command
from dagster_ckpt.cli.horizons import horizons_in
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.core.units import size
from dagster_ckpt.operations.care.doctor import diagnose
from dagster_ckpt.operations.care.repair import repair_store


@command("doctor")
@click.argument("pipeline", default="")
@click.option(
    "--repair", is_flag=True, help="Build records that were lost, or are behind, again from the storage."
)
@code_options
def doctor(work: Invocation, *, pipeline: str, repair: bool, code: CodeOptions) -> ExitCode:
    """Compare the coordinator store with checkpoint storage and tables: missing, left over, unknown, behind.

    With the pipeline's code (-m, -f or -w) it also says for how long each of its snapshots can still be restored, as
    its sinks' tables and what its sources read again are kept now. Exit code 1 when there are problems a person should
    look at.
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
        if code.is_given:
            found = replace(found, horizons=horizons_in(code, work.pipeline(pipeline)))
    work.output.result(found)
    names = ", ".join(found.pipelines) or "none"
    work.output.say(f"pipelines: {names}; {found.snapshots} restorable snapshots checked")
    if found.findings:
        rows = [(f.kind, f.what, f.message, f.bytes and size(f.bytes), f.advice) for f in found.findings]
        work.output.table("", ("finding", "what", "message", "size>", "advice"), rows)
    if found.horizons:
        lines = [(horizon.key, horizon.sentence()) for horizon in found.horizons]
        work.output.table("", ("snapshot", "restorable"), lines)
    work.output.say("healthy" if found.is_healthy else "somebody should act")
    return ExitCode.FINE if found.is_healthy else ExitCode.TROUBLE
