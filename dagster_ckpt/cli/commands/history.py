"""history, top, audit, page: a pipeline looked at, in the terminal and in a browser."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import quote

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dagster_ckpt.cli.code_location import CodeOptions, code_options
from dagster_ckpt.cli.context import ExitCode, Invocation, command, pipeline_option
from dagster_ckpt.cli.launch import WEBSERVER
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics, MinMaxAvg
from dagster_ckpt.core.ids import PipelineId, pipeline_id
from dagster_ckpt.core.units import ago, count, duration, moment, size
from dagster_ckpt.dagster.names import (
    CONCURRENCY_TAG,
    RESTORE_OP,
    RestoreMode,
    epoch_job_name,
    restore_job_name,
)
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound, printable
from dagster_ckpt.operations.deployment import AuditRow, Deployment, audit_of, load_record
from dagster_ckpt.page.facts import CheckpointPage, Depth, Links, page_facts
from dagster_ckpt.page.html import PageServer, index_html, page_html


@command("history")
@pipeline_option
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most so many.")
def history(work: Invocation, *, pipeline: str, limit: int) -> ExitCode:
    """Show a pipeline's last checkpoints, failed ones too: how long they took, how large they are, what went wrong."""
    found = _facts(work, work.pipeline(pipeline), limit)
    work.output.result(found)
    work.output.show(_shown(found))
    return ExitCode.FINE


@command("top")
@pipeline_option
@click.option(
    "--limit", type=click.IntRange(min=1), default=12, show_default=True, help="At most so many checkpoints."
)
@click.option("--every", type=click.FloatRange(min=0.2), default=1.0, show_default=True, metavar="SECONDS")
@click.option(
    "--times", type=click.IntRange(min=1), default=None, help="End after so many looks; default: Ctrl-C."
)
def top(work: Invocation, *, pipeline: str, limit: int, every: float, times: int | None) -> ExitCode:
    """Watch a pipeline's checkpoints live: what is in progress, and who is waited for. Ctrl-C ends it."""
    chosen = work.pipeline(pipeline)
    if work.output.as_json:
        work.output.result(_facts(work, chosen, limit))
        return ExitCode.FINE
    console = Console(highlight=False)
    looks = 0
    try:
        with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
            while True:
                live.update(_shown(_facts(work, chosen, limit)), refresh=True)
                looks += 1
                if times is not None and looks >= times:
                    return ExitCode.FINE
                time.sleep(every)
    except KeyboardInterrupt:
        return ExitCode.FINE


def _facts(work: Invocation, pipeline: PipelineId, limit: int) -> CheckpointPage:
    return page_facts(work.deployment, pipeline, now=time.time(), shown=limit, depth=Depth.STORE)


def _shown(page: CheckpointPage) -> Group:
    """Return the page as far as it fits 80 columns."""
    return Group(*_about(page), Text(), _table(page), *_failures(page))


def _about(page: CheckpointPage) -> list[Text]:
    counts = page.statistics.counts
    lines = [
        f"{page.pipeline}: {page.status}, attempt {page.epoch}, {'alive' if page.is_alive else 'no process is alive'}",
        f"{count(counts.total)} triggered, {count(counts.completed)} completed, {count(counts.failed)} failed, "
        f"{count(len(page.pending))} in progress, {count(counts.restored)} restored"
        + (f" (last from {page.restored_key})" if page.restored_key else ""),
    ]
    took, full = page.statistics.summary.duration, page.statistics.summary.bytes_full
    if took is not None:
        lines.append(
            f"duration {_spread(took)}" + (f"; full size up to {size(full.maximum)}" if full else "")
        )
    for one in page.pending:
        waits = f"waits for {', '.join(one.missing)}" if one.missing else "is being completed"
        lines.append(
            f"{one.key}: {len(one.acknowledged)} of {len(one.acknowledged) + len(one.missing)} acknowledged, {waits} "
            f"(since {duration(one.since)})"
        )
    lines += [line for line in (page.late_tables, page.history_begins) if line]
    if page.job_failure:
        lines.append(f"failed: {page.job_failure}")
    return [Text(printable(line)) for line in lines]


def _spread(numbers: MinMaxAvg) -> str:
    quantiles = numbers.quantiles
    return (
        f"median {duration(quantiles[0.5])}, p95 {duration(quantiles[0.95])}, p99 {duration(quantiles[0.99])}"
    )


def _table(page: CheckpointPage) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, right in (
        ("id", True), ("kind", False), ("status", False), ("when", False), ("took", True), ("size", True),
        ("new", True),
    ):  # fmt: skip
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for row in page.statistics.history:
        table.add_row(*_cells(page, row))
    return table


def _cells(page: CheckpointPage, row: CheckpointStatistics) -> tuple[str, ...]:
    return (
        str(row.checkpoint_id),
        row.kind.noun,
        row.status.value.replace("_", " "),
        ago(page.now - row.triggered_at),
        duration(row.duration),
        size(row.bytes_full),
        size(row.bytes_new),
    )


def _failures(page: CheckpointPage) -> list[Text]:
    told = ((row.checkpoint_id, row.failure_message or row.failure_reason) for row in page.statistics.history)
    return [Text(printable(f"{number} failed: {why}")) for number, why in told if why]


NOTHING = "from nothing"
"""In place of a snapshot, where a run was to begin without state."""


@command("audit")
@pipeline_option
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most so many.")
@click.option("--previews", is_flag=True, help="With what was shown before each.")
def audit(work: Invocation, *, pipeline: str, limit: int, previews: bool) -> ExitCode:
    """Show who restored, forked, swapped readers to and disposed of what, newest first."""
    chosen = work.pipeline(pipeline)
    found = audit_of(work.deployment, chosen, limit=limit)
    if not found:
        load_record(work.deployment.store, chosen)  # says what there is
    work.output.result(found)
    if not found:
        work.output.say("nobody has restored, forked, swapped or disposed of anything, or begun from nothing")
        return ExitCode.FINE
    if not previews:
        now = time.time()
        rows = [(ago(now - row.at), row.what, row.key or NOTHING, _who(row)) for row in found]
        work.output.list("", ("when", "what", "snapshot", "who"), rows)
        return ExitCode.FINE
    for row in found:
        work.output.say(f"{moment(row.at)}  {row.what} {row.key or NOTHING}  {_who(row)}")
        if row.uri:
            work.output.say(f"  {row.uri}")
        for line in row.shown.splitlines():
            work.output.say(f"  | {line}")
    return ExitCode.FINE


def _who(row: AuditRow) -> str:
    """Return who it was, and the run, in a cell."""
    run = f"run {row.run_id[:8]}" if row.run_id else ""
    return ", ".join(one for one in (row.who, run) if one) or "-"


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
