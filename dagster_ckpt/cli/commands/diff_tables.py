"""diff-tables: which rows two tables differ in."""

from __future__ import annotations

import click

from dagster_ckpt.cli.context import ExitCode, Work, command
from dagster_ckpt.cli.output import Output
from dagster_ckpt.operations.diff_tables import TablesDiff, diff_tables
from dagster_ckpt.operations.load_table import load_table


@command("diff-tables")
@click.argument("before")
@click.argument("after")
@click.option(
    "--key", "key", multiple=True, metavar="COLUMN", help="Column that names a row; may be repeated."
)
@click.option(
    "--examples", type=click.IntRange(min=0), default=5, show_default=True, help="Rows shown of each kind."
)
@click.option("--exit-code", is_flag=True, help="Exit with 1 when they differ.")
def diff_tables_(
    work: Work, *, before: str, after: str, key: tuple[str, ...], examples: int, exit_code: bool
) -> ExitCode:
    """Compare two published tables, by path or URI: rows added, missing and, by their key, changed.

    Both are read into memory. One table at two snapshots is compared from Python: dagster_ckpt.diff_tables.
    """
    with work.output.busy("comparing rows"):
        found = diff_tables(load_table(before), load_table(after), key=key, examples=examples)
    work.output.result(found)
    _show(work.output, found)
    return ExitCode.TROUBLE if exit_code and not found.is_same else ExitCode.FINE


def _show(output: Output, found: TablesDiff) -> None:
    """Show what two tables differ in."""
    output.say(
        f"before: {found.before} ({found.rows[0]:,} rows)\nafter:  {found.after} ({found.rows[1]:,} rows)"
    )
    for what, names in (("added", found.columns_added), ("missing", found.columns_missing)):
        if names:
            output.say(f"columns {what}: {', '.join(names)}")
    if found.is_same:
        output.say("they hold the same rows")
        return
    changed = f", {found.changed:,} changed" if found.key else ""
    output.say(f"{found.same:,} rows are the same, {found.added:,} added, {found.missing:,} missing{changed}")
    show_examples(output, found)


def show_examples(output: Output, found: TablesDiff) -> None:
    """Show some rows that are not the same."""
    for one in found.examples:
        sides = [side for side in (one.before, one.after) if side is not None]
        texts = [", ".join(f"{name}={value}" for name, value in side.items()) for side in sides]
        output.say(f"  {one.kind}: {' -> '.join(texts)}")
