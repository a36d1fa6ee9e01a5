"""Resources of one pipeline, where several pipelines with different ones are in one code location.

A job carries its own, under the keys people spell in run configs (``checkpoint_coordinator``, ``spark``). Checks and
tables of all pipelines share one job of Dagster's, in which a key means one thing: there a pipeline's resources have
keys of its own (``orders__spark``). Code of stages and hooks reads the first kind in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.dagster.names import COORDINATOR_KEY, SPARK_KEY, own_resource_key
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.resources.spark import SparkSessionResource
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.operations.readers.blue_green import who_serves

_OURS = frozenset({COORDINATOR_KEY, SPARK_KEY})


def own_keys(pipeline: PipelineId, keys: Iterable[str]) -> set[str]:
    """Return resource keys for a check or an asset: ours as the pipeline's own."""
    return {own_resource_key(pipeline, key) if key in _OURS else key for key in keys}


def own_resources(pipeline: PipelineId, resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same resources, under the pipeline's own keys."""
    return {own_resource_key(pipeline, key): resource for key, resource in resources.items()}


class PipelineResources:
    """View of an op's resources: ``.spark`` is the pipeline's, whatever its key."""

    def __init__(self, resources: Any, pipeline: PipelineId) -> None:
        self._resources = resources
        self._pipeline = pipeline

    def __getattr__(self, key: str) -> Any:
        own = own_resource_key(self._pipeline, key)
        return getattr(self._resources, own if key in _OURS and hasattr(self._resources, own) else key)


def resources_of(context: Any, pipeline: PipelineId) -> PipelineResources:
    """Return the resources of a running op or check of a pipeline."""
    return PipelineResources(context.resources, pipeline)


def coordinator_of(context: Any, pipeline: PipelineId) -> CheckpointCoordinatorResource:
    """Return the coordinator resource of a running op or check of a pipeline."""
    resource: CheckpointCoordinatorResource = getattr(resources_of(context, pipeline), COORDINATOR_KEY)
    return resource


def spark_of(context: Any, pipeline: PipelineId) -> SparkSessionResource:
    """Return the session resource of a running op or check of a pipeline."""
    resource: SparkSessionResource = getattr(resources_of(context, pipeline), SPARK_KEY)
    return resource


def serving_now(coordinator: CheckpointCoordinatorResource, pipeline: CheckpointedPipeline) -> str:
    """Return the pipeline whose tables readers find; where the store cannot be asked, as if nobody had swapped."""
    try:
        return who_serves(coordinator.deployment(pipeline), pipeline)
    except CheckpointError:
        return pipeline.name if not pipeline.origins else pipeline.origins[-1].name
