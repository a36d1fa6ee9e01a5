"""check, verify, doctor: whether pipelines can start, snapshots are whole, and the store agrees with the storage."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from dagster_ckpt.cli.code_location import (
    CodeOptions,
    code_options,
    definitions_in,
    horizons_in,
    pipelines_in,
)
from dagster_ckpt.cli.context import (
    ExitCode,
    Invocation,
    command,
    exit_code_of,
    pipeline_option,
    refuse_unused,
)
from dagster_ckpt.cli.output import Output
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.core.restore.start_checks import refuse_start
from dagster_ckpt.core.restore.start_facts import StartFacts
from dagster_ckpt.core.units import counted, size
from dagster_ckpt.errors import CheckpointError, Corrupt, InvalidRequest, NotFound
from dagster_ckpt.operations.care.doctor import diagnose
from dagster_ckpt.operations.care.repair import repair_store
from dagster_ckpt.operations.readers.load_table import with_tables
from dagster_ckpt.operations.snapshots.catalog import SnapshotSummary, find_snapshot, list_snapshots
from dagster_ckpt.operations.snapshots.contents import Verified, not_opened, verify_snapshot
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot

if TYPE_CHECKING:
    import dagster as dg

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


@command("check")
@code_options
def check(work: Invocation, *, code: CodeOptions) -> ExitCode:
    """Say of every pipeline of the code whether it could start on this machine: names, settings, folders, packages,
    Java, the coordinator store. Nothing is made, no Java is started, no data is read.
    """
    from dagster_ckpt.dagster.names import epoch_job_name
    from dagster_ckpt.dagster.start import code_facts

    if not code.is_given:
        raise click.UsageError("give the code: -m module, -f file or -w workspace.yaml")
    pipelines = pipelines_in(code)
    if not pipelines:
        raise NotFound("the code declares no pipeline: decorate a function with @checkpointed_pipeline")
    refuse_start(StartFacts(code=code_facts(pipelines)))
    jobs = {job.name: job for found in definitions_in(code) for job in found.resolve_all_job_defs()}
    told: dict[str, str] = {}
    codes = [ExitCode.FINE]
    for pipeline in pipelines:
        job = jobs.get(epoch_job_name(pipeline.name))
        try:
            told[pipeline.name] = "is in no Definitions" if job is None else _look(pipeline, job)
        except CheckpointError as error:
            told[pipeline.name] = str(error)
            codes.append(exit_code_of(error))
    work.output.result({"pipelines": told})
    for name, said in told.items():
        work.output.say(f"{name}: {said or 'can start'}")
    return max(codes)


def _look(pipeline: CheckpointedPipeline, job: dg.JobDefinition) -> str:
    """Check the facts that are known before a run, with the resources of its job. Raises CheckpointError."""
    import dagster as dg

    from dagster_ckpt.dagster.names import COORDINATOR_KEY, SPARK_KEY
    from dagster_ckpt.dagster.start import look_ahead, machine_facts

    bound = {key: job.resource_defs[key] for key in (COORDINATOR_KEY, SPARK_KEY)}
    is_chosen = bool(os.environ.get("DAGSTER_HOME"))
    with (
        dg.DagsterInstance.get() if is_chosen else dg.DagsterInstance.ephemeral() as instance,
        dg.build_resources(bound, instance=instance) as resources,
    ):
        coordinator, spark = getattr(resources, COORDINATOR_KEY), getattr(resources, SPARK_KEY)
        coordinator.check_settings(pipeline)
        look_ahead(coordinator, pipeline, spark)
        try:
            refuse_start(StartFacts(machine=machine_facts(coordinator, pipeline, spark, streams=True)))
        except InvalidRequest as error:
            return f"can start in epochs; {error}"
    return ""


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
    fine = "nobody has to act" if found.findings else "healthy"
    work.output.say(fine if found.is_healthy else "somebody should act")
    return ExitCode.FINE if found.is_healthy else ExitCode.TROUBLE
