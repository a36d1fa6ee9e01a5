"""page: the checkpoint page of a pipeline, as a file or served."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import quote

import click

from dagster_ckpt.cli.code_location import CodeOptions, code_options
from dagster_ckpt.cli.context import ExitCode, Invocation, command, pipeline_option
from dagster_ckpt.cli.launch import WEBSERVER
from dagster_ckpt.core.ids import PipelineId, pipeline_id
from dagster_ckpt.dagster.names import (
    CONCURRENCY_TAG,
    RESTORE_OP,
    RestoreMode,
    epoch_job_name,
    restore_job_name,
)
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound
from dagster_ckpt.operations.deployment import Deployment
from dagster_ckpt.page.facts import CheckpointPage, Depth, Links, page_facts
from dagster_ckpt.page.html import index_html, page_html
from dagster_ckpt.page.server import PageServer

_REFRESH = 5
"""Seconds after which a served page is loaded again."""


@command("page")
@pipeline_option
@click.option(
    "-o", "--output", default="", metavar="FILE", help="Write there; default: <pipeline>-checkpoints.html."
)
@click.option("--serve", is_flag=True, help="Serve the pages of all pipelines on this machine until Ctrl-C.")
@click.option("--host", default="127.0.0.1", show_default=True, help="With --serve: where to listen.")
@click.option("--port", type=click.IntRange(0, 65535), default=3070, show_default=True, help="With --serve.")
@click.option(
    "--dagster", default="", metavar="URL", help="Dagster's webserver: runs and restores become links."
)
@click.option("--location", default="", metavar="NAME", help="With --dagster: the pipeline's code location.")
@code_options
def page(
    work: Invocation,
    *,
    pipeline: str,
    output: str,
    serve: bool,
    host: str,
    port: int,
    dagster: str,
    location: str,
    code: CodeOptions,
) -> ExitCode:
    """Make the checkpoint page: counts, durations, what can be restored, stages, history.

    One HTML file that needs nothing else; served, it is read again every few seconds. It is made from store and storage
    alone, so also of a pipeline whose machine is gone. With the code (-m, -f or -w) it shows commands that restore.
    """
    if dagster and not location:
        raise InvalidRequest("--dagster needs --location too: the code location that has the pipeline's jobs")
    if serve and output:
        raise InvalidRequest("give --serve or --output, not both")
    links_of = partial(_links, dagster, location) if dagster else partial(_commands, work, code)
    if serve:
        _serve(work, (host, port), pipeline, links_of)
        return ExitCode.FINE
    chosen = work.pipeline(pipeline)
    found = page_facts(work.deployment, chosen, now=time.time())
    path = Path(output or f"{chosen}-checkpoints.html")
    try:
        path.write_text(page_html(found, links=links_of(chosen)), encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(
            f"{path} cannot be written: {error.strerror}. Choose another --output"
        ) from error
    work.output.result({"file": str(path.absolute())})
    work.output.say(f"the checkpoint page of {chosen}: {path.absolute()}")
    return ExitCode.FINE


def _serve(work: Invocation, at: tuple[str, int], only: str, links_of: Callable[[PipelineId], Links]) -> None:
    deployment = work.deployment

    def render(name: str) -> str:
        chosen = name or only
        if not chosen:
            return index_html(_states(deployment), refresh=_REFRESH)
        known = pipeline_id(chosen)
        found = page_facts(deployment, known, now=time.time())
        return page_html(found, links=links_of(known), refresh=_REFRESH)

    with PageServer(*at, render) as server:
        work.output.result({"url": server.url})
        work.output.say(f"checkpoint pages at {server.url} (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            work.output.say("ended")


def _states(deployment: Deployment) -> dict[str, CheckpointPage | str]:
    """Return the state of each pipeline in the store, or a sentence why it has none."""
    found: dict[str, CheckpointPage | str] = {}
    for name in deployment.store.pipelines():
        try:
            found[name] = page_facts(deployment, name, now=time.time(), depth=Depth.STORE)
        except (NotFound, Corrupt) as error:
            found[name] = str(error)
    return found


def _commands(work: Invocation, code: CodeOptions, pipeline: PipelineId) -> Links:
    """Return commands that run as they are shown: a restore needs the code or a webserver, its preview neither."""
    does = "restore" if code.is_given or os.environ.get(WEBSERVER) else "preview"
    return Links(
        command=lambda key: work.output.worded(f"dagster-ckpt {does} {key} -p {pipeline}{code.as_given}")
    )


def _links(dagster: str, location: str, pipeline: PipelineId) -> Links:
    from dagster_ckpt.dagster.launchpad import restore_link
    from dagster_ckpt.dagster.reports.asset import checkpoints_asset_key

    url = dagster if "://" in dagster else f"http://{dagster}"

    def launchpad(job: str, further: Mapping[str, str], tags: Mapping[str, str], key: str) -> str:
        return restore_link(
            job_name=job,
            location=location,
            restore_op=RESTORE_OP,
            restore_from=key,
            ui_base_url=url,
            further=further,
            tags=tags,
        )

    return Links(
        run=lambda run: f"{url.rstrip('/')}/runs/{quote(run)}",
        restore=partial(launchpad, epoch_job_name(pipeline), {}, {}),
        preview=partial(
            launchpad,
            restore_job_name(pipeline),
            {"mode": RestoreMode.PREVIEW.value},
            # it changes nothing, and does not wait for the pipeline's turn in Dagster's queue
            {CONCURRENCY_TAG: f"{pipeline}/{RestoreMode.PREVIEW}"},
        ),
        asset=f"{url.rstrip('/')}/assets/{'/'.join(map(quote, checkpoints_asset_key(pipeline).path))}",
    )
