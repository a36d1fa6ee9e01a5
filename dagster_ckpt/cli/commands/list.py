"""list: what can be restored from, and what ever was."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from dagster_ckpt.cli.code_location import CodeOptions, code_options, horizons_in
from dagster_ckpt.cli.context import ExitCode, Invocation, command, pipeline_option, refuse_unused
from dagster_ckpt.core.ids import PipelineId, pipeline_id
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.restore.horizon import Horizon, no_longer
from dagster_ckpt.core.units import ago, counted, duration, moment, size
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound
from dagster_ckpt.operations.deployment import load_record, readers_of
from dagster_ckpt.operations.snapshots.catalog import (
    PipelineSummary,
    SnapshotSummary,
    list_history,
    list_snapshots,
    list_storage,
    pipeline_summary,
    tables_that_stay,
)

T = TypeVar("T")


@command("list")
@pipeline_option
@click.option("--pipelines", is_flag=True, help="List pipelines instead of snapshots.")
@click.option("--history", is_flag=True, help="Failed, subsumed and discarded ones too.")
@click.option("--limit", type=click.IntRange(min=1), default=None, help="At most so many of each pipeline.")
@click.option("--long", is_flag=True, help="Attempts, moments and places too.")
@code_options
@click.option("--from-storage", is_flag=True, help="Ask the storage alone: for when the store is lost.")
def list_(
    work: Invocation,
    *,
    pipeline: str,
    pipelines: bool,
    history: bool,
    limit: int | None,
    long: bool,
    from_storage: bool,
    code: CodeOptions,
) -> ExitCode:
    """List what pipelines can be restored from, newest first.

    With the pipeline's code (-m, -f or -w) it also says for how long each can still be restored: `kept`: no clock
    removes what it needs; `?`: something could not be asked.
    """
    of_snapshots: dict[str, object] = {"--history": history, "-m, -f or -w": code.is_given}
    if from_storage:
        unused = {**of_snapshots, "--pipelines": pipelines, "--long": long}
        refuse_unused(unused, "asks the store, and --from-storage the storage alone: give one")
        _list_storage(work, pipeline, limit)
        return ExitCode.FINE
    if pipelines:
        unused = {**of_snapshots, "--limit": limit}
        refuse_unused(unused, "is about snapshots, and --pipelines lists pipelines: give one")
    deployment = work.deployment
    names, strict = [pipeline_id(pipeline)] if pipeline else deployment.store.pipelines(), bool(pipeline)
    if pipelines:
        found, unreadable = _readable(names, lambda name: [pipeline_summary(deployment, name)], strict=strict)
        _show_pipelines(work, found, long=long)
    else:
        rows_of = list_history if history else list_snapshots
        summaries, unreadable = _readable(
            names, lambda name: rows_of(deployment, name)[:limit], strict=strict
        )
        work.output.result(summaries)
        if not summaries and not unreadable:
            whose = (
                f" of {counted(len(names), 'pipeline')}: {', '.join(names)}" if names else ": nothing has run"
            )
            work.output.say(f"no snapshot{whose}")
        else:
            _show_snapshots(work, summaries, long=long, horizons=_horizons(code, summaries))
        _show_readers(work, [name for name in names if name not in unreadable], is_one=strict)
    for name, error in unreadable.items():
        click.echo(f"Error: {name}: {error}", err=True)
    return ExitCode.TROUBLE if unreadable else ExitCode.FINE


def _readable(
    names: Sequence[PipelineId], rows_of: Callable[[PipelineId], Iterable[T]], *, strict: bool
) -> tuple[list[T], dict[PipelineId, Corrupt]]:
    """Return the rows of each readable pipeline: one damaged record must not hide the other pipelines."""
    found: list[T] = []
    unreadable: dict[PipelineId, Corrupt] = {}
    for name in names:
        try:
            found += rows_of(name)
        except Corrupt as error:
            if strict:
                raise
            unreadable[name] = error
    return found, unreadable


_LONG_COLUMNS = (
    "pipeline", "key", "status", "completed", "took>", "size>", "new>", "attempt>", "kept for", "name", "place",
)  # fmt: skip
_LEFT = "left"
Horizons = Mapping[tuple[PipelineId, str], Horizon]
"""Pipeline and key → for how long it can be restored; empty: nobody was asked."""


def _horizons(code: CodeOptions, summaries: Sequence[SnapshotSummary]) -> Horizons:
    if not code.is_given:
        return {}
    found: dict[tuple[PipelineId, str], Horizon] = {}
    undeclared: NotFound | None = None
    for name in dict.fromkeys(s.pipeline for s in summaries if s.status.is_restorable):
        try:
            found |= {(name, horizon.key): horizon for horizon in horizons_in(code, name)}
        except NotFound as error:  # the store has pipelines of other code too
            undeclared = error
    if undeclared is not None and not found:
        raise undeclared
    return found


def _show_snapshots(
    work: Invocation, summaries: Sequence[SnapshotSummary], *, long: bool, horizons: Horizons
) -> None:
    """Show what fits 80 columns, unless more is wanted; why one failed stands below, whole."""
    if long:
        more = (_LEFT,) if horizons else ()
        cells = [(*_long_row(s), *([_left(s, horizons)] if horizons else [])) for s in summaries]
        work.output.table("", (*_LONG_COLUMNS, *more), cells)
        return
    now = time.time()
    by_pipeline: dict[PipelineId, list[SnapshotSummary]] = {}
    for summary in summaries:
        by_pipeline.setdefault(summary.pipeline, []).append(summary)
    for name, of_one in by_pipeline.items():
        timed = "left" if horizons else "took>"
        names = ("key", "status", "taken", timed, "size>", "new>", "name")
        lines = [_short_row(s, now, horizons, is_newest=s is of_one[0]) for s in of_one]
        work.output.list(name if len(by_pipeline) > 1 else "", names, lines)
    for summary in summaries:
        if summary.message:
            work.output.say(f"{summary.pipeline} {summary.key} failed: {summary.message}")
        if summary.lost and not horizons:
            work.output.say(no_longer(summary.key, summary.lost, summary.lost_since))
    for horizon in horizons.values():
        if horizon.lost:
            work.output.say(horizon.sentence())


def _left(s: SnapshotSummary, horizons: Horizons) -> str:
    horizon = horizons.get((s.pipeline, s.key))
    return "-" if horizon is None else horizon.brief()


def _show_readers(work: Invocation, names: Sequence[PipelineId], *, is_one: bool) -> None:
    """Say whose tables readers find after a swap, of which checkpoint where that is not the newest, and which stay."""
    store = work.deployment.store
    for name in names:
        record = load_record(store, name)
        found = readers_of(store, record)
        served = "" if found is None else found.sentence(name)
        for text in (served, record.late_tables, *tables_that_stay(work.deployment, record)):
            if text:
                work.output.say(("" if is_one else f"{name}: ") + text)


def _short_row(s: SnapshotSummary, now: float, horizons: Horizons, *, is_newest: bool) -> tuple[str, ...]:
    taken = ago(now - (s.completed_at or s.triggered_at))
    sizes = size(s.bytes_full), size(s.bytes_new)
    timed = _left(s, horizons) if horizons else duration(s.duration)
    beside = s.kept_for.replace(" and its", ",") if s.kept_for.startswith("its") else ""
    shown = "shown" if s.is_shown and not is_newest else ""
    gone = "gone" if s.lost and not horizons else ""
    return (
        s.key,
        s.status.value,
        taken,
        timed,
        *sizes,
        " ".join(filter(None, (s.name or beside, shown, gone))),
    )


def _show_pipelines(work: Invocation, found: Sequence[PipelineSummary], *, long: bool) -> None:
    """Show what fits 80 columns, unless more is wanted."""
    work.output.result(found)
    if not long:
        now = time.time()
        lines = [
            (p.pipeline, p.status.value, p.latest or "-", _taken(p, now), str(p.retained), str(p.savepoints),
             str(p.in_progress), p.serving)
            for p in found
        ]  # fmt: skip
        names = ("pipeline", "status", "latest", "taken", "kept>", "savepoints>", "pending>", "")
        work.output.list("", (*names[:-1], "readers find" if any(p.serving for p in found) else ""), lines)
        return
    columns = (
        "pipeline",
        "status",
        "attempt>",
        "latest",
        "completed",
        "retained>",
        "savepoints>",
        "pending>",
        "readers find",
    )
    rows = [
        (p.pipeline, p.status, p.epoch, p.latest or "-", moment(p.latest_completed_at), p.retained, p.savepoints,
         p.in_progress, p.serving or "-")
        for p in found
    ]  # fmt: skip
    work.output.table("", columns, rows)


def _taken(p: PipelineSummary, now: float) -> str:
    return "-" if p.latest_completed_at is None else ago(now - p.latest_completed_at)


def _long_row(s: SnapshotSummary) -> tuple[Any, ...]:
    place = s.message if s.message else s.uri
    return (s.pipeline, s.key, s.status, moment(s.completed_at), duration(s.duration), size(s.bytes_full),
            size(s.bytes_new), s.epoch, s.kept_for or "-", s.name, place)  # fmt: skip


def _list_storage(work: Invocation, pipeline: str, limit: int | None) -> None:
    locations = work.locations
    uris = [uri for uri in (locations.storage, locations.savepoints) if uri]
    if locations.base:
        uris += [f"{locations.base}/{name}" for name in ("checkpoints", "savepoints")]
    if not uris:
        raise InvalidRequest("say where to look: --base DIR, or --storage URI and --savepoints URI")
    everything = [folder for uri in uris for folder in list_storage(locations.open_storage(uri))]
    found = [
        one for one in everything if not pipeline or one.metadata is None or one.metadata.pipeline == pipeline
    ][:limit]
    work.output.result(found)
    if not found:
        whose = f" of {pipeline}" if pipeline else ""
        work.output.say(f"no snapshot{whose} is stored there: {', '.join(uris)}")
        return
    rows = [_stored_row(folder.uri, folder.metadata, folder.problem) for folder in found]
    work.output.table("", ("pipeline", "kind", "id>", "completed", "size>", "name", "place"), rows)


def _stored_row(uri: str, metadata: CheckpointMetadata | None, problem: str) -> tuple[Any, ...]:
    if metadata is None:
        return ("?", "unreadable", None, None, None, problem, uri)
    total = sum(s.metrics.bytes_full for s in metadata.stages)
    return (metadata.pipeline, metadata.kind, metadata.checkpoint_id, moment(metadata.completed_at), size(total),
            metadata.name, uri)  # fmt: skip
