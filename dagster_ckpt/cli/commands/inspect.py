"""inspect: a stage's state at a snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dagster_ckpt.cli.context import Invocation, command, pipeline_option, snapshots_known
from dagster_ckpt.cli.spark_session import spark_options, started
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.core.units import counted
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.operations.snapshots.catalog import find_snapshot
from dagster_ckpt.operations.snapshots.inspect import open_state, state_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@command("inspect")
@click.argument("snapshot", shell_complete=snapshots_known)
@click.argument("stage")
@click.argument("table", default="")
@pipeline_option
@click.option("--tables", is_flag=True, help="Only name the tables of state (no Spark needed).")
@click.option(
    "--where", default="", metavar="SQL", help="Only rows for which this holds, e.g. \"key.k = 'N123'\"."
)
@click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, help="Rows shown.")
@click.option("--output", "target", default="", metavar="DIR", help="Write all rows as Parquet instead.")
@spark_options
def inspect(
    work: Invocation,
    *,
    snapshot: str,
    stage: str,
    table: str,
    pipeline: str,
    tables: bool,
    where: str,
    limit: int,
    target: str,
    master: str,
    conf: tuple[str, ...],
) -> None:
    """Show the state a STAGE had at a SNAPSHOT, read by Spark from the saved copy.

    TABLE is needed where the stage has several: an operator's number, with the side of a join or the state variable
    (0/left, 1/total).
    """
    stored = find_snapshot(work.deployment, snapshot, pipeline_id(pipeline) if pipeline else None).stored
    if tables:
        found = state_tables(stored, stage)
        work.output.result(found)
        work.output.table("", ("table", "operator"), [(t.name, t.operator_name) for t in found])
        return
    with started(master, conf) as spark, open_state(spark, stored, stage) as state:
        frame = _filtered(state.frame(table), where)
        if target:
            with work.output.busy("writing state"):
                frame.write.mode("errorifexists").parquet(str(Path(target).absolute()))
            work.output.result({"table": state.table(table).name, "written_to": target})
            work.output.say(f"written to {target}")
            return
        with work.output.busy("reading state"):
            total = frame.count()
            rows = [row.asDict(recursive=True) for row in frame.limit(limit).collect()]
        _show(work, state.table(table).name, total, rows, frame)


def _filtered(frame: DataFrame, where: str) -> DataFrame:
    if not where:
        return frame
    from pyspark.errors import AnalysisException, ParseException

    try:
        return frame.where(where)
    except (AnalysisException, ParseException) as error:
        columns = ", ".join(frame.columns)
        first = str(error).partition("\n")[0]
        raise InvalidRequest(f"--where {where!r} cannot be used: {first} (columns: {columns})") from error


def _show(work: Invocation, table: str, total: int, rows: list[dict[str, Any]], frame: DataFrame) -> None:
    work.output.result({"table": table, "rows": total, "schema": frame.schema.simpleString(), "shown": rows})
    columns = list(frame.columns)
    work.output.table(
        f"{table}: {counted(total, 'row')}", columns, [tuple(row[c] for c in columns) for row in rows]
    )
