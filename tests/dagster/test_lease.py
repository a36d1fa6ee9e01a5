"""Whether the run that owns a pipeline is alive, by Dagster and by its lease."""

from __future__ import annotations

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.properties import RunStatus
from dagster_ckpt.dagster.lease import Alive, Dead, Unknown, owner_of

NOW = 1000.0


def record(owner: str, *, lease_until: float | None = None, **given: object) -> CoordinatorRecord:
    values = {"status": RunStatus.RUNNING, "epoch": 1, "status_epoch": 1, "lease_until": lease_until, **given}
    return CoordinatorRecord(pipeline="orders", owner=owner).model_copy(update=values)


@pytest.fixture
def instance() -> dg.DagsterInstance:
    return dg.DagsterInstance.ephemeral()


def test_a_run_that_dagster_runs_is_alive_with_and_without_a_lease(instance: dg.DagsterInstance) -> None:
    run = create_run_for_test(instance, status=dg.DagsterRunStatus.STARTED).run_id
    assert owner_of(record(run), instance, now=NOW) == Alive(run, has_lease=False)
    assert owner_of(record(run, lease_until=NOW - 1), instance, now=NOW) == Alive(run, has_lease=False)
    assert owner_of(record(run, lease_until=NOW + 1), instance, now=NOW) == Alive(run, has_lease=True)


def test_a_run_that_dagster_saw_end_is_dead_whatever_its_lease_says(instance: dg.DagsterInstance) -> None:
    run = create_run_for_test(instance, status=dg.DagsterRunStatus.FAILURE).run_id
    assert owner_of(record(run, lease_until=NOW + 60), instance, now=NOW) == Dead()


def test_a_run_of_another_instance_is_dead_only_when_its_lease_is_over(instance: dg.DagsterInstance) -> None:
    assert owner_of(record("elsewhere", lease_until=NOW + 60), instance, now=NOW) == Unknown("elsewhere")
    assert owner_of(record("elsewhere", lease_until=NOW - 1), instance, now=NOW) == Dead()


def test_a_pipeline_at_rest_has_no_owner(instance: dg.DagsterInstance) -> None:
    run = create_run_for_test(instance, status=dg.DagsterRunStatus.STARTED).run_id
    assert owner_of(None, instance, now=NOW) == Dead()
    assert owner_of(record(run, status=RunStatus.SUSPENDED), instance, now=NOW) == Dead()
