"""Settings of stages as their decorators take them: typed, so that an editor completes them."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypedDict, get_args

from dagster_ckpt.authoring.targets import SourceOrigin
from dagster_ckpt.errors import InvalidRequest

OutputMode = Literal["append", "update", "complete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBatch:
    """A micro-batch of a source that is written; the next has not begun."""

    batch_id: int
    offsets: dict[str, Any]
    """End offset per Spark source (its number, or its name), parsed from Spark's JSON."""
    files: tuple[str, ...] = ()
    """Paths a file source has read in this batch, in the order of its log; empty for other sources."""


class _ForAll(TypedDict, total=False):
    """Settings of every stage."""

    previous_uids: Sequence[str]
    partitions: int
    chain: bool
    tags: Mapping[str, str]
    config_schema: Any
    required_resource_keys: Iterable[str]


class _Judged(_ForAll, total=False):
    """Settings of what judges rows."""

    expect: Mapping[str, Literal["warn", "drop", "quarantine", "fail"]]
    at_most: str | int
    beyond: Literal["warn", "fail"]
    late: Literal["count", "keep"]
    on_error: Literal["fail", "quarantine"]
    quarantine: str


class StageSettings(_Judged, total=False):
    """Further settings of ``@spark_stage``."""

    max_entries_per_trigger: int


class SinkSettings(_Judged, total=False):
    """Further settings of ``@spark_sink``."""

    max_entries_per_trigger: int
    asset: str


class SourceSettings(_Judged, total=False):
    """Settings of ``@spark_source``."""

    output_mode: OutputMode
    boundedness: Literal["bounded", "unbounded"]
    barrier_after: Callable[[SourceBatch], bool]
    is_backlog: Callable[[SourceBatch], bool]
    asset: str
    reads: SourceOrigin


def check_values(fn: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for an output mode or a number that cannot be, and a function that returns nothing."""
    _refuse_no_return(fn)
    mode, modes = settings.get("output_mode", "append"), get_args(OutputMode)
    if mode not in modes:
        raise InvalidRequest(
            f"{fn.__name__!r} has output_mode={mode!r}: give {', '.join(modes[:-1])} or {modes[-1]}"
        )
    for name, least in (("partitions", 1), ("max_entries_per_trigger", 0)):
        value = settings.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise InvalidRequest(f"{fn.__name__!r} has {name}={value!r}: give a number, at least {least}")


def _refuse_no_return(fn: Callable[..., Any]) -> None:
    """Raise InvalidRequest for a function that does something and returns nothing: its rows would go nowhere."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is None or code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE):
        return
    steps = list(dis.get_instructions(code))
    returns = [(before, step) for before, step in pairwise(steps) if "RETURN" in step.opname]
    of_nothing = [
        step
        for before, step in returns
        if (step.opname == "RETURN_CONST" and step.argval is None)
        or (step.opname == "RETURN_VALUE" and before.opname == "LOAD_CONST" and before.argval is None)
    ]
    is_work = any(step.opname.startswith("CALL") for step in steps)  # a stub calls nothing
    returned = [step for _, step in returns if not step.opname.startswith("RETURN_GENERATOR")]
    if is_work and returned and len(of_nothing) == len(returned):
        raise InvalidRequest(
            f"{fn.__name__!r} returns nothing: end it with `return` and the DataFrame that it has made"
        )
