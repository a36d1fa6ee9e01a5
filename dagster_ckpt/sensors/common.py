"""What the sensors share: the coordinator's store, runs as Dagster knows them, links, cursors."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import dagster as dg
from pydantic import BaseModel, ConfigDict, ValidationError

from dagster_ckpt.core.aftermath import OwnerState

if TYPE_CHECKING:
    from dagster_ckpt.resources import CheckpointCoordinatorResource

WILL_RETRY_TAG = "dagster/will_retry"
RESTARTS_TAG = "dagster_ckpt/restarts"
PIPELINE_TAG = "dagster_ckpt/pipeline"


class Cursor(BaseModel):
    """Base of what a sensor remembers between ticks; JSON, which people may read and reset."""

    model_config = ConfigDict(frozen=True, extra="ignore")


C = TypeVar("C", bound=Cursor)


def read_cursor(text: str | None, kind: type[C]) -> C:
    """Return the cursor; one that is missing, damaged or of another version begins anew.

    Safe because every sensor here acts on what it finds, not on what it remembers: at worst people are told twice.
    """
    try:
        return kind.model_validate_json(text or "{}")
    except ValidationError:
        return kind()


class StandingCoordinator:
    """The coordinator resource as sensors use it: set up once per process, with one client of the store.

    Dagster sets up a sensor's resources for every tick, which alone costs 14 ms for one with as many settings.
    """

    def __init__(self, resource: CheckpointCoordinatorResource) -> None:
        self._resource = resource
        self._ready: CheckpointCoordinatorResource | None = None

    def of(self, context: dg.SensorEvaluationContext) -> CheckpointCoordinatorResource:
        """Return the resource, its settings resolved (environment variables too), for a tick's instance."""
        if self._ready is None:
            with self._resource.process_config_and_initialize_cm() as ready:
                self._ready = ready
        self._ready.use_instance(context.instance)
        return self._ready


def code_location(context: dg.SensorEvaluationContext) -> str | None:
    """Return the name of the sensor's code location, which links need; None in a test without one."""
    origin = context.code_location_origin
    return None if origin is None else str(origin.location_name)


def owner_state(instance: dg.DagsterInstance, run_id: str) -> OwnerState:
    """Return what Dagster knows of a run."""
    run = instance.get_run_by_id(run_id) if run_id else None
    return OwnerState.UNKNOWN if run is None else state_of_run(run)


def state_of_run(run: dg.DagsterRun) -> OwnerState:
    """Return how a run stands."""
    match run.status:
        case dg.DagsterRunStatus.SUCCESS:
            return OwnerState.SUCCEEDED
        case dg.DagsterRunStatus.CANCELED:
            return OwnerState.CANCELED
        case dg.DagsterRunStatus.FAILURE:
            retried = run.tags.get(WILL_RETRY_TAG) == "true"
            return OwnerState.FAILED_AND_RETRIED if retried else OwnerState.FAILED
        case _:
            return OwnerState.ALIVE


def run_link(run_id: str, ui_base_url: str = "") -> str:
    """Return the address of a run's page."""
    return f"{ui_base_url.rstrip('/')}/runs/{run_id}"
