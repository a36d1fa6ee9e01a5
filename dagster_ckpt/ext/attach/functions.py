"""Functions of one text, told apart by their values: a loop over tables hands the same lines to each query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import PurePath
from types import FunctionType, MethodType, ModuleType

DEPTH = 6
"""Functions within functions that are followed."""
_FOREIGN = frozenset({"builtins", "pyspark", "py4j", "logging", "threading"})
"""Packages whose objects say nothing of where rows go."""


def bound_values(function: object) -> list[object]:
    """Return the values that a function is bound to: texts and numbers, and mappings, lists and sets as they are."""
    return list(_bound(function, DEPTH))


def is_bound_alike(one: list[object], other: list[object]) -> bool:
    """Tell whether two functions are bound to the same: a list that one of them fills is the same list."""
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(a is b or (type(a) is type(b) and a == b) for a, b in pairs)


def lasting_values(function: object) -> list[str]:
    """Return of what a function is bound to what is the same in another process: texts, paths and numbers."""
    return [str(one) for one in bound_values(function) if isinstance(one, (str, int, PurePath))]


def _bound(value: object, depth: int) -> Iterator[object]:
    if isinstance(value, (str, int, PurePath, Mapping, list, set)):
        yield value
    elif depth == 0 or isinstance(value, (type, ModuleType)):
        return
    else:
        for one in _parts(value):
            yield from _bound(one, depth - 1)


def _parts(value: object) -> Iterator[object]:
    if isinstance(value, tuple):
        yield from value
    elif isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, FunctionType):
        yield from (value.__defaults__ or (), *(value.__kwdefaults__ or {}).values())
        names = value.__code__.co_names
        yield from (value.__globals__[name] for name in names if name in value.__globals__)
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # nothing is in it yet
                continue
    elif type(value).__module__.partition(".")[0] not in _FOREIGN:
        texts = getattr(value, "__dict__", {}).values()
        yield from (one for one in texts if isinstance(one, (str, int, PurePath)))
