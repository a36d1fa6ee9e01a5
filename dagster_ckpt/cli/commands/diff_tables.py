"""diff-tables: which rows two tables differ in, or one table at two snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from dagster_ckpt.cli.code_location import CodeOptions, code_options, declared_in, job_in
from dagster_ckpt.cli.context import ExitCode, Invocation, command, key_values, pipeline_option
from dagster_ckpt.cli.output import Output
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.units import counted
from dagster_ckpt.operations.readers.diff_tables import TablesDiff, diff_tables
from dagster_ckpt.operations.readers.load_table import load_table, table_of
from dagster_ckpt.operations.readers.open_sink import own_table
from dagster_ckpt.spark.sink.rows import PublishedRows

NOW = "now"


@command("diff-tables")
@click.argument("before")
@click.argument("after")
@click.option("--sink", default="", metavar="UID", help="Sink of the pipeline; needed where it has several.")
@click.option(
    "--key", "key", multiple=True, metavar="COLUMN", help="Column that names a row; may be repeated."
)
@click.option(
    "--only", "only", multiple=True, metavar="COLUMN=TEXT", help="Leave out other rows; may be repeated."
)
@click.option(
    "--examples", type=click.IntRange(min=0), default=5, show_default=True, help="Rows shown of each kind."
)
@click.option("--exit-code", is_flag=True, help="Exit with 1 when they differ.")
@pipeline_option
@code_options
def diff_tables_(
    work: Invocation,
    *,
    before: str,
    after: str,
    sink: str,
    key: tuple[str, ...],
    only: tuple[str, ...],
    examples: int,
    exit_code: bool,
    pipeline: str,
    code: CodeOptions,
) -> ExitCode:
    """Compare two published tables: rows added, missing and, by their key, changed. Both are read into memory.

    BEFORE and AFTER are paths or URIs. With the pipeline's code (-m, -f or -w) they are snapshots of one of its tables,
    or 'now': diff-tables savepoint-7 now -p shop --sink totals -f defs.py. Its key is then the sink's.
    """
    narrowed = key_values("--only", only)
    with work.output.busy("comparing rows"):
        if code.is_given:
            with _of_pipeline(work.pipeline(pipeline), code, sink, before, after) as (one, other, keys):
                found = diff_tables(one, other, key=key or keys, examples=examples, only=narrowed)
        else:
            if sink:
                raise click.UsageError("--sink needs the pipeline's code: give -m, -f or -w")
            found = diff_tables(
                load_table(before), load_table(after), key=key, examples=examples, only=narrowed
            )
    work.output.result(found)
    _show(work.output, found)
    return ExitCode.TROUBLE if exit_code and not found.is_same else ExitCode.FINE


@contextmanager
def _of_pipeline(
    name: PipelineId, code: CodeOptions, sink: str, *moments: str
) -> Iterator[tuple[PublishedRows, PublishedRows, tuple[str, ...]]]:
    """Yield a table of a pipeline at two moments, and its key. Raises as ``load_table``."""
    import dagster as dg

    from dagster_ckpt.dagster.names import COORDINATOR_KEY, care_job_name

    declared = declared_in(code, name)
    assert declared is not None
    uid = table_of(declared, sink)
    resource = job_in(code, care_job_name(name)).resource_defs[COORDINATOR_KEY]
    with dg.build_resources({COORDINATOR_KEY: resource}) as resources:
        coordinator = getattr(resources, COORDINATOR_KEY)
        one, other = (
            own_table(declared, uid, coordinator).rows()
            if moment.strip().lower() == NOW
            else load_table(declared, uid, coordinator=coordinator, as_of=moment)
            for moment in moments
        )
        stage = declared.stages.get(uid)
        yield one, other, () if stage is None or stage.table is None else stage.table.key


def _show(output: Output, found: TablesDiff) -> None:
    """Show what two tables differ in."""
    output.say(
        f"before: {found.before} ({counted(found.rows[0], 'row')})\n"
        f"after:  {found.after} ({counted(found.rows[1], 'row')})"
    )
    for what, names in (("added", found.columns_added), ("missing", found.columns_missing)):
        if names:
            output.say(f"columns {what}: {', '.join(names)}")
    if found.is_same:
        output.say("they hold the same rows")
        return
    changed = f", {found.changed:,} changed" if found.key else ""
    output.say(
        f"{counted(found.same, 'row is', 'rows are')} the same, {found.added:,} added, {found.missing:,} missing"
        f"{changed}"
    )
    show_examples(output, found)


def show_examples(output: Output, found: TablesDiff) -> None:
    """Show some rows that are not the same."""
    for one in found.examples:
        sides = [side for side in (one.before, one.after) if side is not None]
        texts = [", ".join(f"{name}={value}" for name, value in side.items()) for side in sides]
        output.say(f"  {one.kind}: {' -> '.join(texts)}")
