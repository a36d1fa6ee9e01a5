"""verify, doctor: every file of a snapshot read back and compared; the store compared with the storage."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import click

from dagster_ckpt.cli.code_location import CodeOptions, code_options, horizons_in
from dagster_ckpt.cli.context import ExitCode, Invocation, command, pipeline_option, refuse_unused
from dagster_ckpt.cli.output import Output
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.core.units import counted, size
from dagster_ckpt.errors import Corrupt, NotFound
from dagster_ckpt.operations.care.doctor import diagnose
from dagster_ckpt.operations.care.repair import repair_store
from dagster_ckpt.operations.readers.load_table import with_tables
from dagster_ckpt.operations.snapshots.catalog import SnapshotSummary, find_snapshot, list_snapshots
from dagster_ckpt.operations.snapshots.contents import Verified, not_opened, verify_snapshot
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot


@command("verify")
@click.argument("snapshots", nargs=-1)
@pipeline_option
@click.option("--all", "everything", is_flag=True, help="Everything that pipelines can be restored from.")
def verify(work: Invocation, *, snapshots: tuple[str, ...], pipeline: str, everything: bool) -> ExitCode:
    """Read every file of SNAPSHOTS (default: latest) and compare checksums. Exit code 1 when one is damaged."""
    if everything:
        refuse_unused(
            {f"{' '.join(snapshots)}": snapshots}, "is named beside --all, which reads everything: give one"
        )
        names = [pipeline_id(pipeline)] if pipeline else work.deployment.store.pipelines()
        results = [_verified(work, s) for name in names for s in list_snapshots(work.deployment, name)]
    else:
        chosen = pipeline_id(pipeline) if pipeline else None
        results = [
            _read_all(work, name, find_snapshot(work.deployment, name, chosen).stored)
            for name in snapshots or ("latest",)
        ]
    work.output.result(results)
    _show_verified(work.output, results)
    return ExitCode.FINE if all(found.is_intact for found in results) else ExitCode.TROUBLE


def _verified(work: Invocation, listed: SnapshotSummary) -> Verified:
    """Verify one of many: one that cannot even be opened must not hide what is wrong with the others."""
    try:
        stored = find_snapshot(work.deployment, listed.uri, listed.pipeline).stored
    except (NotFound, Corrupt) as error:
        return not_opened(listed.key, listed.uri, error)
    return _read_all(work, listed.key, stored)


def _read_all(work: Invocation, name: str, stored: StoredSnapshot) -> Verified:
    with work.output.progress(f"verifying {name}") as progress:
        return with_tables(verify_snapshot(stored, progress=progress), stored)


def _show_verified(output: Output, results: Sequence[Verified]) -> None:
    """Show what verifying found."""
    for found in results:
        verdict = "intact" if found.is_intact else counted(len(found.problems), "problem")
        output.say(f"{found.snapshot}: {verdict} ({counted(found.files, 'file')}, {size(found.bytes)})")
        for remark in found.remarks:
            output.say(f"{found.snapshot}: {remark}")
        if found.problems:
            rows = [(p.stage, p.problem, p.path, p.message) for p in found.problems]
            output.table("", ("stage", "problem", "file", "what"), rows)


@command("doctor")
@click.argument("pipeline", default="")
@click.option(
    "--repair", is_flag=True, help="Build records that were lost, or are behind, again from the storage."
)
@code_options
def doctor(work: Invocation, *, pipeline: str, repair: bool, code: CodeOptions) -> ExitCode:
    """Compare the coordinator store with checkpoint storage and tables: missing, left over, unknown, behind.

    With the pipeline's code (-m, -f or -w) it also says for how long each of its snapshots can still be restored, as
    its sinks' tables and what its sources read again are kept now. Exit code 1 when somebody
    should act: not for leftovers, nor for what the next run ends.
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
    work.output.say(f"pipelines: {names}; {counted(found.snapshots, 'restorable snapshot')} checked")
    if found.findings:
        rows = [(f.kind, f.what, f.message, f.bytes and size(f.bytes), f.advice) for f in found.findings]
        work.output.table("", ("finding", "what", "message", "size>", "advice"), rows)
    if found.horizons:
        lines = [(horizon.key, horizon.sentence()) for horizon in found.horizons]
        work.output.table("", ("snapshot", "restorable"), lines)
    work.output.say("healthy" if found.is_healthy else "somebody should act")
    return ExitCode.FINE if found.is_healthy else ExitCode.TROUBLE
