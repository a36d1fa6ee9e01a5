"""Starts a Dagster job and waits for it: through a running webserver, or in this process."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import click

from dagster_ckpt.cli.code import CodeOptions, definitions_in
from dagster_ckpt.errors import InvalidRequest, NotFound, Unavailable

__all__ = ["LaunchTarget", "Launched", "launch"]

_POLL_SECONDS = 1.0
_ENDED = ("SUCCESS", "FAILURE", "CANCELED")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTarget:
    """Where the job runs."""

    url: str = ""
    """Dagster's webserver; empty: in this process, with ``code``."""
    location: str = ""
    """Code location, where several have the job."""
    code: CodeOptions = field(default_factory=CodeOptions)
    detach: bool = False
    """Do not wait for the end (with ``url``)."""
    timeout: float | None = None
    """Seconds to wait for the end."""


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

    @property
    def has_failed(self) -> bool:
        """True where it ended without success."""
        return self.status in ("FAILURE", "CANCELED")


def launch(
    target: LaunchTarget, job: str, run_config: Mapping[str, Any], tags: Mapping[str, str]
) -> Launched:
    """Run ``job``. Raises InvalidRequest, NotFound when nobody has the job, Unavailable when the webserver is gone."""
    if target.url and target.code.is_given:
        raise InvalidRequest("give a webserver (--url) or code (-m, -f, -w), not both")
    if target.url:
        return _through_webserver(target, job, run_config, tags)
    if target.code.is_given:
        return _in_process(target, job, run_config, tags)
    raise InvalidRequest(
        "the pipeline's code is needed: name a running webserver (--url http://localhost:3000), or the code itself "
        "(-m module, -f file, -w workspace.yaml)"
    )


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
        return Unavailable(f"the webserver at {url} cannot be reached: {text}")
    return InvalidRequest(f"job {job!r} was not started by {url}: {text}")


# --- in this process ------------------------------------------------------------------------------------------


def _in_process(
    target: LaunchTarget, job: str, run_config: Mapping[str, Any], tags: Mapping[str, str]
) -> Launched:
    import dagster as dg

    found = _job(target.code, job)
    if not os.environ.get("DAGSTER_HOME"):
        click.echo("note: DAGSTER_HOME is not set, so Dagster keeps no record of this run", err=True)
    with (
        dg.DagsterInstance.get()
        if os.environ.get("DAGSTER_HOME")
        else dg.DagsterInstance.ephemeral() as instance
    ):
        result = found.execute_in_process(
            run_config=dict(run_config), instance=instance, tags=dict(tags), raise_on_error=False
        )
        failures = tuple(_failures(result))
        status = "SUCCESS" if result.success else "FAILURE"
        return Launched(run_id=result.run_id, job=job, status=status, where="this process", failures=failures)


def _job(code: CodeOptions, name: str) -> Any:
    names: list[str] = []
    for definitions in definitions_in(code):
        jobs = {job.name: job for job in definitions.resolve_all_job_defs()}
        if name in jobs:
            return jobs[name]
        names += [job for job in jobs if not job.startswith("__")]
    raise NotFound(f"the code has no job {name!r}. It has: {', '.join(sorted(names)) or 'none'}")


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
