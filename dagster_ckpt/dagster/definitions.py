"""The calls that turn pipelines into Dagster definitions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.authoring.stages import StageDefinition
from dagster_ckpt.core.restore.start_checks import refuse_start
from dagster_ckpt.core.restore.start_facts import StartFacts
from dagster_ckpt.dagster.checks.history import build_age_check, build_condition_checks, build_succeeded_check
from dagster_ckpt.dagster.checks.horizon import build_horizon_check
from dagster_ckpt.dagster.checks.restorable import build_restorable_check
from dagster_ckpt.dagster.checks.verified import build_verified_check
from dagster_ckpt.dagster.names import COORDINATOR_KEY, SPARK_KEY, epoch_job_name
from dagster_ckpt.dagster.options import PipelineOptions, Tables, options_of, refuse_unknown
from dagster_ckpt.dagster.pipeline_jobs import PipelineJobs, build_jobs
from dagster_ckpt.dagster.reports.asset import build_checkpoints_asset
from dagster_ckpt.dagster.reports.tables import build_table_assets
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.resources.pipeline import own_resources
from dagster_ckpt.dagster.resources.spark import SparkSessionResource
from dagster_ckpt.dagster.schedules import (
    build_check_jobs,
    build_check_schedules,
    build_epoch_schedule,
    build_savepoint_schedule,
)
from dagster_ckpt.dagster.sensors.failure_alarm import build_failure_alarm, failure_alarm_tick
from dagster_ckpt.dagster.sensors.horizon import HOUR, build_horizon_alarm, horizon_tick
from dagster_ckpt.dagster.sensors.new_files import build_new_files_sensor
from dagster_ckpt.dagster.sensors.restart import build_restart_sensor
from dagster_ckpt.dagster.sensors.run_status import (
    Mirrored,
    build_run_status_sensors,
    shared_run_status_sensors,
)
from dagster_ckpt.dagster.sensors.safety_net import build_safety_net_sensor, safety_net_tick
from dagster_ckpt.dagster.sensors.shared import Tick, build_shared_sensor
from dagster_ckpt.dagster.sensors.ticks import BoundCoordinator
from dagster_ckpt.dagster.start import code_facts, warn_where_checked
from dagster_ckpt.dagster.tables.runs import build_materializable_tables
from dagster_ckpt.errors import InvalidRequest

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
) -> dg.Definitions:
    """Return everything that operates some pipelines from Dagster; merge it with your own definitions.

    Jobs, checkpoints assets and their checks, sensors, schedules, resources (docs/reference/dagster.md). With many
    pipelines ``build_location_definitions`` brings fewer sensors.

    Args:
        pipelines: made by ``@checkpointed_pipeline``, one by one or in a list; names must differ.
        coordinator: where checkpoints live; default: below Dagster's own storage directory.
        spark: the session of a run; default: local.
        options: how pipelines show and are looked after; of all of them, or by name.

    Raises:
        InvalidRequest: two pipelines of one name, options for none, or settings no checkpoint can be taken with.
    """
    deployed = _deployed(_flat(pipelines), coordinator, spark, options)
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
    restarts = [sensor for each in deployed for sensor in _starts(each)]
    return _definitions(deployed, [*_shared_sensors(deployed, sensor_prefix), *restarts])


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
    found = [(each, _Checks.of(each.pipeline, each.options)) for each in deployed]
    return dg.Definitions(
        jobs=[
            *(job for each in deployed for job in each.jobs.all),
            *(job for each, checks in found for job in checks.jobs(each.pipeline)),
        ],
        assets=[asset for each in deployed for asset in _assets_of(each)],
        asset_checks=[check for _, checks in found for check in checks.all],
        sensors=list(sensors),
        schedules=[
            *(schedule for each in deployed for schedule in _schedules(each.pipeline, each.options)),
            *(schedule for each, checks in found for schedule in checks.schedules(each)),
        ],
        resources=resources,
    )


def _assets_of(each: _Deployed) -> Iterator[dg.AssetSpec | dg.AssetsDefinition]:
    return _assets(each.pipeline, each.options, page=each.coordinator.page_of(each.pipeline.name))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checks:
    """Checks of one pipeline, and what runs some of them."""

    verified: dg.AssetChecksDefinition
    restorable: dg.AssetChecksDefinition
    others: tuple[dg.AssetChecksDefinition, ...]

    @classmethod
    def of(cls, pipeline: CheckpointedPipeline, options: PipelineOptions) -> "_Checks":
        return cls(
            verified=build_verified_check(pipeline.name),
            restorable=build_restorable_check(pipeline),
            others=(
                build_succeeded_check(pipeline.name),
                build_age_check(pipeline.name, max_age=options.max_checkpoint_age),
                build_horizon_check(pipeline),
                *build_condition_checks(pipeline),
            ),
        )

    @property
    def all(self) -> tuple[dg.AssetChecksDefinition, ...]:
        return (*self.others, self.verified, self.restorable)

    def jobs(self, pipeline: CheckpointedPipeline) -> Iterator[Any]:
        return build_check_jobs(pipeline, verified=self.verified, restorable=self.restorable)

    def schedules(self, each: _Deployed) -> Iterator[dg.ScheduleDefinition]:
        of = each.pipeline.name, each.options, each.coordinator
        return build_check_schedules(*of, verified=self.verified, restorable=self.restorable)


def _own_sensors(each: _Deployed) -> Iterator[dg.SensorDefinition]:
    pipeline, coordinator, options = each.pipeline, each.coordinator, each.options
    yield build_safety_net_sensor(pipeline, coordinator=coordinator)
    yield from build_run_status_sensors(pipeline, jobs=each.jobs.owning, coordinator=coordinator)
    yield build_failure_alarm(
        pipeline, coordinator=coordinator, policy=options.alarm_policy, notify=options.notify
    )
    yield build_horizon_alarm(pipeline, coordinator=coordinator, notify=options.notify)


def _shared_sensors(deployed: Sequence[_Deployed], prefix: str) -> Iterator[dg.SensorDefinition]:
    if not deployed:
        return
    bound = {id(each.coordinator): BoundCoordinator(each.coordinator) for each in deployed}
    standing = {each.pipeline.name: bound[id(each.coordinator)] for each in deployed}
    yield build_shared_sensor(
        f"{prefix}_safety_net",
        {p: safety_net_tick(each.pipeline, standing[p]) for each in deployed for p in [each.pipeline.name]},
        does="Ends attempts of runs that died, expires overdue checkpoints, keeps partitions in step with the records.",
    )
    yield from shared_run_status_sensors(
        prefix,
        [
            Mirrored(pipeline=each.pipeline, jobs=each.jobs.owning, standing=standing[each.pipeline.name])
            for each in deployed
        ],
    )
    yield build_shared_sensor(
        f"{prefix}_failure_alarm",
        {
            p: failure_alarm_tick(
                each.pipeline, standing[p], policy=each.options.alarm_policy, notify=each.options.notify
            )
            for each in deployed
            for p in [each.pipeline.name]
        },
        does="Tells people, once per episode, when checkpoints fail or grow old.",
    )
    watched: dict[str, Tick] = {
        each.pipeline.name: horizon_tick(
            each.pipeline, standing[each.pipeline.name], notify=each.options.notify
        )
        for each in deployed
    }
    yield build_shared_sensor(
        f"{prefix}_horizon_alarm",
        watched,
        does="Tells people days before a retained snapshot stops being restorable.",
        minimum_interval_seconds=HOUR,
    )


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
            instead_of=[job.name for job in each.jobs.restores] if is_epoch else [],
        )


def _schedules(pipeline: CheckpointedPipeline, options: PipelineOptions) -> Iterator[dg.ScheduleDefinition]:
    if options.epochs is not None:
        yield build_epoch_schedule(pipeline, options.epochs)
    if options.savepoints is not None:
        yield build_savepoint_schedule(pipeline, options.savepoints)
