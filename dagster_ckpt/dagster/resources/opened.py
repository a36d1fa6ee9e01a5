"""Our resources outside of a Dagster run: opened as Dagster opens them, and closed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import dagster as dg

from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.resources.spark import SparkSessionResource

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
