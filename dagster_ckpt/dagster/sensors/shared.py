"""Sensors that tick: one pipeline's own, and those of all pipelines of a code location, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from dagster_ckpt.dagster.sensors.ticks import Cursor, read_cursor

Ticked = dg.SensorResult | dg.SkipReason
Tick = Callable[[dg.SensorEvaluationContext, str | None], Ticked]
"""What a sensor does for one pipeline, from that pipeline's cursor."""
BUDGET = 40.0
"""Seconds after which the other pipelines are left to the next tick: Dagster gives a tick sixty."""


class SharedCursor(Cursor):
    """Cursors of the pipelines, and which one was left out first when time was up."""

    pipelines: dict[str, str | None] = {}  # noqa: RUF012 - a pydantic field, copied per instance
    first: str = ""


def one_after_the_other(ticks: Mapping[str, Tick], *, clock: Callable[[], float] = time.monotonic) -> Any:
    """Return the evaluation of a sensor that ticks for every pipeline.

    One that fails keeps its cursor and does not keep the others from being looked after; when all fail, the tick does.
    """

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        cursor = read_cursor(context.cursor, SharedCursor)
        merged, began = _Merged(), clock()
        left: list[str] = []
        for name in _from(cursor.first, list(ticks)):
            before = cursor.pipelines.get(name)
            if clock() - began > BUDGET:
                left.append(name)
                merged.cursors[name] = before
                continue
            try:
                merged.add(name, ticks[name](context, before), before)
            except Exception as error:  # of one pipeline: its store, its hook
                merged.failed(name, error, before)
                context.log.exception(f"{name}: {error}")
        merged.raise_where_all_failed()
        return merged.result(first=left[0] if left else "")

    return evaluate


def _from(first: str, names: list[str]) -> Iterator[str]:
    start = names.index(first) if first in names else 0
    yield from names[start:]
    yield from names[:start]


@dataclass
class _Merged:
    """Results of several ticks as one."""

    cursors: dict[str, str | None] = field(default_factory=dict)
    events: list[Any] = field(default_factory=list)
    partitions: list[Any] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    ticked: int = 0

    def add(self, name: str, result: Ticked, before: str | None) -> None:
        self.ticked += 1
        if isinstance(result, dg.SkipReason):
            self.cursors[name] = before
            self._say(name, result)
            return
        self.cursors[name] = result.cursor if result.cursor is not None else before
        self.events.extend(result.asset_events)
        self.partitions.extend(result.dynamic_partitions_requests or ())
        if result.skip_reason is not None:
            self._say(name, result.skip_reason)

    def failed(self, name: str, error: Exception, before: str | None) -> None:
        self.cursors[name] = before
        self.errors.append(error)
        self.said.append(f"{name}: {error}")

    def raise_where_all_failed(self) -> None:
        if self.errors and not self.ticked:
            raise self.errors[0]

    def result(self, *, first: str) -> dg.SensorResult:
        is_idle = not (self.events or self.partitions)
        cursor = SharedCursor(pipelines=self.cursors, first=first)
        return dg.SensorResult(
            asset_events=self.events,
            dynamic_partitions_requests=self.partitions or None,
            skip_reason=dg.SkipReason("; ".join(self.said) or "nothing to do") if is_idle else None,
            cursor=cursor.model_dump_json(),
        )

    def _say(self, name: str, reason: str | dg.SkipReason) -> None:
        text = reason.skip_message if isinstance(reason, dg.SkipReason) else reason
        self.said.append(f"{name}: {text}")


def build_own_sensor(
    name: str, tick: Tick, *, does: str, minimum_interval_seconds: int = 30
) -> dg.SensorDefinition:
    """Return the sensor ``name`` of one pipeline; it is on from the start."""
    return dg.SensorDefinition(
        name=name,
        evaluation_fn=lambda context: tick(context, context.cursor),
        description=does,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )


def build_shared_sensor(
    name: str, ticks: Mapping[str, Tick], *, does: str, minimum_interval_seconds: int = 30
) -> dg.SensorDefinition:
    """Return the sensor ``name`` for all these pipelines, and for those that are added to ``ticks`` later."""
    return dg.SensorDefinition(
        name=name,
        evaluation_fn=one_after_the_other(ticks),
        description=f"{does} Of all pipelines of the code location.",
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
