"""How snapshots, differences and previews look to people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dagster_ckpt.cli.output import Output, moment, size
from dagster_ckpt.operations.catalog import FoundSnapshot
from dagster_ckpt.operations.diff import Difference, SnapshotDiff, StageDiff
from dagster_ckpt.operations.diff_state import TableDiff
from dagster_ckpt.operations.inspect import StateTable
from dagster_ckpt.operations.preview import RestorePreview
from dagster_ckpt.operations.preview_tables import TablePreview
from dagster_ckpt.operations.verify import Verified

__all__ = ["show_diff", "show_key_diffs", "show_preview", "show_snapshot", "show_verified"]


def show_snapshot(output: Output, found: FoundSnapshot, state: Mapping[str, Sequence[StateTable]]) -> None:
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


def show_verified(output: Output, results: Sequence[Verified]) -> None:
    """Show what verifying found."""
    for found in results:
        verdict = "intact" if found.is_intact else f"{len(found.problems)} problems"
        output.say(f"{found.snapshot}: {verdict} ({found.files} files, {size(found.bytes)})")
        if found.problems:
            rows = [(p.stage, p.problem, p.path, p.message) for p in found.problems]
            output.table("", ("stage", "problem", "file", "what"), rows)


# --- diff -----------------------------------------------------------------------------------------------------


def show_diff(output: Output, found: SnapshotDiff) -> None:
    """Show what two snapshots differ in."""
    output.say(f"before: {found.before}\nafter:  {found.after} ({found.seconds:+.1f} s)")
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


def _differences(output: Output, title: str, differences: Iterable[Difference]) -> None:
    rows = [(d.name, d.before, d.after) for d in differences]
    if rows:
        output.table(title, ("what", "before", "after"), rows)


def show_key_diffs(output: Output, tables: Sequence[TableDiff]) -> None:
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


# --- preview --------------------------------------------------------------------------------------------------


def show_preview(output: Output, found: RestorePreview) -> None:
    """Show what a restore would do."""
    verdict = "can be restored" if found.is_possible else "CANNOT be restored"
    output.say(f"{found.snapshot} {verdict} as pipeline {found.pipeline} ({size(found.bytes)} of state)")
    for refusal in found.refusals:
        output.say(f"  refused: {refusal}")
    for warning in found.warnings:
        output.say(f"  note: {warning}")
    stages = [
        (s.uid, s.fate, s.saved_uid, s.batch_id, s.partitions and f"{s.partitions[0]} -> {s.partitions[1]}",
         size(s.bytes))
        for s in found.stages
    ]  # fmt: skip
    output.table("stages", ("stage", "gets", "state of", "batch>", "partitions", "size>"), stages)
    replays = [
        (r.stage, r.step.source, r.step.start, r.step.end, r.step.units, r.batches) for r in found.replay
    ]
    if replays:
        title = f"read again, up to {found.compared_with}"
        output.table(title, ("stage", "source", "from", "to", "units>", "batches>"), replays)
    if found.tables:
        output.table(
            "tables", ("stage", "table", "what happens"), [(t.stage, t.uri, _fate(t)) for t in found.tables]
        )
    if found.schemas:
        rows = [(m.stage, m.what, m.saved, m.current) for m in found.schemas]
        output.table("state that is kept in another way now", ("stage", "what", "saved", "now"), rows)


def _fate(t: TablePreview) -> str:
    parts = [str(t.fate)]
    if t.rows_set_aside:
        verb = (
            "past the restore point" if t.fate == "keeps_rows" else f"set aside in {t.files_set_aside} files"
        )
        parts.append(f"{t.rows_set_aside} rows {verb}")
    if t.rows_returning:
        parts.append(f"{t.rows_returning} rows come back")
    if t.buckets_changing:
        parts.append(f"{t.buckets_changing} buckets go to the version of the cut")
    if t.message:
        parts.append(t.message)
    return "; ".join(parts)
