"""run: a program with every streaming query attached; its restore and its adoption, which no job of Dagster's makes."""

from __future__ import annotations

import runpy
import sys
from difflib import get_close_matches
from pathlib import Path

import click
from click.core import ParameterSource

from dagster_ckpt.cli.context import ExitCode, Invocation, command, refuse_unused
from dagster_ckpt.core.config import CheckpointConfig, RestoreOptions
from dagster_ckpt.core.ids import CheckpointId, PipelineId
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.attach.attachment import attach
from dagster_ckpt.ext.attach.idle import DEFAULTS, snapshot_of_idle
from dagster_ckpt.ext.attach.program import ProgramDirectory
from dagster_ckpt.ext.attach.restore import ProgramRestore
from dagster_ckpt.ext.attach.rewriting import adopted_program
from dagster_ckpt.spark.java.process import configures_logging, without_chatter
from dagster_ckpt.spark.java.sessions import keep_errors_off_the_console
from dagster_ckpt.spark.plan.errors import end_of_program
from dagster_ckpt.spark.session import without_java

_ELSEWHERE = ("store", "storage", "savepoints", "storage_option")
"""Options that name places of pipelines, whose parts may lie apart."""


@command("run", short_help="a program, its streaming queries attached")
@click.argument("program", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("-p", "--pipeline", required=True, metavar="NAME", help="Name that its checkpoints have.")
@click.option("--base-dir", default="", metavar="DIR", help="As --base.")
@click.option(
    "--restore-from", default="", metavar="SNAPSHOT", help="Put back before the first query starts, once."
)
@click.option("--fork-of", default="", metavar="NAME", help="Begin as a fork of another attached program.")
@click.option(
    "--keep-rows-of",
    multiple=True,
    metavar="UID",
    help="Stage of a fork that may write where its own code says; again for others.",
)
@click.option("--interval", default="", metavar="TIME", help="Between checkpoints (1 min); default: 10 s.")
def run(
    work: Invocation,
    *,
    program: str,
    arguments: tuple[str, ...],
    pipeline: str,
    base_dir: str,
    restore_from: str,
    fork_of: str,
    keep_rows_of: tuple[str, ...],
    interval: str,
) -> None:
    """Run PROGRAM with ARGUMENTS as `python PROGRAM` does: its streaming queries are checkpointed together.

    Arguments that are options of this command go behind `--`.
    """
    base = base_dir or work.locations.base
    if not base:
        raise InvalidRequest(
            "say where its checkpoints are to be: --base-dir DIR (environment: DAGSTER_CKPT_BASE)"
        )
    source = click.get_current_context().get_parameter_source
    typed = {
        f"--{name.replace('_', '-')}": source(name) is ParameterSource.COMMANDLINE for name in _ELSEWHERE
    }
    refuse_unused(typed, "says nothing to run: all that an attached program keeps is below --base-dir")
    settings = {"interval": interval} if interval else {}
    attached = attach(
        pipeline,
        base_dir=base,
        restore_from=restore_from,
        fork_of=fork_of,
        keep_rows_of=keep_rows_of,
        **settings,
    )
    ours = [name for option in run.params for name in option.opts]
    for word in arguments:
        if near := get_close_matches(word.partition("=")[0], ours, n=1, cutoff=0.8):
            click.echo(f"dagster_ckpt: {word} goes to {program}: did you mean {near[0]}?", err=True)
    sys.argv = [program, *arguments]
    sys.path.insert(0, str(Path(program).resolve().parent))
    attached.is_quiet = not configures_logging({})
    if attached.is_quiet:
        keep_errors_off_the_console()
    try:
        with without_chatter({}):
            runpy.run_path(program, run_name="__main__")
    except BaseException as error:
        if attached.was_stopped and isinstance(error, KeyboardInterrupt):
            return  # the signal that ends a program which does not end by itself
        by_itself = end_of_program(error, called="_run_code") if isinstance(error, Exception) else None
        told = without_java(error) or by_itself
        attached.failed(told or error)
        if told is None or told is error:
            raise
        raise told from error


run.context_settings["ignore_unknown_options"] = True


def restored(
    work: Invocation, pipeline: PipelineId, asked: RestoreOptions | CheckpointRequest | Path
) -> ExitCode | None:
    """Put an attached program back that does not run, or take a snapshot of it; None: the pipeline is none.

    Of a file in Python, show the program with our decorators.
    """
    base = work.locations.base
    if isinstance(asked, Path):
        return _adopted(work, pipeline, asked)
    programs = Path(base).expanduser().absolute() / "programs"
    directory = ProgramDirectory(programs / pipeline)
    if not base or not directory.record.exists():
        return None
    if isinstance(asked, CheckpointRequest):
        done = snapshot_of_idle(work.deployment, pipeline, asked, programs=programs)
        work.output.snapshot(asked.kind, CheckpointId(done.metadata.checkpoint_id), done.location.uri)
        return ExitCode.FINE
    savepoints = {"savepoint_dir": work.deployment.savepoint_dir}
    ProgramRestore(
        deployment=work.deployment,
        pipeline=pipeline,
        directory=directory,
        options=asked,
        config=CheckpointConfig.layered(DEFAULTS, savepoints).of_stream,
        tell=work.output.say,
    ).run()
    work.output.say("start the program as ever: its queries go on from there")
    return ExitCode.FINE


def _adopted(work: Invocation, pipeline: PipelineId, file: Path) -> ExitCode:
    made = adopted_program(file, pipeline=pipeline, base=work.locations.base)
    work.output.result(made)
    if not work.output.as_json:
        click.echo(made.diff, nl=False)  # as it is: to be piped to `patch`
    for line in (*made.notes, *made.refusals):
        work.output.say(line)
    if made.takes_over:
        work.output.say(f"to go on where it stopped: {made.takes_over}")
    return ExitCode.TROUBLE if made.refusals else ExitCode.FINE
