"""Whether the run that owns a pipeline is alive, as Dagster knows it."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from dagster_ckpt import CheckpointCoordinatorResource
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import CheckpointRequest, RunStatus
from dagster_ckpt.core.supervision.ownership import Alive, Dead, Silent
from dagster_ckpt.dagster.runs.turn import owner_of, request_from_running_stream
from dagster_ckpt.errors import Declined
from dagster_ckpt.runtime.record_store import NO_RECORD, RecordStore
from dagster_ckpt.testing.memory import MemoryCoordinatorStore
from tests.records import stored_record

NOW = 1000.0


def record(owner: str, lease_until: float) -> CoordinatorRecord:
    return CoordinatorRecord(
        pipeline=PipelineId("shop"),
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


@pytest.mark.parametrize("is_stop", [False, True])
def test_what_a_killed_stream_was_asked_for_is_left_to_who_asks_unless_it_was_to_end_with_it(
    tmp_path: Path, is_stop: bool
) -> None:
    store, killed = MemoryCoordinatorStore(), record("stream", time.time() + 0.5)
    RecordStore(store).write(PipelineId("shop"), NO_RECORD, killed, ())
    kind = CheckpointKind.SYNC_SAVEPOINT_SUSPEND if is_stop else CheckpointKind.SAVEPOINT
    declines = (
        pytest.raises(Declined, match="ended before it took the savepoint") if is_stop else nullcontext()
    )
    open_storage = CheckpointCoordinatorResource(base_dir=str(tmp_path)).open_storage
    with declines:
        taken = request_from_running_stream(
            store, PipelineId("shop"), CheckpointRequest(kind=kind), open_storage=open_storage
        )
        assert taken is None
    assert len(stored_record(store, "shop").mailbox) == 1, "the next owner's claim empties it"


def test_a_relative_target_means_a_folder_of_who_asks_not_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, alive = MemoryCoordinatorStore(), record("stream", time.time() + 600)
    RecordStore(store).write(PipelineId("shop"), NO_RECORD, alive, ())
    monkeypatch.chdir(tmp_path)
    request = CheckpointRequest(kind=CheckpointKind.SAVEPOINT, target="kept/here")
    resource = CheckpointCoordinatorResource(base_dir=str(tmp_path))
    with pytest.raises(Declined, match="did not answer within 0 ms"):
        request_from_running_stream(
            store, PipelineId("shop"), request, open_storage=resource.open_storage, timeout=0.0
        )
    [mail] = stored_record(store, "shop").mailbox
    assert mail.target == (tmp_path / "kept" / "here").as_uri()
