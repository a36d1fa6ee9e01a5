"""A pipeline's real coordinator, store and storage, its run played by the test, and a Dagster instance beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    CheckpointedPipeline,
    PipelineOptions,
    build_pipeline_definitions,
    checkpoints_asset_key,
)
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.dagster.names import PIPELINE_TAG
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from dagster_ckpt.testing.coordinator.world import ScenarioWorld
from dagster_ckpt.testing.memory import ManualClock
from tests.records import stored_record
from tests.spark.epoch.small_pipeline import shop

AGO = 1000.0
"""Seconds between the beginning of a test's story and now."""


@dataclass(frozen=True)
class Tick:
    """What one evaluation of a sensor came to."""

    said: str
    """What a person reads in the tick list when nothing was done."""
    cursor: str | None
    requests: list[dg.RunRequest]
    events: list[dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation]


@dataclass
class Site:
    """One pipeline in one code location. ``run`` plays a Dagster run of it, without Spark."""

    folder: Path
    instance: dg.DagsterInstance
    pipeline: CheckpointedPipeline
    options: PipelineOptions = field(default_factory=PipelineOptions)
    clock: ManualClock = field(default_factory=lambda: ManualClock(now=time.time() - AGO))
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def resource(self) -> CheckpointCoordinatorResource:
        return CheckpointCoordinatorResource(base_dir=str(self.folder), **self.settings)

    @cached_property
    def definitions(self) -> dg.Definitions:
        return build_pipeline_definitions(self.pipeline, coordinator=self.resource, options=self.options)

    @property
    def record(self) -> CoordinatorRecord:
        return stored_record(self.resource.store(), self.pipeline.name)

    # --- runs --------------------------------------------------------------------------------------------------

    def start_run(
        self, job: str = "", tags: dict[str, str] | None = None, config: Any = None
    ) -> dg.DagsterRun:
        """A run of the pipeline's job that Dagster believes to be under way."""
        return self.instance.create_run_for_job(
            job_def=self.definitions.resolve_job_def(job or self.pipeline.name),
            run_config=config or {},
            tags={PIPELINE_TAG: self.pipeline.name, **(tags or {})},
            status=dg.DagsterRunStatus.STARTED,
        )

    def attempt(self, run: dg.DagsterRun, **settings: Any) -> CoordinatorHarness:
        """The coordinator that this run has opened."""
        resource = self.resource
        storage = resource.storage()
        world = ScenarioWorld(
            clock=self.clock, memory_store=resource.store(), memory_storages={storage.base_uri: storage}
        )
        return CoordinatorHarness(
            stages=self.pipeline.graph.stages,
            edges=self.pipeline.graph.edges,
            pipeline=self.pipeline.name,
            owner=run.run_id,
            world=world,
            **{
                "num_retained": 3,
                "externalized_checkpoint_retention": "retain_on_cancellation",
                "tolerable_failed_checkpoints": 10,
                **settings,
            },
        )

    # --- sensors -----------------------------------------------------------------------------------------------

    @contextmanager
    def context(self, cursor: str | None = None) -> Iterator[dg.SensorEvaluationContext]:
        with dg.build_sensor_context(instance=self.instance, cursor=cursor) as context:
            yield context

    def tick(self, name: str, cursor: str | None = None) -> Tick:
        """Evaluate a sensor as the daemon does, and carry out what it asks for."""
        with self.context(cursor) as context:
            data = self.definitions.resolve_sensor_def(name).evaluate_tick(context)
        tick = Tick(
            said=data.skip_message or "",
            cursor=data.cursor,
            requests=list(data.run_requests or ()),
            events=list(data.asset_events),
        )
        for event in tick.events:
            self.instance.report_runless_asset_event(event)
        for request in data.dynamic_partitions_requests or ():
            defined = request.partitions_def_name
            if isinstance(request, dg.AddDynamicPartitionsRequest):
                self.instance.add_dynamic_partitions(defined, list(request.partition_keys))
            else:
                for key in request.partition_keys:
                    self.instance.delete_dynamic_partition(defined, key)
        return tick

    # --- what Dagster shows ------------------------------------------------------------------------------------

    @property
    def partitions(self) -> list[str]:
        return sorted(self.instance.get_dynamic_partitions(f"{self.pipeline.name}/checkpoints"))

    def materialized(self) -> list[str]:
        """Partition keys of materialization events, oldest first."""
        key = checkpoints_asset_key(self.pipeline.name)
        records = self.instance.fetch_materializations(key, limit=100, ascending=True).records
        return [record.partition_key or "" for record in records]

    def observations(self) -> list[dg.AssetObservation]:
        """Oldest first."""
        key = checkpoints_asset_key(self.pipeline.name)
        records = self.instance.fetch_observations(key, limit=100, ascending=True).records
        return [record.asset_observation for record in records if record.asset_observation is not None]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as made:
        yield made


@pytest.fixture
def site(tmp_path: Path, instance: dg.DagsterInstance, request: pytest.FixtureRequest) -> Site:
    """Parametrise indirectly with PipelineOptions."""
    options = getattr(request, "param", PipelineOptions())
    return Site(tmp_path / "site", instance, shop(tmp_path / "feed"), options=options)
