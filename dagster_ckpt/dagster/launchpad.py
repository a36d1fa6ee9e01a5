"""Launchpad of a job: the settings that matter for the job, and links to it with settings filled in.

All other settings may be written there too. The Launchpad begins with every field that has a default in its schema.
So a resource's fields have none there: a setting that is not written is as the code says. And fields of an op's config
that few need are made with ``seldom``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import dagster as dg
import yaml
from dagster._config import EvaluateValueResult, process_config
from dagster._config.pythonic_config.resource import ConfigurableResourceFactoryResourceDefinition
from dagster._core.definitions.definition_config_schema import (
    ConfiguredDefinitionConfigSchema,
    DefinitionConfigSchema,
)
from dagster._core.execution.build_resources import wrap_resources_for_execution
from pydantic import Field, PrivateAttr

from dagster_ckpt.dagster.names import RESTORE_TAG
from dagster_ckpt.errors import InvalidRequest


def seldom(value: Any) -> Any:
    """Return the default of a config field that the Launchpad does not show until somebody writes it."""
    return Field(default_factory=lambda: deepcopy(value))


def quiet_resources(resources: Mapping[str, Any]) -> dict[str, dg.ResourceDefinition]:
    """Return resources as definitions of a job, of whose settings the Launchpad shows none."""
    return {key: _quiet(definition) for key, definition in wrap_resources_for_execution(resources).items()}


class QuietResource(dg.ConfigurableResource[Any]):
    """Base of our resources: their page shows all settings, Launchpads none, not of Dagster's own jobs either."""

    _short: Any = PrivateAttr(default=None)

    def get_resource_definition(self) -> ConfigurableResourceFactoryResourceDefinition:
        """Return the definition, always the same one: Dagster tells resources apart by it."""
        if self._short is None or self._short[0] is not self:  # a copy has one of its own
            whole = super().get_resource_definition()
            found = ConfigurableResourceFactoryResourceDefinition(
                whole.configurable_resource_cls,
                resource_fn=_opened(whole),
                config_schema=_ShownShort(whole),
                description=whole.description,
                nested_resources=whole.nested_resources,
                nested_partial_resources=whole.nested_partial_resources,
            )
            self._short = (self, found)
        short: ConfigurableResourceFactoryResourceDefinition = self._short[1]
        return short


class _ShownShort(ConfiguredDefinitionConfigSchema):
    """Config of a resource as Dagster asks for it: short for Launchpads, whole for the page of the resource."""

    def __init__(self, whole: dg.ResourceDefinition) -> None:
        super().__init__(whole, DefinitionConfigSchema(_quiet_field(_fields(whole))), None)
        self._whole = whole.config_schema.as_field()

    def resolve_config(self, processed_config: Mapping[str, object]) -> EvaluateValueResult[Any]:
        """Return the written config as it is: the rest is added when the resource is opened."""
        return EvaluateValueResult.for_value({"config": {}, **processed_config})

    @property
    def default_provided(self) -> bool:
        return bool(self._whole.default_provided)

    @property
    def default_value(self) -> Any:
        return self._whole.default_value

    @property
    def default_value_as_json_str(self) -> str:
        return str(self._whole.default_value_as_json_str)


def _quiet(definition: dg.ResourceDefinition) -> dg.ResourceDefinition:
    fields = _fields(definition)
    is_short = isinstance(definition.config_schema, _ShownShort)
    if is_short or not fields or any(field.is_required for field in fields.values()):
        return definition
    return dg.ResourceDefinition(
        resource_fn=_opened(definition),
        config_schema=_quiet_field(fields),
        description=definition.description,
        required_resource_keys=set(definition.required_resource_keys),
    )


def _fields(definition: dg.ResourceDefinition) -> Mapping[str, dg.Field]:
    whole: Any = definition.config_schema.config_type
    return getattr(whole, "fields", None) or {}


def _quiet_field(fields: Mapping[str, dg.Field]) -> dg.Field:
    """Return the config of a resource without a default in it: a Launchpad shows what has one."""
    quiet = {
        name: dg.Field(field.config_type, is_required=False, description=field.description)
        for name, field in fields.items()
    }
    return dg.Field(quiet, is_required=False, default_value={})


def _opened(definition: dg.ResourceDefinition) -> Callable[[dg.InitResourceContext], Any]:
    """Return the function that opens a resource with its code's settings, and those written over them."""
    whole: Any = definition.config_schema.config_type
    field = definition.config_schema.as_field()
    said: Mapping[str, Any] = field.default_value if field.default_provided else {}
    open_: Any = definition.resource_fn

    def opened(context: dg.InitResourceContext) -> Any:
        settings = process_config(whole, {**said, **(context.resource_config or {})})
        if not settings.success:
            raise InvalidRequest("; ".join(error.message for error in settings.errors or ()))
        return open_(context.replace_config(settings.value))

    return opened


# --- links ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CodeLocation:
    """Code location whose jobs links open; without a name there are none."""

    name: str = ""
    ui_base_url: str = ""


def restore_link(
    *,
    job_name: str,
    location: str,
    restore_op: str,
    restore_from: str,
    ui_base_url: str = "",
    further: Mapping[str, object] | None = None,
    tags: Mapping[str, str] | None = None,
) -> str:
    """Return the address of a Launchpad pre-filled to start ``job_name`` from a checkpoint, with ``further`` config.

    The route is the UI's own and undocumented; a browser test holds it.
    """
    page = launchpad_link(
        job_name=job_name,
        location=location,
        op=restore_op,
        config={"restore_from": restore_from, **(further or {})},
        ui_base_url=ui_base_url,
    )
    shown = {RESTORE_TAG: restore_from, **(tags or {})}
    return page + "".join(
        f"&tags[{number}][key]={quote(key, safe='')}&tags[{number}][value]={quote(value, safe='')}"
        for number, (key, value) in enumerate(shown.items())
    )


def launchpad_link(
    *, job_name: str, location: str, op: str, config: Mapping[str, object], ui_base_url: str = ""
) -> str:
    """Return the address of a job's Launchpad with the config of one op filled in."""
    text = yaml.safe_dump({"ops": {op: {"config": dict(config)}}}, sort_keys=False)
    place = f"locations/{quote(location)}/jobs/{quote(job_name)}/playground/setup"
    return f"{ui_base_url.rstrip('/')}/{place}?config={quote(text, safe='')}"
