"""Requests of other processes: a checkpoint or savepoint asked of the run that is alive, and its answer."""

from __future__ import annotations

import json

import pytest

from dagster_ckpt.core.checkpoint.lease import LEASE
from dagster_ckpt.core.checkpoint.record import MailRecord
from dagster_ckpt.core.coordinator.admission import Done, Refused, Waiting, request_of
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import CheckpointRequest, SnapshotScope
from dagster_ckpt.runtime.mailbox import Mailbox, Posted, look_up, post
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness


def asked(h: CoordinatorHarness, **fields: object) -> CheckpointRequest:
    """Post a request to the run of ``h``, and let the run read its mailbox."""
    request = CheckpointRequest(request_id="ask", **fields)  # type: ignore[arg-type]
    mailbox = Mailbox(tell=lambda text: None)
    h.coordinator.renew_lease(h.clock.now() + LEASE)
    assert isinstance(post(h.store, h.coordinator.pipeline, request, clock=h.clock), Posted)
    h.coordinator.poll()
    mailbox.serve(h.coordinator)
    return request


def answer(h: CoordinatorHarness) -> Waiting | Done | Refused:
    return look_up(h.store, h.coordinator.pipeline, "ask")[0]


@pytest.mark.parametrize("scope", SnapshotScope)
def test_the_run_takes_the_checkpoint_with_the_scope_another_process_asked_for(scope: SnapshotScope) -> None:
    h = CoordinatorHarness(stages={"a": 1}, incremental=False)
    first = h.completed_checkpoint()
    asked(h, scope=scope)
    [cp] = h.pending
    pending = h.record.pending_of(cp)
    assert pending is not None
    is_full = scope is SnapshotScope.FULL
    assert pending.properties.kind is (
        CheckpointKind.FULL_CHECKPOINT if is_full else CheckpointKind.CHECKPOINT
    )
    assert pending.builds_on == (first if scope is SnapshotScope.INCREMENTAL else None)
    assert answer(h) == Waiting()
    h.acknowledge(cp, "a")
    assert isinstance(answer(h), Done)


def test_a_checkpoint_that_was_subsumed_before_its_answer_was_read_was_taken() -> None:
    h = CoordinatorHarness(stages={"a": 1}, num_retained=1)
    asked(h)
    [cp] = h.pending
    h.acknowledge(cp, "a")
    h.completed_checkpoint()
    assert h.record.completed_of(cp) is None
    assert answer(h) == Done(cp, "")


def test_a_checkpoint_that_failed_is_refused_with_its_reason() -> None:
    h = CoordinatorHarness(stages={"a": 1}, tolerable_failed_checkpoints=5)
    asked(h)
    [cp] = h.pending
    h.decline(cp, "a", message="the disk is full")
    found = answer(h)
    assert isinstance(found, Refused)
    assert "the disk is full" in found.why


def test_a_request_that_an_older_version_left_asks_for_a_configured_checkpoint() -> None:
    body = json.dumps({"request_id": "ask", "kind": "checkpoint", "sent_at": 1.0})
    assert request_of(MailRecord.model_validate_json(body)).scope is SnapshotScope.CONFIGURED
