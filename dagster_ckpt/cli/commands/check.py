"""check: the reasons not to start that need no data, of every pipeline of the code."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from dagster_ckpt.cli.code_location import CodeOptions, code_options, definitions_in, pipelines_in
from dagster_ckpt.cli.context import ExitCode, Invocation, command, exit_code_of
from dagster_ckpt.core.restore.start_checks import refuse_start
from dagster_ckpt.core.restore.start_facts import StartFacts
from dagster_ckpt.errors import CheckpointError, InvalidRequest, NotFound

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
