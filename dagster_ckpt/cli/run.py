"""savepoint, restore, fork: what needs the pipeline's code, so it is done by a Dagster job."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import click

from dagster_ckpt.cli.code import code_options, graph_in
from dagster_ckpt.cli.frame import ExitCode, Work, command, key_values, label_option, pipeline_option
from dagster_ckpt.cli.launch import Launched, LaunchTarget, launch
from dagster_ckpt.cli.look_tables import show_preview
from dagster_ckpt.core.config import ClaimMode, RestoreOptions
from dagster_ckpt.core.ids import PipelineId, pipeline_id
from dagster_ckpt.operations.catalog import find_snapshot, savepoint_of_run
from dagster_ckpt.operations.preview import preview_restore

_SAVEPOINT_JOB = "{}_savepoint"
_STREAMING_JOB = "{}_streaming"
_STOP_JOB = "{}_stop"
_TAG = "dagster_ckpt/started_by"


def launch_options(function: Any) -> Any:
    """Add where the job runs; the function gets one ``LaunchTarget`` as ``target``."""

    @functools.wraps(function)
    def run(
        *args: Any, url: str, location: str, code: Any, detach: bool, timeout: float | None, **rest: Any
    ) -> Any:
        target = LaunchTarget(url=url, location=location, code=code, detach=detach, timeout=timeout)
        return function(*args, target=target, **rest)

    decorated: Any = code_options(run)
    for option in (
        click.option(
            "--timeout", type=float, default=None, metavar="SECONDS", help="With --url: wait so long."
        ),
        click.option("--detach", is_flag=True, help="With --url: do not wait for the run's end."),
        click.option(
            "--location", default="", metavar="NAME", help="Code location, where several have the job."
        ),
        click.option("--url", envvar="DAGSTER_CKPT_URL", default="", help="A running Dagster webserver."),
    ):
        decorated = option(decorated)
    return decorated


def _launched(
    work: Work, target: LaunchTarget, job: str, op: str, *, config: Mapping[str, Any], tags: Mapping[str, str]
) -> Launched:
    # In this process Dagster itself tells how the run goes.
    waiting = work.output.busy(f"waiting for job {job}") if target.url else nullcontext()
    with waiting:
        return launch(target, job, {"ops": {op: {"config": dict(config)}}}, tags)


def _ended(work: Work, run: Launched, **more: Any) -> ExitCode:
    work.output.result({"run": run, **more})
    work.output.say(f"run {run.run_id} of job {run.job}: {run.status} ({run.where})")
    for failure in run.failures:
        work.output.say(f"  {failure}")
    return ExitCode.TROUBLE if run.has_failed else ExitCode.FINE


# --- savepoint ------------------------------------------------------------------------------------------------


@command("savepoint")
@click.argument("pipeline")
@click.option(
    "--target", "folder", default="", metavar="URI", help="Folder to write below; default: the resource's."
)
@click.option(
    "--stop",
    type=click.Choice(["suspend", "drain"]),
    default=None,
    help="End the running stream with it; drain: process what the sources have read to the end first.",
)
@label_option
@launch_options
def savepoint(
    work: Work,
    *,
    pipeline: str,
    folder: str,
    stop: str | None,
    name: str | None,
    note: str | None,
    labels: tuple[str, ...],
    target: LaunchTarget,
) -> ExitCode:
    """Take a savepoint of PIPELINE, with the job <pipeline>_savepoint, or <pipeline>_stop to end a stream with it."""
    chosen = pipeline_id(pipeline)
    said = {"target": folder, "name": name or "", "note": note or "", "labels": key_values("--label", labels)}
    job = _SAVEPOINT_JOB if stop is None else _STOP_JOB
    op = "savepoint" if stop is None else "stop"
    config = said if stop is None else {**said, "drain": stop == "drain"}
    run = _launched(
        work, target, job.format(chosen), op, config=config, tags={_TAG: "dagster-ckpt savepoint"}
    )
    newest = _newest_savepoint(work, chosen, run)
    if newest is not None:
        work.output.say(f"{newest['key']}: {newest['uri']}")
    return _ended(work, run, savepoint=newest)


def _newest_savepoint(work: Work, pipeline: PipelineId, run: Launched) -> dict[str, str] | None:
    """Return the savepoint of the run, where the store is within reach."""
    if run.status != "SUCCESS" or not work.locations.is_given:
        return None
    taken = savepoint_of_run(work.deployment, pipeline, run.run_id)
    return None if taken is None else {"key": taken.key, "uri": taken.uri}


# --- restore and fork -----------------------------------------------------------------------------------------


def restore_options(function: Any) -> Any:
    """Add how to restore."""
    for option in (
        click.option("--streaming", is_flag=True, help="Start the streaming job."),
        click.option("--no-preview", is_flag=True, help="Do not look first whether the restore can be made right."),
        click.option("--allow-non-restored-state", is_flag=True, help="Drop state of stages that are gone."),
        click.option("--claim-mode", type=click.Choice([m.value for m in ClaimMode]), default="no_claim",
                     show_default=True, help="Who owns the snapshot afterwards."),
    ):  # fmt: skip
        function = option(function)
    return function


@command("restore")
@click.argument("snapshot")
@pipeline_option
@click.option("--keep-rows", is_flag=True, help="Leave rows in tables that came after the restore point.")
@restore_options
@launch_options
def restore(
    work: Work,
    *,
    snapshot: str,
    pipeline: str,
    keep_rows: bool,
    claim_mode: str,
    allow_non_restored_state: bool,
    no_preview: bool,
    streaming: bool,
    target: LaunchTarget,
) -> ExitCode:
    """Run a pipeline from SNAPSHOT. Where store and storage are given, it is previewed and may be refused first."""
    chosen = work.pipeline(pipeline)
    options = RestoreOptions(
        restore_from=snapshot,
        claim_mode=ClaimMode(claim_mode),
        allow_non_restored_state=allow_non_restored_state,
        roll_back_tables=not keep_rows,
    )
    if not no_preview and not _is_possible(work, options, chosen, target):
        return ExitCode.TROUBLE
    return _start(work, options, chosen, target, streaming=streaming)


@command("fork")
@click.argument("new_pipeline")
@click.argument("snapshot")
@click.option("--of", "origin", default="", metavar="NAME", help="Pipeline whose snapshot it is.")
@restore_options
@launch_options
def fork(
    work: Work,
    *,
    new_pipeline: str,
    snapshot: str,
    origin: str,
    claim_mode: str,
    allow_non_restored_state: bool,
    no_preview: bool,
    streaming: bool,
    target: LaunchTarget,
) -> ExitCode:
    """Start NEW_PIPELINE, which the code declares with pipeline.fork(...), from another pipeline's SNAPSHOT.

    Its queries get new ids and its tables begin with the rows of the snapshot; the original runs on.
    """
    chosen = pipeline_id(new_pipeline)
    found = find_snapshot(work.deployment, snapshot, pipeline_id(origin) if origin else None)
    options = RestoreOptions(
        restore_from=found.location.uri,
        claim_mode=ClaimMode(claim_mode),
        allow_non_restored_state=allow_non_restored_state,
        fork=True,
    )
    if not no_preview and not _is_possible(work, options, chosen, target):
        return ExitCode.TROUBLE
    return _start(work, options, chosen, target, streaming=streaming)


def _is_possible(work: Work, options: RestoreOptions, pipeline: PipelineId, target: LaunchTarget) -> bool:
    if not work.locations.is_given:
        return True  # the run itself decides
    found = preview_restore(work.deployment, options, pipeline, graph=graph_in(target.code, pipeline))
    if not found.is_possible:
        work.output.result({"preview": found, "run": None})
        show_preview(work.output, found)
    return found.is_possible


def _start(
    work: Work, options: RestoreOptions, pipeline: PipelineId, target: LaunchTarget, *, streaming: bool
) -> ExitCode:
    config = {
        "restore_from": options.restore_from,
        "claim_mode": options.claim_mode.value,
        "allow_non_restored_state": options.allow_non_restored_state,
        "roll_back_tables": options.roll_back_tables,
        "fork": options.fork,
    }
    job = _STREAMING_JOB.format(pipeline) if streaming else str(pipeline)
    op = "stream" if streaming else "restore"
    tags = {_TAG: "dagster-ckpt restore", "dagster_ckpt/restore_from": options.restore_from}
    run = _launched(work, target, job, op, config=config, tags=tags)
    return _ended(work, run)
