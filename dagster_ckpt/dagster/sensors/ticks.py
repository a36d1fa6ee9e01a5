"""Pieces that sensors share: the coordinator's store, runs as Dagster knows them, links, cursors."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import dagster as dg
from pydantic import BaseModel, ConfigDict, ValidationError

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.dagster.jobs.run_config import looks_only
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
