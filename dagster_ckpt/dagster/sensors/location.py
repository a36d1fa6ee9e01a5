"""Sensors of a code location: one set for all of its pipelines, also for those that other components bring."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.dagster.options import PipelineOptions
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.sensors.alarms import HOUR, failure_alarm_tick, horizon_tick
from dagster_ckpt.dagster.sensors.safety_net import Mirrored, safety_net_tick, shared_run_status_sensors
from dagster_ckpt.dagster.sensors.shared import BoundCoordinator, Tick, build_shared_sensor


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
