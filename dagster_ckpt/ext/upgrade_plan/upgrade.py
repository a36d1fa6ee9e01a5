"""upgrade: a stage that cannot go on from its state is rebuilt from its input, and takes over in one checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.cli.code_location import CodeOptions, code_options, declared_in, job_in
from dagster_ckpt.cli.context import ExitCode, Invocation, command, pipelines_known
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.errors import InvalidRequest


@command("upgrade", short_help="rebuild one stage beside the running pipeline")
@click.argument("pipeline", shell_complete=pipelines_known)
@click.option("--rebuild", "uid", required=True, metavar="UID", help="Sink that is rebuilt from its input.")
@click.option("--again", is_flag=True, help="Begin anew, whatever an earlier try has done.")
@click.option("--allow-non-restored-state", is_flag=True, help="Drop state of stages that are gone.")
@code_options
def upgrade(
    work: Invocation,
    *,
    pipeline: str,
    uid: str,
    again: bool,
    allow_non_restored_state: bool,
    code: CodeOptions,
) -> ExitCode:
    """Rebuild one sink of PIPELINE, and what leads to it alone, with the changed code (-m, -f or -w).

    It catches up beside the deployed pipeline; then one epoch of the changed code begins with it in the old one's
    place, and the others keep their state. Killed, it is started again; deploy the changed code when it has ended.
    """
    from dagster_ckpt.ext.upgrade_plan.rebuild import Rebuilding

    if not code.is_given:
        raise InvalidRequest("give the changed code: -f FILE, -m MODULE or -w WORKSPACE")
    declared = declared_in(code, pipeline_id(pipeline))
    assert declared is not None
    with _opened(declared, code) as given:
        rebuilding = Rebuilding.of(
            declared,
            uid,
            allow_non_restored_state=allow_non_restored_state,
            step=lambda step: work.output.say(f"{uid}: {step}"),
            **given,
        )
        end = rebuilding.carry_out(again=again)
    assert end.checkpoint is not None
    work.output.result({"pipeline": declared.name, "rebuilt": uid, "checkpoint": end.checkpoint.uri})
    work.output.say(f"{uid} was rebuilt and has taken over in {end.checkpoint.uri}: deploy the changed code")
    return ExitCode.FINE


@contextmanager
def _opened(pipeline: CheckpointedPipeline, code: CodeOptions) -> Iterator[dict[str, Any]]:
    """Yield the coordinator, the session and the resources of a pipeline's job."""
    import dagster as dg

    from dagster_ckpt.dagster.names import COORDINATOR_KEY, SPARK_KEY, epoch_job_name

    bound = job_in(code, epoch_job_name(pipeline.name)).resource_defs
    wanted = {key: bound[key] for key in (COORDINATOR_KEY, SPARK_KEY, *pipeline.resource_keys)}
    with dg.build_resources(wanted) as resources:
        yield {
            "coordinator": getattr(resources, COORDINATOR_KEY),
            "spark": getattr(resources, SPARK_KEY).session,
            "given": {"resources": {key: getattr(resources, key) for key in pipeline.resource_keys}},
        }
