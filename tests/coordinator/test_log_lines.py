"""The coordinator's log reads as Flink's does."""

from __future__ import annotations

import logging

import pytest

from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness

COORDINATOR = "dagster_ckpt.coordinator"


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    # not `record.message`: PySpark's own loggers put a formatter on pytest's handler that does not set it
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == COORDINATOR and record.levelno == level
    ]


def test_a_checkpoint_is_logged_from_its_trigger_to_its_completion(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, COORDINATOR)
    h = CoordinatorHarness(pipeline="orders", stages={"a": 1, "b": 1}, edges=[("a", "b")])
    cp = h.checkpoint()
    h.acknowledge_stage(cp, "a")
    h.advance(0.25)
    h.acknowledge_stage(cp, "b")
    assert lines(caplog, logging.DEBUG)[:2] == [
        "Received acknowledge message for checkpoint 1 from stage a of pipeline orders (1 of 2).",
        "Received acknowledge message for checkpoint 1 from stage b of pipeline orders (2 of 2).",
    ]
    triggered, completed = (
        line for line in lines(caplog, logging.INFO) if " checkpoint 1 (" in line or "Completed" in line
    )
    assert triggered.startswith("Triggering checkpoint 1 (type=CHECKPOINT) @ ")
    assert triggered.endswith(" for pipeline orders.")
    assert completed.startswith("Completed checkpoint 1 for pipeline orders (")
    assert "checkpointDuration=250 ms" in completed


def test_a_failed_and_a_refused_checkpoint_say_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, COORDINATOR)
    h = CoordinatorHarness(pipeline="orders", stages={"a": 1}, tolerable_failed_checkpoints=5)
    cp = h.checkpoint()
    h.decline(cp, "a")
    assert lines(caplog, logging.WARNING)[0].startswith(
        "Checkpoint 1 of pipeline orders failed (CHECKPOINT_DECLINED): "
    )
    h.report("a", "created")
    h.trigger()
    refused = [line for line in lines(caplog, logging.INFO) if "rejected" in line]
    assert refused[0].startswith(
        "Checkpoint request of pipeline orders rejected (NOT_ALL_REQUIRED_TASKS_RUNNING): "
    )
