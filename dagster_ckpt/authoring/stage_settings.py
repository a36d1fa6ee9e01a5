"""Settings of stages as their decorators take them: typed, so that an editor completes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

from dagster_ckpt.authoring.origins import SourceOrigin
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


class StageSettings(_ForAll, total=False):
    """Further settings of ``@spark_stage``."""

    max_entries_per_trigger: int


class SinkSettings(StageSettings, total=False):
    """Further settings of ``@spark_sink``."""

    asset: str


class SourceSettings(_ForAll, total=False):
    """Settings of ``@spark_source``."""

    output_mode: OutputMode
    boundedness: Literal["bounded", "unbounded"]
    barrier_after: Callable[[SourceBatch], bool]
    is_backlog: Callable[[SourceBatch], bool]
    asset: str
    reads: SourceOrigin


def check_values(fn: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for an output mode or a number that cannot be."""
    mode, modes = settings.get("output_mode", "append"), get_args(OutputMode)
    if mode not in modes:
        raise InvalidRequest(
            f"{fn.__name__!r} has output_mode={mode!r}: give {', '.join(modes[:-1])} or {modes[-1]}"
        )
    for name, least in (("partitions", 1), ("max_entries_per_trigger", 0)):
        value = settings.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise InvalidRequest(f"{fn.__name__!r} has {name}={value!r}: give a number, at least {least}")
