"""The safety net: does what a run does for its pipeline, for runs that died before they could.

Run-status mirror: what Dagster says of a run reaches the coordinator, seconds after the run has ended.
A run that ends in order tells the coordinator itself, and while it is RUNNING its own timer triggers checkpoints (a
sensor could do neither: Dagster evaluates one every five seconds at best, and it skips all that was before its first
tick). This is for the others: killed, crashed, canceled before they could clean up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.record import CompletedRecord, CoordinatorRecord
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.supervision.ownership import (
    EndAttempt,
    ExpirePending,
    NoAction,
    OwnerState,
    judge_attempt,
)
from dagster_ckpt.dagster.launchpad import restore_link
from dagster_ckpt.dagster.names import RESTORE_OP, STREAM_OP, epoch_job_name, streaming_job_name
from dagster_ckpt.dagster.reporting import MirrorPlan, plan_mirror
from dagster_ckpt.dagster.reports.asset import (
    checkpoints_asset_key,
    checkpoints_partitions,
    completed_event,
    failed_events,
    partition_key,
    unchanged_event,
)
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.sensors.shared import (
    BoundCoordinator,
    Cursor,
    Tick,
    build_own_sensor,
    code_location,
    read_cursor,
)
from dagster_ckpt.errors import Corrupt, NotFound, Unavailable

if TYPE_CHECKING:
    from dagster_ckpt.core.coordinator.effects import CoordinatorEvent
    from dagster_ckpt.core.coordinator.state import Now, Setup
    from dagster_ckpt.runtime.claim import Settled
    from dagster_ckpt.runtime.record_store import LoadedRecord, RecordStore

AssetEvent = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation
MOST_PER_TICK = 50
"""So many checkpoints are reported in one tick; the rest follow in the next."""


class SafetyNetCursor(Cursor):
    """Of what events have been compared with the record; reset, everything retained is compared."""

    compared: frozenset[str] = frozenset()
    """Keys of retained checkpoints and savepoints; not the highest id: an import registers an id it took long ago."""
    lease: float | None = None
    """Until when the owner's lease was at the last tick: a run that is alive has renewed it since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Observation of a tick."""

    loaded: LoadedRecord
    owner: OwnerState
    partitions: frozenset[str]

    @property
    def record(self) -> CoordinatorRecord:
        """The pipeline's record."""
        return self.loaded.record


@dataclass(frozen=True, slots=True)
class Resolution:
    """Resolution of an attempt."""

    summary: str
    """One sentence."""
    events: tuple[AssetEvent, ...] = ()
    changed: bool = False
    """The record is another one now."""


@dataclass(frozen=True, kw_only=True)
class Supervisor:
    """Settles a pipeline's dead attempt and mirrors its record; used by every sensor that finds something amiss."""

    pipeline: CheckpointedPipeline
    resource: CheckpointCoordinatorResource
    instance: dg.DagsterInstance
    location: str | None
    """Code location, for links."""
    now: Callable[[], float] = time.time

    def observe(self) -> Observation | None:
        """Return an observation of the pipeline; None where it has not run yet."""
        from dagster_ckpt.dagster.runs.turn import owner_state

        # Partitions first: one that a run adds in between must not look left over.
        partitions = self.instance.get_dynamic_partitions(
            checkpoints_partitions(self.pipeline.name).name or ""
        )
        loaded = self._records.load(self.pipeline.name)
        if loaded is None:
            return None
        return Observation(
            loaded=loaded,
            owner=owner_state(self.instance, loaded.record.owner),
            partitions=frozenset(partitions),
        )

    def resolve(self, seen: Observation, *, lease_before: float | None = None) -> Resolution:
        """End or expire what is to be; return a sentence for people and the events to report."""
        from dagster_ckpt.runtime.claim import end_attempt, expire_overdue
        from dagster_ckpt.runtime.record_store import Overtaken

        judgment = judge_attempt(seen.record, seen.owner, now=self.now(), lease_before=lease_before)
        match judgment:
            case NoAction():
                return Resolution(judgment.why)
            case EndAttempt():
                outcome = end_attempt(
                    self._setup, self._records, seen.loaded, judgment.status, now=self._moment()
                )
            case ExpirePending():
                outcome = expire_overdue(self._setup, self._records, seen.loaded, now=self._moment())
            case _:
                assert_never(judgment)
        if isinstance(outcome, Overtaken):
            return Resolution("someone else changed the record meanwhile: nothing was done")
        events = tuple(_asset_events(self.pipeline.name, outcome))
        return Resolution(f"{judgment.why}; settled", events, changed=True)

    def plan(self, seen: Observation) -> MirrorPlan:
        """Return the plan that brings the partitions in step with the record."""
        is_alive = seen.owner is OwnerState.ALIVE
        return plan_mirror(seen.record, seen.partitions, owner_is_alive=is_alive, now=self.now())

    def missing_events(
        self, entries: Sequence[CompletedRecord], *, of: CoordinatorRecord
    ) -> tuple[dg.AssetMaterialization | dg.AssetObservation, ...]:
        """Return the events of completed checkpoints that were never reported.

        A checkpoint is observed where a newer one was materialized: the latest materialization stays the newest.
        """
        # One that holds nothing new is not materialized: what depends on the asset would start for nothing.
        entries = [e for e in entries if e.bytes_new or e.kind.is_savepoint or not e.bytes_full]
        if not entries:
            return ()
        retained = {e.known.key: e for e in (*of.completed, *of.savepoints, *entries)}
        wanted = dg.AssetRecordsFilter(
            checkpoints_asset_key(self.pipeline.name), asset_partitions=list(retained)
        )
        limit = 4 * len(retained)
        found = self.instance.fetch_materializations(wanted, limit=limit).records
        materialized = {record.partition_key for record in found}
        observed = {r.partition_key for r in self.instance.fetch_observations(wanted, limit=limit).records}
        newest = max((e.checkpoint_id for key, e in retained.items() if key in materialized), default=0)

        def event_of(entry: CompletedRecord) -> Iterable[dg.AssetMaterialization | dg.AssetObservation]:
            is_late = entry.checkpoint_id < newest and not entry.kind.is_savepoint
            if entry.known.key in materialized or (is_late and entry.known.key in observed):
                return
            told = self._event(entry, late=_perhaps_unpublished(of, entry))
            yield unchanged_event(told, "a newer one was told before") if is_late else told

        return tuple(event for entry in entries for event in event_of(entry))

    def _event(self, entry: CompletedRecord, *, late: str) -> dg.AssetMaterialization:
        from dagster_ckpt.spark.snapshot.stored import read_metadata

        storage = self.resource.open_storage(entry.location.base_uri)
        key = entry.known.key
        try:
            metadata = read_metadata(storage, entry.location.folder, recorded=entry.metadata_checksum)
        except (NotFound, Corrupt) as error:
            return dg.AssetMaterialization(
                checkpoints_asset_key(self.pipeline.name),
                partition=key,
                description=f"{key} completed, but it cannot be read: {error}",
                metadata={"restorable": "broken", "location": dg.MetadataValue.path(entry.location.uri)},
            )
        assert partition_key(metadata) == key
        link = self._link(key, metadata.run_id)
        page = self.resource.page_of(self.pipeline.name)
        return completed_event(
            self.pipeline.name, metadata, uri=entry.location.uri, link=link, late=late, page=page
        )

    def _link(self, key: str, run_id: str) -> str | None:
        """Return the link that goes on as the run did that took the checkpoint: as a stream, or epoch by epoch."""
        if self.location is None:
            return None
        name = self.pipeline.name
        run = self.instance.get_run_by_id(run_id) if run_id else None
        streamed = run is not None and run.job_name == streaming_job_name(name)
        return restore_link(
            job_name=streaming_job_name(name) if streamed else epoch_job_name(name),
            location=self.location,
            restore_op=STREAM_OP if streamed else RESTORE_OP,
            restore_from=key,
            ui_base_url=self.resource.ui_base_url,
        )

    @property
    def _records(self) -> RecordStore:
        from dagster_ckpt.runtime.record_store import RecordStore

        return RecordStore(self.resource.store())

    @property
    def _setup(self) -> Setup:
        from dagster_ckpt.core.coordinator.state import Setup

        return Setup(
            graph=self.pipeline.graph,
            config=self.resource.checkpoint_config(self.pipeline),
            storage_uri=self.resource.resolved_checkpoint_dir,
        )

    def _moment(self) -> Now:
        from dagster_ckpt.core.coordinator.state import Now

        return Now(self.now(), time.monotonic())


def _perhaps_unpublished(record: CoordinatorRecord, entry: CompletedRecord) -> str:
    """Return a word on the newest completion, whose run did not live to publish it, or is still at it."""
    if record.clean or entry.checkpoint_id != record.latest_completed or not entry.kind.publishes:
        return ""
    return f"run {entry.run_id} has not said whether tables show its rows: the next run publishes what they do not"


def _asset_events(pipeline: PipelineId, settled: Settled) -> Iterable[AssetEvent]:
    from dagster_ckpt.core.coordinator.effects import CheckpointFailed

    event: CoordinatorEvent
    for event in settled.events:
        if isinstance(event, CheckpointFailed):
            yield from failed_events(pipeline, event)


def build_safety_net_sensor(
    pipeline: CheckpointedPipeline,
    *,
    coordinator: CheckpointCoordinatorResource,
) -> dg.SensorDefinition:
    """Return the sensor that settles what dead runs left, and keeps the checkpoints asset in step with the record.

    It acts on what it finds, so its cursor may be reset at any time. Cost of a tick: one read of the record, one of
    the partitions, whatever the length of the history.
    """

    tick = safety_net_tick(pipeline, BoundCoordinator(coordinator))

    return build_own_sensor(
        f"{pipeline.name}_safety_net",
        tick,
        does=(
            "Ends the attempt of a run that died, expires checkpoints nobody expired, and keeps the partitions of the "
            f"checkpoints asset of `{pipeline.name}` in step with the coordinator's record."
        ),
    )


def safety_net_tick(pipeline: CheckpointedPipeline, standing: BoundCoordinator) -> Tick:
    """Return the sensor's tick for one pipeline, from that pipeline's cursor."""

    def tick(context: dg.SensorEvaluationContext, before: str | None) -> dg.SensorResult | dg.SkipReason:
        care = Supervisor(
            pipeline=pipeline,
            resource=standing.of(context.instance),
            instance=context.instance,
            location=code_location(context),
        )
        try:
            return _tick(care, read_cursor(before, SafetyNetCursor))
        except Unavailable as error:
            return dg.SkipReason(f"nothing was done, the next tick tries again: {error}")

    return tick


def _tick(care: Supervisor, cursor: SafetyNetCursor) -> dg.SensorResult | dg.SkipReason:
    seen = care.observe()
    if seen is None:
        return dg.SkipReason("the pipeline has not run yet")
    told = care.resolve(seen, lease_before=cursor.lease)
    plan = care.plan((care.observe() or seen) if told.changed else seen)
    done = (cursor.compared & {e.known.key for e in plan.settled}) - {e.known.key for e in plan.add}
    todo = [e for e in plan.settled if e.known.key not in done][:MOST_PER_TICK]
    missing = care.missing_events(todo, of=seen.record)
    compared = done | {e.known.key for e in todo}
    requests = _requests(care.pipeline.name, [e.known.key for e in plan.add[:MOST_PER_TICK]], plan.remove)
    is_idle = not (requests or told.events or missing)
    return dg.SensorResult(
        asset_events=[*told.events, *missing],
        dynamic_partitions_requests=requests or None,
        skip_reason=dg.SkipReason(told.summary) if is_idle else None,
        cursor=SafetyNetCursor(compared=compared, lease=seen.record.lease_until).model_dump_json(),
    )


def _requests(
    pipeline: PipelineId, add: Sequence[str], remove: Sequence[str]
) -> list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest]:
    definition = checkpoints_partitions(pipeline)
    requests: list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest] = []
    if add:
        requests.append(definition.build_add_request(list(add)))
    if remove:
        requests.append(definition.build_delete_request(list(remove)))
    return requests


_ENDS = {"failed": dg.DagsterRunStatus.FAILURE, "canceled": dg.DagsterRunStatus.CANCELED}

_WAS = {"failed": "failed", "canceled": "was canceled"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored:
    """A pipeline whose runs are mirrored, and the way to its store."""

    pipeline: CheckpointedPipeline
    standing: BoundCoordinator


def build_run_status_sensors(
    pipeline: CheckpointedPipeline,
    *,
    jobs: Sequence[dg.JobDefinition],
    coordinator: CheckpointCoordinatorResource,
) -> list[dg.RunStatusSensorDefinition]:
    """Return one sensor per way a run can end without a word; ``jobs`` are those whose run owns the pipeline."""
    found = Mirrored(pipeline=pipeline, standing=BoundCoordinator(coordinator))
    owners = {job.name: found for job in jobs}
    return [_sensor(pipeline.name, name, status, owners, list(jobs)) for name, status in _ENDS.items()]


def shared_run_status_sensors(
    prefix: str, owners: Mapping[str, Mirrored]
) -> list[dg.RunStatusSensorDefinition]:
    """Return the same sensors for all pipelines of a code location; ``owners``: by job, and more may be added."""
    return [_sensor(prefix, name, status, owners, None) for name, status in _ENDS.items()]


def _sensor(
    prefix: str,
    name: str,
    status: dg.DagsterRunStatus,
    owners: Mapping[str, Mirrored],
    jobs: Sequence[dg.JobDefinition] | None,
) -> dg.RunStatusSensorDefinition:
    @dg.run_status_sensor(
        name=f"{prefix}_run_{name}",
        description=f"Settles the attempt of a pipeline's run that {_WAS[name]} without saying so itself.",
        run_status=status,
        monitored_jobs=jobs,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    def mirror(context: dg.RunStatusSensorContext) -> dg.SkipReason | None:
        found = owners.get(context.dagster_run.job_name)
        if found is None:  # of all jobs of the location
            return dg.SkipReason(f"{context.dagster_run.job_name} is no job of a pipeline")
        care = Supervisor(
            pipeline=found.pipeline,
            resource=found.standing.of(context.instance),
            instance=context.instance,
            location=None,
        )
        try:
            seen = care.observe()
            told = Resolution("the pipeline has not run yet") if seen is None else care.resolve(seen)
        except Unavailable as error:
            return dg.SkipReason(f"left to the safety net: {error}")
        for event in told.events:
            context.instance.report_runless_asset_event(event)
        return None if told.events else dg.SkipReason(told.summary)

    return mirror
