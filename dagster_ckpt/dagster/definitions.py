"""The calls that turn pipelines into Dagster definitions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.authoring.stages import StageDefinition
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.restore.start_checks import refuse_start
from dagster_ckpt.core.restore.start_facts import StartFacts
from dagster_ckpt.dagster.checks.history import (
    build_age_check,
    build_condition_checks,
    build_horizon_check,
    build_succeeded_check,
)
from dagster_ckpt.dagster.checks.snapshot_checks import build_restorable_check, build_verified_check
from dagster_ckpt.dagster.names import COORDINATOR_KEY, SPARK_KEY, epoch_job_name
from dagster_ckpt.dagster.options import PipelineOptions, Tables, options_of, refuse_unknown
from dagster_ckpt.dagster.pipeline_jobs import (
    PipelineJobs,
    build_check_schedules,
    build_epoch_schedule,
    build_jobs,
    build_savepoint_schedule,
)
from dagster_ckpt.dagster.reports.asset import build_checkpoints_asset
from dagster_ckpt.dagster.reports.tables import build_table_assets
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.resources.pipeline import own_resources
from dagster_ckpt.dagster.resources.spark import SparkSessionResource
from dagster_ckpt.dagster.sensors.alarms import (
    HOUR,
    build_failure_alarm,
    build_horizon_alarm,
    failure_alarm_tick,
    horizon_tick,
)
from dagster_ckpt.dagster.sensors.runs import build_new_files_sensor, build_restart_sensor
from dagster_ckpt.dagster.sensors.safety_net import (
    Mirrored,
    build_run_status_sensors,
    build_safety_net_sensor,
    safety_net_tick,
    shared_run_status_sensors,
)
from dagster_ckpt.dagster.sensors.shared import BoundCoordinator, Tick, build_shared_sensor
from dagster_ckpt.dagster.start import code_facts, warn_where_checked
from dagster_ckpt.dagster.tables import build_materializable_tables
from dagster_ckpt.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSensors:
    """Sensors of all pipelines of a code location; pipelines that are added later are looked after as well."""

    prefix: str = "checkpoints"
    safety_net: dict[str, Tick] = field(default_factory=dict)
    failure_alarm: dict[str, Tick] = field(default_factory=dict)
    horizon_alarm: dict[str, Tick] = field(default_factory=dict)
    mirrored: dict[str, Mirrored] = field(default_factory=dict)
    """By job."""
    bound: dict[int, tuple[CheckpointCoordinatorResource, BoundCoordinator]] = field(default_factory=dict)
    """One client of the store for each coordinator, by its identity."""

    def add(
        self,
        pipeline: CheckpointedPipeline,
        options: PipelineOptions,
        coordinator: CheckpointCoordinatorResource,
        *,
        jobs: Iterable[dg.JobDefinition],
    ) -> None:
        """Look after a pipeline, too; ``jobs``: those whose run owns it."""
        _, standing = self.bound.setdefault(id(coordinator), (coordinator, BoundCoordinator(coordinator)))
        self.safety_net[pipeline.name] = safety_net_tick(pipeline, standing)
        self.failure_alarm[pipeline.name] = failure_alarm_tick(
            pipeline, standing, policy=options.alarm_policy, notify=options.notify
        )
        self.horizon_alarm[pipeline.name] = horizon_tick(pipeline, standing, notify=options.notify)
        found = Mirrored(pipeline=pipeline, standing=standing)
        self.mirrored.update((job.name, found) for job in jobs)

    def begins_with(self, names: Iterable[PipelineId]) -> bool:
        """Tell whether these pipelines were added first: their definitions bring the sensors."""
        return next(iter(self.safety_net), None) in set(names)

    def sensors(self) -> Iterator[dg.SensorDefinition]:
        """Yield the sensors, five whatever the number of pipelines."""
        yield build_shared_sensor(
            f"{self.prefix}_safety_net",
            self.safety_net,
            does="Ends attempts of dead runs, expires overdue checkpoints, keeps partitions in step with the records.",
        )
        yield from shared_run_status_sensors(self.prefix, self.mirrored)
        yield build_shared_sensor(
            f"{self.prefix}_failure_alarm",
            self.failure_alarm,
            does="Tells people, once per episode, when checkpoints fail or grow old.",
        )
        yield build_shared_sensor(
            f"{self.prefix}_horizon_alarm",
            self.horizon_alarm,
            does="Tells people days before a retained snapshot stops being restorable.",
            minimum_interval_seconds=HOUR,
        )


R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deployed:
    """A pipeline with all it is operated with."""

    pipeline: CheckpointedPipeline
    options: PipelineOptions
    coordinator: CheckpointCoordinatorResource
    spark: SparkSessionResource
    jobs: PipelineJobs


Coordinators = CheckpointCoordinatorResource | Mapping[str, CheckpointCoordinatorResource] | None
Sessions = SparkSessionResource | Mapping[str, SparkSessionResource] | None


def build_pipeline_definitions(
    *pipelines: CheckpointedPipeline | Iterable[CheckpointedPipeline],
    coordinator: CheckpointCoordinatorResource | None = None,
    spark: SparkSessionResource | None = None,
    options: PipelineOptions | Mapping[str, PipelineOptions] | None = None,
    shared: SharedSensors | None = None,
) -> dg.Definitions:
    """Return everything that operates some pipelines from Dagster; merge it with your own definitions.

    Jobs, checkpoints assets and their checks, sensors, schedules, resources (docs/reference/dagster.md). Several
    pipelines share the sensors that are on from the start, as ``build_location_definitions`` has it.

    Args:
        pipelines: made by ``@checkpointed_pipeline``, one by one or in a list; names must differ.
        coordinator: where checkpoints live; default: below Dagster's own storage directory.
        spark: the session of a run; default: local.
        options: how pipelines show and are looked after; of all of them, or by name.
        shared: sensors of the code location that these pipelines join; its first ones bring them.

    Raises:
        InvalidRequest: two pipelines of one name, options for none, or settings no checkpoint can be taken with.
    """
    deployed = _deployed(_flat(pipelines), coordinator, spark, options)
    if shared is None and len(deployed) > 1:
        shared = SharedSensors()
    if shared is not None:
        return _definitions(deployed, _shared(deployed, shared))
    sensors = [sensor for each in deployed for sensor in (*_own_sensors(each), *_starts(each))]
    return _definitions(deployed, sensors)


def build_location_definitions(
    pipelines: Iterable[CheckpointedPipeline],
    *,
    coordinator: Coordinators = None,
    spark: Sessions = None,
    options: PipelineOptions | Mapping[str, PipelineOptions] | None = None,
    sensor_prefix: str = "checkpoints",
) -> dg.Definitions:
    """Return the same as ``build_pipeline_definitions`` for all pipelines of a code location, which share sensors.

    Restarts and savepoint schedules stay a pipeline's own: each is switched on by itself.

    Args:
        pipelines, coordinator, spark, options: as of ``build_pipeline_definitions``; the last three also by name.
        sensor_prefix: begins the names of the shared sensors.

    Raises:
        InvalidRequest: two pipelines of one name, options or resources for none, or settings no checkpoint can be taken
            with.
    """
    deployed = _deployed(_flat([pipelines]), coordinator, spark, options)
    return _definitions(deployed, _shared(deployed, SharedSensors(prefix=sensor_prefix)))


def _flat(
    given: Iterable[Any],
) -> list[CheckpointedPipeline]:
    found: list[CheckpointedPipeline] = []
    for each in given:
        several: Iterable[object] = [each]
        if isinstance(each, Iterable) and not isinstance(each, str):
            several = each
        for pipeline in several:
            if not isinstance(pipeline, CheckpointedPipeline):
                shown = f"stage {pipeline.uid!r}" if isinstance(pipeline, StageDefinition) else repr(pipeline)
                raise InvalidRequest(
                    f"{shown} is no pipeline: give what @checkpointed_pipeline has made, or a list of these"
                )
            found.append(pipeline)
    return found


def _deployed(
    pipelines: Sequence[CheckpointedPipeline],
    coordinator: Coordinators,
    spark: Sessions,
    options: PipelineOptions | Mapping[str, PipelineOptions] | None,
) -> list[_Deployed]:
    names = [pipeline.name for pipeline in pipelines]
    coordinators = _by_name(coordinator, names, CheckpointCoordinatorResource, of="coordinator")
    sessions = _by_name(spark, names, SparkSessionResource, of="spark")
    settings = {one.name: partial(coordinators[one.name].check_settings, one) for one in pipelines}
    refuse_start(StartFacts(code=code_facts(pipelines, settings)))
    refuse_unknown(options, names)
    deployed = []
    for pipeline in pipelines:
        own, session = coordinators[pipeline.name], sessions[pipeline.name]
        warn_where_checked(own, pipeline, session)
        chosen = options_of(options, pipeline.name)
        named = coordinators.get(pipeline.origins[-1].name, own) if pipeline.origins else own
        bound = {COORDINATOR_KEY: own, SPARK_KEY: session}
        deployed.append(
            _Deployed(
                pipeline=pipeline,
                options=chosen,
                coordinator=own,
                spark=session,
                jobs=build_jobs(pipeline, chosen, bound, None if named is own else named),
            )
        )
    return deployed


def _by_name(given: Any, names: Sequence[str], default: type[R], *, of: str) -> dict[str, R]:
    """Return each pipeline's resource; those that are given none share the default."""
    for each in given.values() if isinstance(given, Mapping) else [given]:
        if each is not None and not isinstance(each, default):
            raise InvalidRequest(f"{of}={each!r} is no {default.__name__}: give one, or one by pipeline")
    if not isinstance(given, Mapping):
        return dict.fromkeys(names, default() if given is None else given)
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise InvalidRequest(f"{of} is given for {unknown}, but the pipelines are {sorted(names)}")
    return {**dict.fromkeys(names, default()), **given}


def _definitions(deployed: Sequence[_Deployed], sensors: Sequence[dg.SensorDefinition]) -> dg.Definitions:
    resources: dict[str, Any] = {}
    for each in deployed:
        bound = {COORDINATOR_KEY: each.coordinator, SPARK_KEY: each.spark}
        resources.update(own_resources(each.pipeline.name, bound))
    return dg.Definitions(
        jobs=[job for each in deployed for job in each.jobs.all],
        assets=[
            asset
            for each in deployed
            for asset in _assets(
                each.pipeline, each.options, page=each.coordinator.page_of(each.pipeline.name)
            )
        ],
        asset_checks=[check for each in deployed for check in _checks(each.pipeline, each.options)],
        sensors=list(sensors),
        schedules=[
            schedule
            for each in deployed
            for schedule in (
                *_schedules(each.pipeline, each.options),
                *build_check_schedules(each.pipeline.name, each.options, each.coordinator),
            )
        ],
        resources=resources,
    )


def _assets(
    pipeline: CheckpointedPipeline, options: PipelineOptions, *, page: str
) -> Iterator[dg.AssetSpec | dg.AssetsDefinition]:
    tables = build_table_assets(
        pipeline,
        group_name=options.table_group_name or pipeline.name,
        owners=options.owners,
        tags=options.tags,
        freshness_policy=options.table_freshness_policy,
        automation_condition=options.table_automation,
    )
    if options.tables == Tables.MATERIALIZABLE and tables:
        yield build_materializable_tables(
            pipeline, tables, concurrent_runs=options.concurrent_runs, launch=options.launch
        )
    else:
        yield from tables
    yield build_checkpoints_asset(
        pipeline.name,
        job_name=epoch_job_name(pipeline.name),
        group_name=options.group_name,
        owners=options.owners,
        tags=options.tags,
        freshness_policy=options.freshness_policy,
        page=page,
    )


def _checks(pipeline: CheckpointedPipeline, options: PipelineOptions) -> Iterator[dg.AssetChecksDefinition]:
    yield build_succeeded_check(pipeline.name)
    yield build_age_check(pipeline.name, max_age=options.max_checkpoint_age)
    yield build_horizon_check(pipeline)
    yield from build_condition_checks(pipeline)
    yield build_verified_check(pipeline.name)
    if not pipeline.program:
        yield build_restorable_check(pipeline)


def _shared(deployed: Sequence[_Deployed], shared: SharedSensors) -> list[dg.SensorDefinition]:
    """Return the sensors that pipelines share, where these are the first of them, and those of each."""
    for each in deployed:
        shared.add(each.pipeline, each.options, each.coordinator, jobs=each.jobs.all)
    starts = [sensor for each in deployed for sensor in _starts(each)]
    return [
        *(shared.sensors() if shared.begins_with(each.pipeline.name for each in deployed) else ()),
        *starts,
    ]


def _own_sensors(each: _Deployed) -> Iterator[dg.SensorDefinition]:
    pipeline, coordinator, options = each.pipeline, each.coordinator, each.options
    yield build_safety_net_sensor(pipeline, coordinator=coordinator)
    yield from build_run_status_sensors(pipeline, jobs=each.jobs.all, coordinator=coordinator)
    yield build_failure_alarm(
        pipeline, coordinator=coordinator, policy=options.alarm_policy, notify=options.notify
    )
    yield build_horizon_alarm(pipeline, coordinator=coordinator, notify=options.notify)


def _starts(each: _Deployed) -> Iterator[dg.SensorDefinition]:
    """Yield the sensors that start runs of the pipeline: each is switched on by itself."""
    if each.options.new_files:
        yield build_new_files_sensor(each.pipeline, each.options.new_files, coordinator=each.coordinator)
    if each.options.restart is None:
        return
    for job in each.jobs.running:
        is_epoch = job.name == epoch_job_name(each.pipeline.name)
        yield build_restart_sensor(
            each.pipeline,
            coordinator=each.coordinator,
            policy=each.options.restart,
            job_name=job.name,
            instead_of=[each.jobs.restore.name] if is_epoch else [],
        )


def _schedules(pipeline: CheckpointedPipeline, options: PipelineOptions) -> Iterator[dg.ScheduleDefinition]:
    if options.epochs is not None:
        yield build_epoch_schedule(pipeline, options.epochs)
    if options.savepoints is not None:
        yield build_savepoint_schedule(pipeline, options.savepoints)
