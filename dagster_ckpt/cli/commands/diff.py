"""diff: what two snapshots differ in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import click

from dagster_ckpt.cli.context import ExitCode, Invocation, command, pipeline_option, snapshots_known
from dagster_ckpt.cli.output import Output
from dagster_ckpt.cli.spark_session import spark_options, started
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.core.units import duration, size
from dagster_ckpt.operations.snapshots.catalog import find_snapshot
from dagster_ckpt.operations.snapshots.diff import SnapshotDiff, StageDiff, ValueDifference, diff_snapshots
from dagster_ckpt.operations.snapshots.diff_state import TableDiff, diff_state


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
