"""upgrade: a stage that cannot go on from its state is rebuilt from its input, and takes over in one checkpoint."""

from __future__ import annotations

import os

import click

from dagster_ckpt.cli.code_location import CodeOptions, code_options, declared_in, resources_in
from dagster_ckpt.cli.context import ExitCode, Invocation, command, pipelines_known
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.errors import InvalidRequest


@command("upgrade", short_help="rebuild one stage beside the running pipeline")
@click.argument("pipeline", shell_complete=pipelines_known)
@click.option("--rebuild", "uid", required=True, metavar="UID", help="Sink that is rebuilt from its input.")
@click.option(
    "--start-mode",
    default="",
    metavar="MODE",
    help="Where topics begin: from-beginning, from-now, or a moment (2026-11-28T06:00Z); default: as the code says.",
)
@click.option("--stop-stream", is_flag=True, help="Stop a running stream, once it has caught up.")
@click.option("--again", is_flag=True, help="Begin empty, whatever an earlier try has done.")
@click.option("--allow-non-restored-state", is_flag=True, help="Drop state of stages that are gone.")
@code_options
def upgrade(
    work: Invocation,
    *,
    pipeline: str,
    uid: str,
    start_mode: str,
    stop_stream: bool,
    again: bool,
    allow_non_restored_state: bool,
    code: CodeOptions,
) -> ExitCode:
    """Rebuild one sink of PIPELINE, and what leads to it alone, with the changed code (-m, -f or -w).

    It catches up beside the deployed pipeline; then one epoch of the changed code begins with it in the old one's
    place, and the others keep their state. Killed, it is started again; deploy the changed code when it has ended.
    """
    from dagster_ckpt.dagster.names import COORDINATOR_KEY, SPARK_KEY, epoch_job_name
    from dagster_ckpt.ext.upgrade_plan.rebuild import Rebuilding

    if not code.is_given:
        raise InvalidRequest("give the changed code: -f FILE, -m MODULE or -w WORKSPACE")
    declared = declared_in(code, pipeline_id(pipeline))
    assert declared is not None
    os.nice(19)  # before Java starts: the deployed pipeline, maybe on this machine, keeps its processors
    keys = sorted(declared.resource_keys)
    with resources_in(code, epoch_job_name(declared.name), [COORDINATOR_KEY, SPARK_KEY, *keys]) as found:
        rebuilding = Rebuilding.of(
            declared,
            uid,
            coordinator=getattr(found, COORDINATOR_KEY),
            spark=getattr(found, SPARK_KEY).session,
            start_mode=start_mode,
            stops_stream=stop_stream,
            given={"resources": {key: getattr(found, key) for key in keys}},
            allow_non_restored_state=allow_non_restored_state,
            step=lambda step: work.output.say(f"{uid}: {step}"),
        )
        end = rebuilding.carry_out(again=again)
    assert end.checkpoint is not None
    work.output.result({"pipeline": declared.name, "rebuilt": uid, "checkpoint": end.checkpoint.uri})
    work.output.say(f"{uid} was rebuilt and has taken over in {end.checkpoint.uri}: deploy the changed code")
    return ExitCode.FINE
