"""Replay: what a fork begins with to process again what came after a moment, and its side tables out of the way."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.line import on_line
from dagster_ckpt.core.checkpoint.record import CompletedRecord, CoordinatorRecord
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.restore_point import RestorePoint, restore_point
from dagster_ckpt.core.units import moment
from dagster_ckpt.errors import InvalidRequest, NotFound
from dagster_ckpt.operations.deployment import Deployment, load_record
from dagster_ckpt.operations.readers.blue_green import who_serves
from dagster_ckpt.operations.readers.open_sink import Coordinator, open_sink
from dagster_ckpt.operations.snapshots.catalog import find_snapshot
from dagster_ckpt.operations.snapshots.facts import entries_of
from dagster_ckpt.runtime.attempt_setup import Admit
from dagster_ckpt.runtime.record_store import RecordStore
from dagster_ckpt.spark.sink.port import Sink

SET_ASIDE = ".set_aside"
"""Folder beside side tables, where those of earlier replays are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStart:
    """Snapshot that a replay begins with."""

    origin: PipelineId
    """Pipeline that took it."""
    key: str
    uri: str
    taken_at: float
    """When it was triggered, in seconds since the Unix epoch."""


def moment_of(text: str) -> float | None:
    """Return a moment as people write it, in UTC where they do not say: ``2026-11-17``, ``2026-11-17 14:00``.

    None: it is no moment, such as ``savepoint-7``.
    """
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def plan_replay(
    fork: CheckpointedPipeline,
    since: str,
    coordinator: Coordinator,
    *,
    named: Coordinator | None = None,
    again: bool = False,
    root: str = "",
) -> ReplayStart:
    """Return the snapshot and tables that a replay begins with; nothing is changed.

    Args:
        fork: the pipeline that replays, with side tables of its own.
        since: a moment, for the nearest snapshot of its origin that was complete by then; or a snapshot, as
            ``find_snapshot`` has it.
        coordinator: the fork's coordinator resource.
        named: its origin's, where it is another one.
        again: the fork may have replayed before; its side tables are then set aside.
        root: run of which this one may be another try: it goes on with what that has written.

    Raises:
        InvalidRequest: it is no fork, it serves readers, it has run before, or its tables cannot be set aside.
        NotFound: there is no such snapshot, or none before that moment.
    """
    origin = fork.forked_from
    if origin is None:
        raise InvalidRequest(
            f"{fork.name!r} is no fork: a replay writes side tables, declared with pipeline.fork(..., table_dir=...)"
        )
    _refuse_serving(fork, named or coordinator)
    _refuse_run_before(
        fork, RecordStore(coordinator.deployment(fork).store).record(fork.name), again=again, root=root
    )
    for sink in _used(fork, coordinator):
        _folder_of(sink)
    deployment = (named or coordinator).deployment(origin)
    at = moment_of(since)
    if at is None:
        found = find_snapshot(deployment, _snapshot_of(since), origin.name)
        taken = found.stored.metadata.triggered_at
        return ReplayStart(origin=found.pipeline, key=found.key, uri=found.location.uri, taken_at=taken)
    entry = _nearest(deployment, origin.name, at)
    return ReplayStart(
        origin=origin.name, key=entry.known.key, uri=entry.location.uri, taken_at=entry.triggered_at
    )


def admits_replay(
    fork: CheckpointedPipeline, admit: Admit, *, named: Coordinator, again: bool, root: str
) -> Admit:
    """Return the rule that lets a replay claim its fork; ``admit`` is asked first, the rest as ``plan_replay`` has it.

    A plan holds for the moment it is made: while the run waits for its turn, another replay may finish, and serve.
    """

    def admits(record: CoordinatorRecord) -> None:
        admit(record)
        _refuse_serving(fork, named)
        _refuse_run_before(fork, record, again=again, root=root)

    return admits


def set_side_tables_aside(
    fork: CheckpointedPipeline, coordinator: Coordinator, *, label: str, named: Coordinator | None = None
) -> tuple[str, ...]:
    """Move the tables of an earlier replay out of the way, and return where they are now.

    For whoever has claimed the fork. Raises InvalidRequest where one cannot be moved, and where readers have been
    swapped to them meanwhile: nothing was then.
    """
    sinks, moved = _used(fork, coordinator), []
    if sinks:
        _refuse_serving(fork, named or coordinator)
    for place in [folder for sink in sinks if (folder := _folder_of(sink)).is_dir()]:
        target = place.parent / SET_ASIDE / label / place.name
        target.parent.mkdir(parents=True, exist_ok=True)
        place.rename(target)
        moved.append(str(target))
    return tuple(moved)


def _snapshot_of(since: str) -> RestorePoint:
    try:
        return restore_point(since)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"since={since!r} is no moment and no snapshot: give a day (2026-11-17), a moment "
            "('2026-11-17 14:00+01:00'; UTC where it does not say), or a snapshot such as savepoint-7"
        ) from error


def _nearest(deployment: Deployment, pipeline: PipelineId, at: float) -> CompletedRecord:
    """Return the newest snapshot that was complete by then, of the history that the pipeline's state comes from.

    What it has read ends somewhere between its trigger and its completion: one that was only triggered by then may
    have read rows that came later.
    """
    record = load_record(deployment.store, pipeline)
    entries = [entry for entry in entries_of(record) if on_line(entry, record.line)]
    before = [entry for entry in entries if entry.completed_at <= at]
    if before:
        return max(before, key=lambda entry: (entry.triggered_at, entry.checkpoint_id))
    oldest = min(entries, key=lambda entry: entry.completed_at, default=None)
    there = (
        "it has none at all"
        if oldest is None
        else f"the oldest, {oldest.known.key}, was complete at {moment(oldest.completed_at)}"
    )
    raise NotFound(
        f"pipeline {pipeline!r} has no checkpoint or savepoint from before {moment(at)}: {there}. Scheduled savepoints "
        "keep days (SavepointSchedule)"
    )


def _refuse_serving(fork: CheckpointedPipeline, named: Coordinator) -> None:
    if who_serves(named.deployment(fork.origins[-1]), fork) == fork.name:
        raise InvalidRequest(
            f"{fork.name!r} serves readers of {fork.origins[-1].name!r}: replay with another fork, or swap back first"
        )


def _refuse_run_before(
    fork: CheckpointedPipeline, record: CoordinatorRecord | None, *, again: bool, root: str
) -> None:
    if again or record is None or record.latest_completed is None or (root and record.root == root):
        return
    raise InvalidRequest(
        f"{fork.name!r} has run before, and its tables hold what it has written: set them aside (again), or replay "
        "with another fork"
    )


def _used(fork: CheckpointedPipeline, coordinator: Coordinator) -> list[Sink]:
    """Return the fork's sinks that somebody has written to. Raises InvalidRequest for another pipeline's table."""
    sinks = [
        open_sink(fork, uid, coordinator) for uid, stage in fork.stages.items() if stage.table is not None
    ]
    return [sink for sink in sinks if sink.position() is not None]


def _folder_of(sink: Sink) -> Path:
    """Return the folder that a table is moved by. Raises InvalidRequest for one that has none."""
    if sink.own_folder is None:
        raise InvalidRequest(
            f"{sink.place} has been written to, and only tables in a folder are set aside: drop it, or give the fork "
            "another place with fork(..., sinks={...})"
        )
    return sink.own_folder
