"""The lease of an attempt: taken with the claim, renewed while the process lives, given back at the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from dagster_ckpt.core.checkpoint.lease import LEASE, Lease
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.coordinator.admission import Waiting
from dagster_ckpt.core.request import CheckpointRequest, RunStatus
from dagster_ckpt.core.supervision.ownership import may_be_asked
from dagster_ckpt.errors import Fenced
from dagster_ckpt.runtime.attempt_setup import AttemptSetup, Occupied, Ownership
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.runtime.mailbox import NoRunningStream, Posted, look_up, post
from dagster_ckpt.runtime.turn import LeaseKeeper
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from tests.records import stored_record

STREAM, EPOCH = Lease(reads_mailbox=True), Lease(reads_mailbox=False)


@pytest.fixture
def h() -> CoordinatorHarness:
    """A pipeline whose first run ended in order."""
    harness = CoordinatorHarness()
    harness.close(RunStatus.SUSPENDED, clean=True)
    return harness


def setup_of(h: CoordinatorHarness, lease: Lease) -> AttemptSetup:
    return AttemptSetup(
        graph=h.graph,
        config=h.config,
        store=h.store,
        storage=h.storage,
        open_storage=h.storage_at,
        gateway=h.gateway,
        clock=h.clock,
        owner="run-2",
        ownership=Ownership.NEW_ATTEMPT,
        background=h.background,
        lease=lease,
    )


@contextmanager
def opened(setup: AttemptSetup) -> Iterator[CheckpointCoordinator]:
    coordinator = CheckpointCoordinator.open(setup)
    try:
        yield coordinator
    finally:
        coordinator._stop_keeping()


def record(h: CoordinatorHarness) -> CoordinatorRecord:
    return stored_record(h.store, "pipeline")


def request(name: str) -> CheckpointRequest:
    return CheckpointRequest(request_id=name)


def test_the_claim_takes_the_lease_before_anything_is_restored_or_started(h: CoordinatorHarness) -> None:
    with opened(setup_of(h, STREAM)):
        claimed = record(h)
        assert claimed.status is RunStatus.SUSPENDED, "the stages are not restored yet"
        assert claimed.lease_until == h.clock.now() + LEASE
        assert may_be_asked(claimed, h.clock.now())
        assert isinstance(post(h.store, h.graph.pipeline, request("a"), clock=h.clock), Posted)


def test_a_process_that_passes_the_attempt_on_leaves_it_running_and_alive_for_the_next_one(
    h: CoordinatorHarness,
) -> None:
    with opened(setup_of(h, EPOCH)) as first:
        first.started("/work/attempt-2")
        first.pass_on(h.clock.now() + 600.0)
    left = record(h)
    assert (left.status, left.lease_until) == (RunStatus.RUNNING, h.clock.now() + 600.0)
    with opened(replace(setup_of(h, EPOCH), ownership=Ownership.ATTACH)) as second:
        assert second.epoch == first.epoch
        assert second.working_directory == "/work/attempt-2"
        assert record(h).lease_until == h.clock.now() + LEASE, "from now on the next one's"
        second.close(RunStatus.SUSPENDED, clean=True)


def test_nobody_waits_for_the_next_process_of_a_run_that_has_failed_in_another_one(
    h: CoordinatorHarness,
) -> None:
    with opened(setup_of(h, EPOCH)) as first:
        first.started("/work/attempt-2")
        with opened(replace(setup_of(h, EPOCH), ownership=Ownership.ATTACH)) as beside:
            beside.close(RunStatus.FAILED, clean=False)
        first.pass_on(h.clock.now() + 600.0)
    assert (record(h).status, record(h).lease_until) == (RunStatus.FAILED, None)


def test_an_epoch_run_holds_a_lease_and_takes_no_requests(h: CoordinatorHarness) -> None:
    with opened(setup_of(h, EPOCH)):
        assert record(h).lease_until == h.clock.now() + LEASE
        asked = post(h.store, h.graph.pipeline, request("a"), clock=h.clock)
        assert asked == NoRunningStream("run-2")


def test_the_end_gives_the_lease_back_and_no_renewal_comes_after_it(h: CoordinatorHarness) -> None:
    with opened(setup_of(h, Lease(reads_mailbox=False, renew_every=0.0))) as coordinator:
        h.clock.advance(1)
        coordinator.close(RunStatus.SUSPENDED, clean=True)
        assert record(h).lease_until is None
    assert record(h).lease_until is None


def test_why_a_run_failed_is_on_record_until_the_next_one_begins(h: CoordinatorHarness) -> None:
    with opened(setup_of(h, EPOCH)) as coordinator:
        coordinator.close(RunStatus.FAILED, clean=False, cause=ValueError("no such column: a\nat com.x.Y"))
    assert record(h).job_failure == "no such column: a"
    with opened(setup_of(h, STREAM)) as coordinator:
        assert record(h).job_failure == ""
        coordinator.hand_over(KeyError())
    assert record(h).job_failure == "KeyError"


def test_between_two_attempts_of_a_run_the_pipeline_stays_taken_and_requests_wait(
    h: CoordinatorHarness,
) -> None:
    setup = setup_of(h, STREAM)
    with opened(setup) as coordinator:
        assert isinstance(post(h.store, h.graph.pipeline, request("a"), clock=h.clock), Posted)
        coordinator.poll()
        coordinator.hand_over()
        paused = record(h)
        assert paused.status is RunStatus.SUSPENDED
        assert may_be_asked(paused, h.clock.now())
        assert isinstance(post(h.store, h.graph.pipeline, request("b"), clock=h.clock), Posted)
        with opened(replace(setup, ownership=Ownership.RESTART)):
            assert [mail.request_id for mail in record(h).mailbox] == ["a", "b"]
            assert look_up(h.store, h.graph.pipeline, "a")[0] == Waiting()


def test_a_run_that_ends_between_two_attempts_gives_the_lease_back(h: CoordinatorHarness) -> None:
    with opened(setup_of(h, STREAM)) as coordinator:
        coordinator.hand_over()
        coordinator.release_lease()
        assert record(h).lease_until is None


def test_a_claim_that_is_not_admitted_changes_nothing(h: CoordinatorHarness) -> None:
    def refuse(found: CoordinatorRecord) -> None:
        raise Occupied(f"run {found.owner} was faster")

    before = record(h)
    with pytest.raises(Occupied, match="run-1 was faster"):
        CheckpointCoordinator.open(replace(setup_of(h, EPOCH), admit=refuse))
    assert record(h) == before


def test_renewals_go_on_when_the_store_was_away_and_end_when_the_attempt_is_fenced() -> None:
    said, fenced = iter([OSError("away"), None, Fenced("by run-3")]), threading.Event()

    def renew() -> None:
        found = next(said)
        if isinstance(found, Fenced):
            fenced.set()
        if found is not None:
            raise found

    keeper = LeaseKeeper(renew, every=0.0)
    keeper.start()
    assert fenced.wait(60)
    keeper.stop()
    assert list(said) == []
