"""diff, diff-tables: what two snapshots differ in; which rows two tables do, or one table at two snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import click

from dagster_ckpt.cli.code_location import CodeOptions, code_options, declared_in, job_in
from dagster_ckpt.cli.context import (
    ExitCode,
    Invocation,
    command,
    key_values,
    pipeline_option,
    snapshots_known,
)
from dagster_ckpt.cli.output import Output
from dagster_ckpt.cli.spark_session import spark_options, started
from dagster_ckpt.core.ids import PipelineId, pipeline_id
from dagster_ckpt.core.units import counted, duration, size
from dagster_ckpt.operations.readers.diff_tables import TablesDiff, diff_tables
from dagster_ckpt.operations.readers.load_table import load_table, table_of
from dagster_ckpt.operations.readers.open_sink import own_table
from dagster_ckpt.operations.snapshots.catalog import find_snapshot
from dagster_ckpt.operations.snapshots.diff import SnapshotDiff, StageDiff, ValueDifference, diff_snapshots
from dagster_ckpt.operations.snapshots.inspect import TableDiff, diff_state
from dagster_ckpt.spark.sink.rows import PublishedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    diff: SnapshotDiff
    keys: tuple[TableDiff, ...]


@command("diff")
@click.argument("before", shell_complete=snapshots_known)
@click.argument("after", shell_complete=snapshots_known)
@pipeline_option
@click.option("--keys", is_flag=True, help="Compare the keys of state too (starts Spark).")
@click.option(
    "--stage", "stages", multiple=True, metavar="UID", help="With --keys: only this stage; may be repeated."
)
@click.option(
    "--examples", type=click.IntRange(min=0), default=5, show_default=True, help="Keys shown of each kind."
)
@click.option("--exit-code", is_flag=True, help="Exit with 1 when they differ.")
@spark_options
def diff(
    work: Invocation,
    *,
    before: str,
    after: str,
    pipeline: str,
    keys: bool,
    stages: tuple[str, ...],
    examples: int,
    exit_code: bool,
    master: str,
    conf: tuple[str, ...],
) -> ExitCode:
    """Compare two snapshots: offsets, batches, sizes, files, settings, plan, and keys of state."""
    chosen = pipeline_id(pipeline) if pipeline else None
    old = find_snapshot(work.deployment, before, chosen).stored
    new = find_snapshot(work.deployment, after, chosen).stored
    found = diff_snapshots(old, new)
    tables: list[TableDiff] = []
    if keys:
        both = [s.uid for s in old.metadata.stages if new.metadata.stage(s.uid) is not None]
        with started(master, conf) as spark:
            for uid in stages or both:
                with work.output.busy(f"comparing the keys of {uid}"):
                    tables += diff_state(spark, old, new, uid, examples=examples)
    work.output.result(_Compared(diff=found, keys=tuple(tables)))
    _show_diff(work.output, found)
    _show_key_diffs(work.output, tables)
    is_same = found.is_same and all(table.is_same for table in tables)
    return ExitCode.TROUBLE if exit_code and not is_same else ExitCode.FINE


def _apart(seconds: float) -> str:
    if not seconds:
        return "the same moment"
    return f"{duration(abs(seconds))} {'earlier' if seconds < 0 else 'later'}"


def _show_diff(output: Output, found: SnapshotDiff) -> None:
    """Show what two snapshots differ in."""
    output.say(f"before: {found.before}\nafter:  {found.after} ({_apart(found.seconds)})")
    if found.is_same:
        output.say("they restore the same state")
    rows = [_stage_row(s) for s in found.stages]
    output.table("", ("stage", "in", "batch", "size", "files same>", "new>", "gone>"), rows)
    steps = [
        (s.uid, step.source, step.start, step.end, step.units) for s in found.stages for step in s.offsets
    ]
    if steps:
        output.table("offsets", ("stage", "source", "before", "after", "units>"), steps)
    _differences(output, "pipeline", (*found.values, *found.edges))
    for stage in found.stages:
        _differences(output, f"stage {stage.uid}", (*stage.values, *stage.conf, *stage.plan))


def _stage_row(s: StageDiff) -> tuple[object, ...]:
    batch = " -> ".join("-" if b is None else str(b) for b in s.batches)
    sizes = " -> ".join(size(b) for b in s.bytes_full)
    return (
        s.uid,
        s.presence,
        batch,
        sizes,
        s.files.same,
        size(s.files.bytes_added),
        size(s.files.bytes_removed),
    )


def _differences(output: Output, title: str, differences: Iterable[ValueDifference]) -> None:
    rows = [(d.name, d.before, d.after) for d in differences]
    if rows:
        output.table(title, ("what", "before", "after"), rows)


def _show_key_diffs(output: Output, tables: Sequence[TableDiff]) -> None:
    """Show which keys of state differ."""
    if not tables:
        return
    rows = [(t.stage, t.table, t.before, t.after, t.added, t.changed, t.removed) for t in tables]
    columns = ("stage", "state", "keys before>", "keys after>", "added>", "changed>", "removed>")
    output.table("keys of state", columns, rows)
    for table in tables:
        if table.examples:
            examples = [(e.kind, e.key, e.before, e.after) for e in table.examples]
            output.table(f"{table.stage} {table.table}", ("", "key", "before", "after"), examples)


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
