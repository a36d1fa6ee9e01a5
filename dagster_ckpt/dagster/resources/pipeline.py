"""Resources of one pipeline, where several with different ones are in one code location; opened without a run.

A job carries its own, under the keys people spell in run configs (``checkpoint_coordinator``, ``spark``). Checks and
tables of all pipelines share one job of Dagster's, in which a key means one thing: there a pipeline's resources have
keys of its own (``orders__spark``). Code of stages and hooks reads the first kind in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.dagster.names import COORDINATOR_KEY, SPARK_KEY, own_resource_key
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.resources.spark import SparkSessionResource
from dagster_ckpt.errors import CheckpointError

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
    from dagster_ckpt.operations.readers.blue_green import who_serves

    try:
        return who_serves(coordinator.deployment(pipeline), pipeline)
    except CheckpointError:
        return pipeline.name if not pipeline.origins else pipeline.origins[-1].name


_VARIABLES = (dg.EnvVar, type(dg.EnvVar.int("NUMBER")))
OurResource = TypeVar("OurResource", CheckpointCoordinatorResource, SparkSessionResource)


@contextmanager
def opened(resource: OurResource) -> Iterator[OurResource]:
    """Yield a copy of a resource, ready for one run; what that run leaves open is closed at the end.

    Dagster makes an instance in memory for this, half a second of imports in a plain program. That is left out where
    the resource takes nothing from it: one of ours, not of a subclass, whose settings name no environment variables.
    """
    settings = {name: getattr(resource, name) for name in resource.model_fields_set}
    kind = type(resource)
    if kind in (CheckpointCoordinatorResource, SparkSessionResource) and not has_variables(settings):
        ready = kind(**settings)
        with ready.held():
            yield ready
    else:
        with resource.process_config_and_initialize_cm() as prepared:
            yield cast("OurResource", prepared)


def has_variables(value: Any) -> bool:
    """Tell whether a setting names a variable of the environment, which is known in a run only."""
    if isinstance(value, Mapping):
        return any(map(has_variables, value.values()))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return any(map(has_variables, value))
    return isinstance(value, _VARIABLES)
