"""show: what one snapshot holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from dagster_ckpt.cli.context import Work, command, pipeline_option
from dagster_ckpt.cli.output import Output, moment, size
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.operations.catalog import FoundSnapshot, find_snapshot
from dagster_ckpt.operations.inspect import StateTable, state_tables


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    key: str
    uri: str
    is_recorded: bool
    metadata: CheckpointMetadata
    state: dict[str, tuple[StateTable, ...]]


@command("show")
@click.argument("snapshot")
@pipeline_option
def show(work: Work, *, snapshot: str, pipeline: str) -> None:
    """Show what a snapshot holds: stages, offsets, sizes, state, tables."""
    found = find_snapshot(work.deployment, snapshot, pipeline_id(pipeline) if pipeline else None)
    stored = found.stored
    state = {s.uid: state_tables(stored, s.uid) for s in stored.metadata.stages}
    work.output.result(
        _Shown(
            key=found.key,
            uri=found.location.uri,
            is_recorded=found.known is not None,
            metadata=stored.metadata,
            state=state,
        )
    )
    _show_snapshot(work.output, found, state)


def _show_snapshot(output: Output, found: FoundSnapshot, state: Mapping[str, Sequence[StateTable]]) -> None:
    """Show one snapshot."""
    metadata = found.stored.metadata
    output.say(f"{found.key}  {metadata.kind}  of pipeline {metadata.pipeline}")
    for name, text in {
        "place": found.location.uri,
        "completed": moment(metadata.completed_at),
        "took": f"{metadata.completed_at - metadata.triggered_at:.2f} s",
        "attempt": f"{metadata.epoch}" + (f" (run {metadata.run_id})" if metadata.run_id else ""),
        "name": metadata.name,
        "note": metadata.note,
        "labels": ", ".join(f"{name}={value}" for name, value in metadata.labels.items()),
        "known to the store": "yes" if found.known is not None else "no",
    }.items():
        if text:
            output.say(f"  {name}: {text}")
    columns = ("stage", "batch>", "offsets", "parts>", "size>", "new>", "files>", "state", "table")
    rows = [
        (
            s.uid,
            s.batch_id,
            ", ".join(f"{source}: {offset}" for source, offset in s.offsets.items()) or "-",
            s.parallelism,
            size(s.metrics.bytes_full),
            size(s.metrics.bytes_new),
            s.metrics.files_full,
            ", ".join(f"{t.name} ({t.operator_name})" for t in state.get(s.uid, ())) or "-",
            s.table.uri if s.table else "-",
        )
        for s in metadata.stages
    ]
    output.table("", columns, rows)
