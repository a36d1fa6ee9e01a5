"""Fields of a frozen dataclass replaced, ten times as fast as ``dataclasses.replace``.

Only where it happens once per subtask: there it is most of the cost of an acknowledgement. For that reason the
classes it is used on have no slots.
"""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def replace_fast(value: T, **changed: Any) -> T:
    """Return a copy of ``value``, a dataclass without slots, with some fields replaced."""
    copy = object.__new__(type(value))
    fields = copy.__dict__
    fields.update(value.__dict__)
    fields.update(changed)
    return copy
