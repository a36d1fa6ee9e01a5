"""Results as JSON values: dataclasses with their simple properties, records, enums. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from pydantic import BaseModel

_SIMPLE = (str, int, float, bool, type(None))


def plain(value: Any) -> Any:
    """Return ``value`` as JSON can say it."""
    if isinstance(value, Mapping):
        return {str(plain(name)): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return _of_dataclass(value)
    return _of_single(value)


def _of_single(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return value if isinstance(value, _SIMPLE) else str(value)


def _of_dataclass(value: Any) -> dict[str, Any]:
    found = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    properties = [name for name, part in vars(type(value)).items() if isinstance(part, property)]
    for name in properties:
        computed = getattr(value, name)
        if isinstance(computed, _SIMPLE):
            found[name] = plain(computed)
    return found
