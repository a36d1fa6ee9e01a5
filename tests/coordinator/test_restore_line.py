"""The restore line of the log, in Flink's words."""

from __future__ import annotations

import logging

import pytest

from dagster_ckpt.testing import CoordinatorHarness


def test_a_restore_is_logged_with_what_it_starts_from(caplog: pytest.LogCaptureFixture) -> None:
    h = CoordinatorHarness()
    done = h.completed_checkpoint()
    uri = h.coordinator.location_of(done).uri
    with caplog.at_level(logging.INFO, logger="dagster_ckpt.coordinator"):
        h.next_attempt(restore_from=f"chk-{done}")
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("Restoring")]
    assert line.startswith(f"Restoring pipeline pipeline from Checkpoint {done} @ ")
    assert line.endswith(f" located at {uri}")


def test_an_attempt_that_restores_nothing_logs_no_restore(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="dagster_ckpt.coordinator"):
        CoordinatorHarness().next_attempt(restore_from="none")
    assert not [r for r in caplog.records if r.getMessage().startswith("Restoring")]
