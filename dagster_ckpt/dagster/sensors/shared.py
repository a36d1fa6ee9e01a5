"""Sensors that tick: one pipeline's own, and those of all pipelines of a code location, one after the other.

Pieces that they share: the coordinator's store, runs as Dagster knows them, links, cursors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import dagster as dg
from pydantic import BaseModel, ConfigDict, ValidationError

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.dagster.jobs.build import looks_only
from dagster_ckpt.dagster.names import (
    PIPELINE_TAG,
    SKIPPED_TAG,
    epoch_job_name,
    restore_job_name,
    streaming_job_name,
)
from dagster_ckpt.dagster.resources.pipeline import opened

if TYPE_CHECKING:
    from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource


class Cursor(BaseModel):
    """Base of what a sensor remembers between ticks; JSON, which people may read and reset."""

    model_config = ConfigDict(frozen=True, extra="ignore")


C = TypeVar("C", bound=Cursor)


def read_cursor(text: str | None, kind: type[C]) -> C:
    """Return the cursor; one that is missing, damaged or of another version is reset.

    Safe because every sensor here acts on what it finds, not on what it remembers: at worst people are told twice.
    """
    try:
        return kind.model_validate_json(text or "{}")
    except ValidationError:
        return kind()


class BoundCoordinator:
    """The coordinator resource as sensors use it: set up once per process, with one client of the store.

    Dagster sets up a sensor's resources for every tick, which alone costs 14 ms for one with as many settings.
    """

    def __init__(self, resource: CheckpointCoordinatorResource) -> None:
        self._resource = resource
        self._ready: CheckpointCoordinatorResource | None = None

    def of(self, instance: dg.DagsterInstance) -> CheckpointCoordinatorResource:
        """Return the resource, its settings resolved (environment variables too), for a tick's instance."""
        if self._ready is None:
            with opened(self._resource) as ready:
                self._ready = ready
        self._ready.use_instance(instance)
        return self._ready


def code_location(context: dg.SensorEvaluationContext) -> str | None:
    """Return the name of the sensor's code location, which links need; None in a test without one."""
    origin = context.code_location_origin
    return None if origin is None else str(origin.location_name)


def run_link(run_id: str, ui_base_url: str = "") -> str:
    """Return the address of a run's page."""
    return f"{ui_base_url.rstrip('/')}/runs/{run_id}"


LOOKED_AT = 200
"""So many newest runs are looked at at most, so that a tick costs the same whatever the history."""


def newest_run(instance: dg.DagsterInstance, pipeline: CheckpointedPipeline) -> dg.RunRecord | None:
    """Return the newest run that runs the pipeline's stages.

    Those that take or remove savepoints are passed over, and those that did nothing because another one was alive, or
    only say what a restore would do.
    """
    name = pipeline.name
    jobs = {
        epoch_job_name(name),
        restore_job_name(name),
        streaming_job_name(name),
    }
    wanted = dg.RunsFilter(tags={PIPELINE_TAG: name})
    for limit in (1, 20, LOOKED_AT):
        for found in instance.get_run_records(wanted, limit=limit):
            run = found.dagster_run
            if run.job_name in jobs and SKIPPED_TAG not in run.tags and not looks_only(run.run_config):
                return found
    return None


Ticked = dg.SensorResult | dg.SkipReason
Tick = Callable[[dg.SensorEvaluationContext, str | None], Ticked]
"""What a sensor does for one pipeline, from that pipeline's cursor."""
BUDGET = 40.0
"""Seconds after which the other pipelines are left to the next tick: Dagster gives a tick sixty."""


class SharedCursor(Cursor):
    """Cursors of the pipelines, and which one was left out first when time was up."""

    pipelines: dict[str, str | None] = {}
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
