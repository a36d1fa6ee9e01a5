"""Whether the run that owns a pipeline is alive, as Dagster knows it."""

from __future__ import annotations

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.properties import RunStatus
from dagster_ckpt.core.supervision.owner import Alive, Dead, Silent
from dagster_ckpt.dagster.lease import owner_of

NOW = 1000.0


def record(owner: str, lease_until: float) -> CoordinatorRecord:
    return CoordinatorRecord(
        pipeline="orders",
        owner=owner,
        status=RunStatus.RUNNING,
        epoch=1,
        status_epoch=1,
        lease_until=lease_until,
    )


@pytest.fixture
def instance() -> dg.DagsterInstance:
    return dg.DagsterInstance.ephemeral()


def test_the_lease_decides_about_a_run_that_dagster_believes_to_be_running(
    instance: dg.DagsterInstance,
) -> None:
    run = create_run_for_test(instance, status=dg.DagsterRunStatus.STARTED).run_id
    assert owner_of(record(run, NOW + 1), instance, now=NOW) == Alive(run, True, NOW + 1)
    assert owner_of(record(run, NOW - 1), instance, now=NOW) == Silent(run)


def test_a_run_that_dagster_saw_end_is_dead(instance: dg.DagsterInstance) -> None:
    run = create_run_for_test(instance, status=dg.DagsterRunStatus.FAILURE).run_id
    assert owner_of(record(run, NOW + 60), instance, now=NOW) == Dead()


def test_the_lease_decides_about_a_run_of_another_instance(instance: dg.DagsterInstance) -> None:
    assert owner_of(record("elsewhere", NOW + 60), instance, now=NOW) == Alive("elsewhere", True, NOW + 60)
    assert owner_of(record("elsewhere", NOW - 1), instance, now=NOW) == Silent("elsewhere")
