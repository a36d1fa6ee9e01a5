"""Starts a Dagster job and waits for it: through a running webserver, or in this process."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from dagster_ckpt.cli.code_location import CodeOptions, code_options, job_in
from dagster_ckpt.cli.context import ExitCode, Invocation, refuse_unused, user
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.dagster.names import USER_TAG
from dagster_ckpt.errors import InvalidRequest, NotFound, Unavailable, first_line
from dagster_ckpt.extensions import PROGRAMS, extension, extension_names

WEBSERVER = "DAGSTER_CKPT_URL"
"""Variable of the environment: the webserver that runs are launched through."""
_POLL_SECONDS = 1.0
_ENDED = ("SUCCESS", "FAILURE", "CANCELED")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTarget:
    """Target of a launch: webserver or local process, code location, job."""

    url: str = ""
    """Dagster's webserver; empty: in this process, with ``code``."""
    location: str = ""
    """Code location, where several have the job."""
    code: CodeOptions = field(default_factory=CodeOptions)
    detach: bool = False
    """Do not wait for the end (with ``url``)."""
    timeout: float | None = None
    """Seconds to wait for the end."""


def of_program(
    work: Invocation, pipeline: PipelineId, asked: RestoreOptions | CheckpointRequest | Path
) -> ExitCode | None:
    """Let an extension restore what no job runs, take a snapshot of it, or show how a file would be a pipeline.

    None: there is no such program.
    """
    for name in extension_names(PROGRAMS):
        done: ExitCode | None = extension(PROGRAMS, name)(work, pipeline, asked)
        if done is not None:
            return done
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A run."""

    run_id: str
    job: str
    status: str
    """Dagster's: SUCCESS, FAILURE, CANCELED; when it was not waited for, what it was."""
    where: str
    """Its page, or "this process"."""
    failures: tuple[str, ...] = ()
    comparison: tuple[str, ...] = ()
    """Of a fork with what readers find, line by line, where the run made one in this process."""
    approved: str = ""
    """Approval that this comparison gave."""

    @property
    def has_failed(self) -> bool:
        """True where it ended without success."""
        return self.status in ("FAILURE", "CANCELED")


def _launch(
    target: LaunchTarget, job: str, run_config: Mapping[str, Any], tags: Mapping[str, str]
) -> Launched:
    """Run ``job``. Raises InvalidRequest, NotFound when nobody has the job, Unavailable when the webserver is gone."""
    if target.url and target.code.is_given:
        raise InvalidRequest(
            "give a webserver (--url, or DAGSTER_CKPT_URL of the environment) or code (-m, -f, -w), not both"
        )
    if not target.url:
        of_webserver = {
            "--location": target.location,
            "--detach": target.detach,
            "--timeout": target.timeout is not None,
        }
        refuse_unused(of_webserver, "is for a run through a webserver: give --url, or leave it out")
    if target.url:
        return _through_webserver(target, job, run_config, tags)
    if target.code.is_given:
        return _in_process(target, job, run_config, tags)
    raise InvalidRequest(
        "the pipeline's code is needed: name a running webserver (--url http://localhost:3000), or the code itself "
        "(-m module, -f file, -w workspace.yaml)"
    )


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
            "--timeout",
            type=click.FloatRange(min=0),
            default=None,
            metavar="SECONDS",
            help="With --url: wait so long.",
        ),
        click.option("--detach", is_flag=True, help="With --url: do not wait for the run's end."),
        click.option(
            "--location", default="", metavar="NAME", help="Code location, where several have the job."
        ),
        click.option("--url", envvar=WEBSERVER, default="", help="A running Dagster webserver."),
    ):
        decorated = option(decorated)
    return decorated


def launched(
    work: Invocation,
    target: LaunchTarget,
    job: str,
    op: str,
    *,
    config: Mapping[str, Any],
    tags: Mapping[str, str],
) -> Launched:
    """Run a job whose op ``op`` has this config."""
    # In this process Dagster itself tells how the run goes.
    waiting = work.output.busy(f"waiting for job {job}") if target.url else nullcontext()
    with waiting:
        return _launch(target, job, {"ops": {op: {"config": dict(config)}}}, {**tags, USER_TAG: user()})


def ended(work: Invocation, run: Launched, **more: Any) -> ExitCode:
    """Say how the run ended."""
    work.output.result({"run": run, **more})
    work.output.say(f"run {run.run_id} of job {run.job}: {run.status} ({run.where})")
    for failure in run.failures:
        work.output.say(f"  {failure}")
    return ExitCode.TROUBLE if run.has_failed else ExitCode.FINE


# --- through a webserver --------------------------------------------------------------------------------------


def _through_webserver(
    target: LaunchTarget, job: str, run_config: Mapping[str, Any], tags: Mapping[str, str]
) -> Launched:
    try:
        from dagster_graphql import DagsterGraphQLClient, DagsterGraphQLClientError
    except ModuleNotFoundError as error:
        raise InvalidRequest("--url needs dagster-graphql: pip install dagster-graphql") from error
    parts = urlsplit(target.url if "://" in target.url else f"http://{target.url}")
    if not parts.hostname:
        raise InvalidRequest(f"{target.url!r} is no address of a webserver")
    try:
        client = DagsterGraphQLClient(
            parts.hostname, port_number=parts.port, use_https=parts.scheme == "https"
        )
        run_id = client.submit_job_execution(
            job,
            repository_location_name=target.location or None,
            run_config=dict(run_config),
            tags=dict(tags),
        )
        where = f"{target.url.rstrip('/')}/runs/{run_id}"
        status = client.get_run_status(run_id).value
        until = None if target.timeout is None else time.monotonic() + target.timeout
        while not target.detach and status not in _ENDED:
            if until is not None and time.monotonic() > until:
                break
            time.sleep(_POLL_SECONDS)
            status = client.get_run_status(run_id).value
    except DagsterGraphQLClientError as error:
        raise _meaning(error, target.url, job) from error
    return Launched(run_id=run_id, job=job, status=status, where=where)


def _meaning(error: Exception, url: str, job: str) -> InvalidRequest | NotFound | Unavailable:
    text = str(error)
    if "No jobs with the name" in text or "NotFound" in text:
        return NotFound(f"the webserver at {url} has no job {job!r}: {text}")
    if "connect" in text.lower() or "HTTPError" in text or "Exception" in type(error.__cause__).__name__:
        # The client's own text is the query it has sent; what happened is its cause.
        why = first_line(error.__cause__ or text)
        return Unavailable(f"the webserver at {url} cannot be reached: {why}")
    return InvalidRequest(f"job {job!r} was not started by {url}: {text}")


# --- in this process ------------------------------------------------------------------------------------------


def _in_process(
    target: LaunchTarget, job: str, run_config: Mapping[str, Any], tags: Mapping[str, str]
) -> Launched:
    import dagster as dg

    from dagster_ckpt.dagster.jobs.blue_green import told_comparison

    found = job_in(target.code, job)
    if not os.environ.get("DAGSTER_HOME"):
        click.echo("note: DAGSTER_HOME is not set, so Dagster keeps no record of this run", err=True)
    with (
        dg.DagsterInstance.get()
        if os.environ.get("DAGSTER_HOME")
        else dg.DagsterInstance.ephemeral() as instance
    ):
        result = found.execute_in_process(
            run_config={**_FEW_LINES, **run_config}, instance=instance, tags=dict(tags), raise_on_error=False
        )
        failures = tuple(_failures(result))
        comparison, approved = told_comparison(result.all_events)
        status = "SUCCESS" if result.success else "FAILURE"
        return Launched(
            run_id=result.run_id,
            job=job,
            status=status,
            where="this process",
            failures=failures,
            comparison=comparison,
            approved=approved,
        )


_FEW_LINES = {"loggers": {"console": {"config": {"log_level": "INFO"}}}}
"""Dagster's own events are lines of level DEBUG on the console: forty around the two that matter."""


def _failures(result: Any) -> list[str]:
    """Return one sentence per failed step: what the op raised for people, else the error."""
    found = []
    for event in result.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            description = data.user_failure_data.description if data.user_failure_data else None
            cause = data.error.message.strip() if data.error else "no cause was recorded"
            found.append(f"{event.step_key}: {description or cause}")
    return found


def savepoint_added(pipeline: PipelineId, key: str) -> None:
    """Add the partition of a savepoint, where this machine has a Dagster instance (``DAGSTER_HOME``)."""
    _change(pipeline, key, is_there=True)


def savepoint_removed(pipeline: PipelineId, key: str) -> None:
    """Remove the partition of a savepoint, as it was added."""
    _change(pipeline, key, is_there=False)


def _change(pipeline: PipelineId, key: str, *, is_there: bool) -> None:
    if not os.environ.get("DAGSTER_HOME"):
        return
    import dagster as dg

    from dagster_ckpt.dagster.reports.asset import checkpoints_partitions

    name = checkpoints_partitions(pipeline).name or ""
    try:
        with dg.DagsterInstance.get() as instance:
            if is_there:
                instance.add_dynamic_partitions(name, [key])
            else:
                instance.delete_dynamic_partition(name, key)
    except Exception as error:  # the store is what counts; the list in the UI can be repaired by the next run
        click.echo(f"note: the partitions in Dagster were not changed: {error}", err=True)
