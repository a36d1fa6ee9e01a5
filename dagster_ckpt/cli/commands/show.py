"""show, inspect: what one snapshot holds, and a stage's state at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dagster_ckpt.cli.code_location import CodeOptions, code_options, declared_in, horizons_in
from dagster_ckpt.cli.context import Invocation, command, pipeline_option, snapshots_known
from dagster_ckpt.cli.output import Output, show_positions
from dagster_ckpt.cli.spark_session import spark_options, started
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.restore.horizon import Horizon, topic_positions
from dagster_ckpt.core.units import counted, duration, moment, size
from dagster_ckpt.errors import InvalidRequest, first_line
from dagster_ckpt.operations.deployment import Readers, find_record, readers_of
from dagster_ckpt.operations.snapshots.catalog import FoundSnapshot, find_snapshot
from dagster_ckpt.operations.snapshots.contents import SubtaskState, subtasks_of
from dagster_ckpt.operations.snapshots.inspect import StateTable, open_state, state_tables
from dagster_ckpt.spark.source.positions import LagReader, SourceLag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    key: str
    uri: str
    is_recorded: bool
    metadata: dict[str, Any]
    """As stored, but for offsets, which are no text within text."""
    state: dict[str, tuple[StateTable, ...]]
    subtasks: dict[str, tuple[SubtaskState, ...]]
    positions: tuple[SourceLag, ...]
    horizon: Horizon | None
    """For how long it can be restored; None: no code was given, or the store does not know it."""
    readers: Readers | None
    """Swap by which its pipeline serves, or is served by another; None: there was none."""


@command("show")
@click.argument("snapshot", shell_complete=snapshots_known)
@pipeline_option
@code_options
def show(work: Invocation, *, snapshot: str, pipeline: str, code: CodeOptions) -> None:
    """Show what a snapshot holds: stages, offsets, sizes, state, tables.

    With the pipeline's code (-m, -f or -w) it also says how far behind the ends of its topics it is, and for how
    long it can still be restored.
    """
    found = find_snapshot(work.deployment, snapshot, pipeline_id(pipeline) if pipeline else None)
    stored = found.stored
    state = {s.uid: state_tables(stored, s.uid) for s in stored.metadata.stages}
    subtasks = {s.uid: subtasks_of(stored, s) for s in stored.metadata.stages}
    declared = declared_in(code, found.pipeline)
    positions = LagReader(pipeline=declared).read(stored.metadata)
    horizon = _horizon(found, code)
    record = find_record(work.deployment.store, found.pipeline)
    readers = None if record is None else readers_of(work.deployment.store, record)
    work.output.result(
        _Shown(
            key=found.key,
            uri=found.location.uri,
            is_recorded=found.known is not None,
            metadata=_plain(stored.metadata),
            state=state,
            subtasks=subtasks,
            positions=positions,
            horizon=horizon,
            readers=readers,
        )
    )
    _show_snapshot(work.output, found, state, horizon, readers, tables=_tables(record, found))
    for uid, own in subtasks.items():
        if own:
            work.output.say(f"subtasks of {uid}: {_spread(own)}")
    show_positions(work.output, positions)


def _spread(subtasks: Sequence[SubtaskState]) -> str:
    """Return how evenly the state of a stage is spread over its subtasks; each of them is in the JSON."""
    least, most = (f(subtasks, key=lambda one: one.bytes_full) for f in (min, max))
    small, large = size(least.bytes_full), size(most.bytes_full)
    each = f"{small} each" if small == large else f"from {small} ({least.index}) to {large} ({most.index})"
    return f"{len(subtasks)}, {each}"


def _plain(metadata: CheckpointMetadata) -> dict[str, Any]:
    """Return the metadata for programs: an offset that is JSON is written out."""
    found = metadata.model_dump(mode="json")
    for stage in found["stages"]:
        stage["offsets"] = {source: _value(offset) for source, offset in stage["offsets"].items()}
    return found


def _value(offset: str) -> Any:
    try:
        return parse_json(offset)
    except ValueError:
        return offset


def _horizon(found: FoundSnapshot, code: CodeOptions) -> Horizon | None:
    if not code.is_given or found.known is None:
        return None
    return next((one for one in horizons_in(code, found.pipeline) if one.key == found.key), None)


def _tables(record: CoordinatorRecord | None, found: FoundSnapshot) -> str:
    """Say whether tables show the snapshot: whoever loads several of them gets rows of one checkpoint."""
    if record is None or found.known is None or record.shown_id is None:
        return ""
    if record.shown_id == found.known.checkpoint_id:
        return "all of them show it"
    return record.late_tables if found.known.checkpoint_id > record.shown_id else ""


def _brief(offset: str) -> str:
    """Return an offset for a cell; those of topics have a table of their own."""
    positions = topic_positions(offset)
    if positions is None:
        return offset
    count = sum(len(partitions) for partitions in positions.values())
    return counted(count, "partition")


def _kept(found: FoundSnapshot) -> str:
    """Return why the snapshot is kept, and until when."""
    known = found.known
    if known is None:
        return "" if found.stored.metadata.kind.is_savepoint else "by nobody: the store does not know it"
    if known.is_kept_for_its_owner:
        return "for you, until it is disposed of (dagster-ckpt dispose)"
    if known.stands_for:
        return f"for {known.kept_for} (setting retention), until there are enough newer ones"
    return "as one of the newest (setting num_retained, or keep_last of retention), until there are enough newer ones"


def _show_snapshot(
    output: Output,
    found: FoundSnapshot,
    state: Mapping[str, Sequence[StateTable]],
    horizon: Horizon | None,
    readers: Readers | None,
    *,
    tables: str,
) -> None:
    """Show one snapshot."""
    metadata = found.stored.metadata
    output.say(f"{found.key}  {metadata.kind}  of pipeline {metadata.pipeline}")
    for name, text in {
        "place": found.location.uri,
        "completed": moment(metadata.completed_at),
        "took": duration(metadata.completed_at - metadata.triggered_at),
        "attempt": f"{metadata.epoch}" + (f" (run {metadata.run_id})" if metadata.run_id else ""),
        "name": metadata.name,
        "note": metadata.note,
        "labels": ", ".join(f"{name}={value}" for name, value in metadata.labels.items()),
        "known to the store": "yes" if found.known is not None else "no",
        "kept": _kept(found),
        "restorable": "" if horizon is None else horizon.sentence(),
        "readers": "" if readers is None else readers.sentence(metadata.pipeline),
        "tables": tables,
    }.items():
        if text:
            output.say(f"  {name}: {text}")
    columns = ("stage", "batch>", "parts>", "size>", "new>", "files>", "offsets")
    rows = [
        (
            f"{s.uid} (FINISHED)" if s.finished else s.uid,
            "-" if s.batch_id is None else str(s.batch_id),
            str(s.parallelism),
            size(s.metrics.bytes_full),
            size(s.metrics.bytes_new),
            str(s.metrics.files_full),
            ", ".join(f"{source}: {_brief(offset)}" for source, offset in s.offsets.items()) or "-",
        )
        for s in metadata.stages
    ]
    output.list("", columns, rows)
    for s in metadata.stages:
        tables = ", ".join(f"{t.name} ({t.operator_name})" for t in state.get(s.uid, ()) if t.operator_name)
        if tables:
            output.say(f"state of {s.uid}: {tables}")
        if s.metrics.refused_rows:
            output.say(f"rows of {s.uid}: {s.metrics.refused_rows}")
        if s.table is not None:
            output.say(f"table of {s.uid}: {s.table.uri}")
        if s.own_sink:
            output.say(f"sink of {s.uid}: {s.own_sink}")
    for sentence in metadata.rows_set_aside:
        output.say(sentence)


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
        first = first_line(error)
        raise InvalidRequest(f"--where {where!r} cannot be used: {first} (columns: {columns})") from error


def _show(work: Invocation, table: str, total: int, rows: list[dict[str, Any]], frame: DataFrame) -> None:
    work.output.result({"table": table, "rows": total, "schema": frame.schema.simpleString(), "shown": rows})
    columns = list(frame.columns)
    work.output.table(
        f"{table}: {counted(total, 'row')}", columns, [tuple(row[c] for c in columns) for row in rows]
    )
