"""list, show, verify, diff, preview: looking, without changing anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from dagster_ckpt.cli.code import CodeOptions, code_options, graph_in
from dagster_ckpt.cli.frame import ExitCode, Work, command, pipeline_option
from dagster_ckpt.cli.look_tables import show_diff, show_key_diffs, show_preview, show_snapshot, show_verified
from dagster_ckpt.cli.output import moment, size
from dagster_ckpt.cli.spark_session import spark_options, started
from dagster_ckpt.core.config import ClaimMode, RestoreOptions
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound
from dagster_ckpt.operations.catalog import (
    SnapshotSummary,
    find_snapshot,
    list_history,
    list_pipelines,
    list_snapshots,
    list_storage,
)
from dagster_ckpt.operations.diff import SnapshotDiff, diff_snapshots
from dagster_ckpt.operations.diff_state import TableDiff, diff_state
from dagster_ckpt.operations.inspect import StateTable, state_tables
from dagster_ckpt.operations.preview import preview_restore
from dagster_ckpt.operations.verify import Verified, not_opened, verify_snapshot
from dagster_ckpt.spark.snapshots import StoredSnapshot

# --- list -----------------------------------------------------------------------------------------------------


@command("list")
@pipeline_option
@click.option("--pipelines", is_flag=True, help="List pipelines instead of snapshots.")
@click.option("--history", is_flag=True, help="Failed, subsumed and discarded ones too.")
@click.option("--limit", type=click.IntRange(min=1), default=None, help="At most so many of each pipeline.")
@click.option("--from-storage", is_flag=True, help="Ask the storage alone: for when the store is lost.")
def list_(
    work: Work, *, pipeline: str, pipelines: bool, history: bool, limit: int | None, from_storage: bool
) -> None:
    """List what pipelines can be restored from, newest first."""
    if from_storage:
        _list_storage(work)
        return
    deployment = work.deployment
    if pipelines:
        _list_pipelines(work)
        return
    names = [pipeline_id(pipeline)] if pipeline else deployment.store.pipelines()
    rows_of = list_history if history else list_snapshots
    summaries = [s for name in names for s in rows_of(deployment, name)[:limit]]
    work.output.result(summaries)
    work.output.table("", _SNAPSHOT_COLUMNS, [_row(s) for s in summaries])


_SNAPSHOT_COLUMNS = (
    "pipeline", "key", "status", "completed", "took>", "size>", "new>", "attempt>", "name", "place",
)  # fmt: skip


def _list_pipelines(work: Work) -> None:
    found = list_pipelines(work.deployment)
    work.output.result(found)
    columns = (
        "pipeline",
        "status",
        "attempt>",
        "latest",
        "completed",
        "retained>",
        "savepoints>",
        "underway>",
    )
    rows = [
        (p.pipeline, p.status, p.epoch, p.latest or "-", moment(p.latest_completed_at), p.retained, p.savepoints,
         p.in_progress)
        for p in found
    ]  # fmt: skip
    work.output.table("", columns, rows)


def _row(s: SnapshotSummary) -> tuple[Any, ...]:
    took = "-" if s.duration is None else f"{s.duration:.1f} s"
    place = s.message if s.message else s.uri
    return (s.pipeline, s.key, s.status, moment(s.completed_at), took, size(s.bytes_full), size(s.bytes_new), s.epoch,
            s.name, place)  # fmt: skip


def _list_storage(work: Work) -> None:
    locations = work.locations
    uris = [uri for uri in (locations.storage, locations.savepoints) if uri]
    if locations.base:
        uris += [f"{locations.base}/{name}" for name in ("checkpoints", "savepoints")]
    if not uris:
        raise InvalidRequest("say where to look: --base DIR, or --storage URI and --savepoints URI")
    found = [folder for uri in uris for folder in list_storage(locations.open_storage(uri))]
    work.output.result(found)
    rows = [_stored_row(folder.uri, folder.metadata, folder.problem) for folder in found]
    work.output.table("", ("pipeline", "kind", "id>", "completed", "size>", "name", "place"), rows)


def _stored_row(uri: str, metadata: CheckpointMetadata | None, problem: str) -> tuple[Any, ...]:
    if metadata is None:
        return ("?", "unreadable", None, None, None, problem, uri)
    total = sum(s.metrics.bytes_full for s in metadata.stages)
    return (metadata.pipeline, metadata.kind, metadata.checkpoint_id, moment(metadata.completed_at), size(total),
            metadata.name, uri)  # fmt: skip


# --- show -----------------------------------------------------------------------------------------------------


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
    show_snapshot(work.output, found, state)


# --- verify ---------------------------------------------------------------------------------------------------


@command("verify")
@click.argument("snapshots", nargs=-1)
@pipeline_option
@click.option("--all", "everything", is_flag=True, help="Everything the pipeline can be restored from.")
def verify(work: Work, *, snapshots: tuple[str, ...], pipeline: str, everything: bool) -> ExitCode:
    """Read every file of SNAPSHOTS (default: latest) and compare checksums. Exit code 1 when one is damaged."""
    if everything:
        results = [_verified(work, s) for s in list_snapshots(work.deployment, work.pipeline(pipeline))]
    else:
        chosen = pipeline_id(pipeline) if pipeline else None
        names = snapshots or ("latest",)
        results = [
            _read_all(work, name, find_snapshot(work.deployment, name, chosen).stored) for name in names
        ]
    work.output.result(results)
    show_verified(work.output, results)
    return ExitCode.FINE if all(found.is_intact for found in results) else ExitCode.TROUBLE


def _verified(work: Work, listed: SnapshotSummary) -> Verified:
    """Verify one of many: one that cannot even be opened must not hide what is wrong with the others."""
    try:
        stored = find_snapshot(work.deployment, listed.uri, listed.pipeline).stored
    except (NotFound, Corrupt) as error:
        return not_opened(listed.key, listed.uri, error)
    return _read_all(work, listed.key, stored)


def _read_all(work: Work, name: str, stored: StoredSnapshot) -> Verified:
    with work.output.progress(f"verifying {name}") as progress:
        return verify_snapshot(stored, progress=progress)


# --- diff -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    diff: SnapshotDiff
    keys: tuple[TableDiff, ...]


@command("diff")
@click.argument("before")
@click.argument("after")
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
    work: Work,
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
    show_diff(work.output, found)
    show_key_diffs(work.output, tables)
    is_same = found.is_same and all(table.is_same for table in tables)
    return ExitCode.TROUBLE if exit_code and not is_same else ExitCode.FINE


# --- preview --------------------------------------------------------------------------------------------------


@command("preview")
@click.argument("snapshot", default="latest")
@pipeline_option
@click.option(
    "--fork-of", default="", metavar="NAME", help="The snapshot is this pipeline's, and --pipeline forks it."
)
@click.option(
    "--claim-mode", type=click.Choice([m.value for m in ClaimMode]), default="no_claim", show_default=True
)
@click.option("--allow-non-restored-state", is_flag=True, help="Drop state of stages that are gone.")
@click.option("--keep-rows", is_flag=True, help="Leave rows in tables that came after the restore point.")
@code_options
def preview(
    work: Work,
    *,
    snapshot: str,
    pipeline: str,
    fork_of: str,
    claim_mode: str,
    allow_non_restored_state: bool,
    keep_rows: bool,
    code: CodeOptions,
) -> ExitCode:
    """Say what restoring SNAPSHOT would do. Exit code 1 when it would be refused.

    With the pipeline's code (-m, -f or -w) its stages are compared as they are now, else as they last ran.
    """
    options = RestoreOptions(
        restore_from=snapshot,
        claim_mode=ClaimMode(claim_mode),
        allow_non_restored_state=allow_non_restored_state,
        roll_back_tables=not keep_rows,
        fork=bool(fork_of),
    )
    chosen = pipeline_id(pipeline) if fork_of and pipeline else work.pipeline(pipeline)
    found = preview_restore(
        work.deployment,
        options,
        chosen,
        graph=graph_in(code, chosen),
        snapshot_of=pipeline_id(fork_of) if fork_of else None,
    )
    work.output.result(found)
    show_preview(work.output, found)
    return ExitCode.FINE if found.is_possible else ExitCode.TROUBLE
