"""What a job's Launchpad shows: the settings that matter for the job. All others may be written there too.

The Launchpad begins with every field that has a default in its schema. So a resource's fields have none there: what is
not written is as the code says. And fields of an op's config that few need are made with ``seldom``.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import dagster as dg
from dagster._config import process_config
from dagster._core.execution.build_resources import wrap_resources_for_execution
from pydantic import Field

from dagster_ckpt.errors import InvalidRequest


def seldom(value: Any) -> Any:
    """Return the default of a config field that the Launchpad does not show until somebody writes it."""
    return Field(default_factory=lambda: deepcopy(value))


def quiet_resources(resources: Mapping[str, Any]) -> dict[str, dg.ResourceDefinition]:
    """Return resources as definitions of a job, of whose settings the Launchpad shows none."""
    return {key: _quiet(definition) for key, definition in wrap_resources_for_execution(resources).items()}


def _quiet(definition: dg.ResourceDefinition) -> dg.ResourceDefinition:
    whole: Any = definition.config_schema.config_type
    fields: Mapping[str, dg.Field] = getattr(whole, "fields", None) or {}
    if not fields or any(field.is_required for field in fields.values()):
        return definition
    field = definition.config_schema.as_field()
    said: Mapping[str, Any] = field.default_value if field.default_provided else {}
    open_: Any = definition.resource_fn

    def opened(context: dg.InitResourceContext) -> Any:
        settings = process_config(whole, {**said, **(context.resource_config or {})})
        if not settings.success:
            raise InvalidRequest("; ".join(error.message for error in settings.errors or ()))
        return open_(context.replace_config(settings.value))

    quiet = {
        name: dg.Field(field.config_type, is_required=False, description=field.description)
        for name, field in fields.items()
    }
    return dg.ResourceDefinition(
        resource_fn=opened,
        config_schema=dg.Field(quiet, is_required=False, default_value={}),
        description=definition.description,
        required_resource_keys=set(definition.required_resource_keys),
    )
