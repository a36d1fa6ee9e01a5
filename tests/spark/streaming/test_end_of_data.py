"""How a stream of bounded sources ends, and a stop-with-savepoint that comes just then; no Spark is needed for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.spark.streaming.run import EndOfData, StoppedWithSavepoint, StreamingRun
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness


class ExhaustedStream:
    """A stream whose sources have ended and whose stages have nothing left to do."""

    def __init__(self) -> None:
        self.h = CoordinatorHarness()
        nothing: Any = None
        self.run = StreamingRun(
            pipeline=nothing,
            coordinator=self.h.coordinator,
            gateway=nothing,
            attempt=nothing,
            spark=nothing,
            tables=SimpleNamespace(unpublished={}, missed_more_than=lambda _: None),
            reporter=nothing,
            clock=self.h.clock,
        )
        self.run.loop = SimpleNamespace(newest_complete=None)  # type: ignore[assignment]
        self.run._exhausted = SimpleNamespace(is_set=True)  # type: ignore[assignment]

    def look(self) -> Any:
        """Return how it ended, or None."""
        return self.run.wait(0)

    def complete(self, number: int) -> None:
        """Let every stage acknowledge a checkpoint, and hear of its completion."""
        self.h.acknowledge_all(number)
        self.run.loop.newest_complete = CheckpointId(number)


@pytest.fixture
def stream() -> ExhaustedStream:
    return ExhaustedStream()


def test_the_final_checkpoint_is_taken_at_once_and_ends_it(stream: ExhaustedStream) -> None:
    """CheckpointAfterAllTasksFinishedITCase#testImmediateCheckpointing."""
    assert stream.look() is None
    [final] = stream.h.pending
    assert stream.look() is None
    stream.complete(final)
    assert stream.look() == EndOfData(final)


def test_a_stop_with_savepoint_that_comes_just_then_gets_its_savepoint(stream: ExhaustedStream) -> None:
    """STF#testTriggerStopWithSavepointWhenWaitingForFinalCheckpoint."""
    stream.look()
    stream.complete(stream.h.pending[0])
    stream.h.stop_with_savepoint()
    assert stream.look() is None
    [savepoint] = stream.h.pending
    stream.complete(savepoint)
    assert stream.look() is None, "its stages have not ended"
    stream.h.finish("task")
    assert isinstance(stream.look(), StoppedWithSavepoint)
    assert stream.h.savepoints == [savepoint]


def test_when_that_savepoint_fails_the_stream_ends_as_it_would_have(stream: ExhaustedStream) -> None:
    stream.look()
    [final] = stream.h.pending
    stream.complete(final)
    stream.h.stop_with_savepoint()
    stream.h.expire(stream.h.pending[0])
    assert stream.look() == EndOfData(final)
