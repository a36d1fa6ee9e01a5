"""Tables whose commits are behind the checkpoints: later ones wait, and it is said what is slow."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_ckpt.core.alignment import Decline
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.messages import CheckpointFailureReason, NotifyComplete
from dagster_ckpt.core.subtask.effects import DeclineCheckpoint
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.streaming.loop import StreamingGateway
from dagster_ckpt.spark.streaming.snapshot_job import SnapshotJobs, decline_later, room
from dagster_ckpt.testing.memory import ManualClock
from tests.lab.lab import Lab
from tests.lab.lines import Lines
from tests.lab.streams import commits_that_wait, until
from tests.spark.streaming.pipelines import Numbers, read_rows, straight


def running(*numbers: int) -> SnapshotJobs:
    jobs = SnapshotJobs(uid=StageUid("totals"))
    for number in numbers:
        jobs._running[CheckpointId(number)] = None  # type: ignore[assignment]
    return jobs


def test_what_hangs_is_told_apart_the_commits_of_tables_or_the_checkpoint_storage() -> None:
    jobs = running(17, 18, 19, 20)
    with pytest.raises(CheckpointError, match=r"4 earlier snapshots of totals .*: checkpoint storage hangs"):
        jobs.check_room(4, published=set())
    with pytest.raises(
        CheckpointError, match=r"the tables of 2 earlier checkpoints, 18 the first, .*Raise the"
    ):
        jobs.check_room(4, published={CheckpointId(18), CheckpointId(19), CheckpointId(3)})
    jobs.check_room(5, published=set())


@pytest.mark.parametrize(
    ("effect", "told"),
    [
        (DeclineCheckpoint(CheckpointId(3), CheckpointFailureReason.CHECKPOINT_DECLINED, "no cut"), "no cut"),
        (Decline(CheckpointId(3), CheckpointFailureReason.CHECKPOINT_DECLINED_SUBSUMED), None),
    ],
)
def test_a_checkpoint_is_declined_beside_the_barrier_loop(
    effect: DeclineCheckpoint | Decline, told: str | None
) -> None:
    asked: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
    snapshotter: Any = SimpleNamespace(decline=lambda *what, reason: asked.put((*what, reason)))
    decline_later(snapshotter, effect)
    assert asked.get(timeout=60) == (3, told or effect.reason.text, effect.reason)


def test_there_is_room_for_what_is_allowed_to_be_in_progress_at_once() -> None:
    """Pending ones, one more than these being published, and a savepoint beside them."""
    assert room(1) == 4
    assert all(room(n) > n + (n + 1) for n in range(1, 20))


def test_commits_that_take_longer_than_the_interval_are_told_once_a_minute(
    tmp_path: Path,
) -> None:
    clock = ManualClock()

    class Slow:
        """Tables that take their time."""

        takes = 0.9

        def publish(self, *_: Any) -> None:
            clock.advance(self.takes)

    tables: Any = Slow()
    lines = Lines()
    gateway = StreamingGateway(tables, lines, interval=1.0, clock=clock)

    def publish(number: int) -> None:
        permit: Any = None
        message = NotifyComplete(checkpoint_id=CheckpointId(number), timestamp=0.0, permit=permit)
        gateway.publish(AttemptDirectory(tmp_path), message)

    publish(1)
    assert lines.said == []
    tables.takes = 2.3
    for number in range(2, 10):
        publish(number)
    [told] = lines.said
    assert told.startswith(
        "WARN publishing the tables of checkpoint 2 took 2.3 s, and checkpoints are 1.0 s apart"
    )
    clock.advance(60.0)
    publish(10)
    assert len(lines.said) == 2


def rows_of(numbers: Numbers) -> Counter[tuple[int, str]]:
    return Counter((n, "fast") for n in range(numbers.count))


def test_while_a_commit_hangs_a_stream_declines_nothing_and_goes_on_behind_it(
    lab: Lab, tmp_path: Path
) -> None:
    numbers = Numbers(tmp_path / "numbers")
    goes_on = threading.Event()
    with commits_that_wait(goes_on):
        stream = lab.start(straight(numbers.folder), interval="50 ms")
        try:
            until(lambda: len(stream.coordinator.notifying) == 2, stream, moves=stream.completed)
            queued = stream.coordinator.queued_requests
            until(lambda: stream.coordinator.queued_requests >= queued + 8, stream)
            assert len(stream.coordinator.notifying) == 2, "one is published, one waits for it, no more come"
            assert not stream.coordinator.record.pending
        finally:
            goes_on.set()
        for _ in range(2):
            numbers.put(3)
            until(lambda: read_rows(lab.tables) == rows_of(numbers), stream)
    assert stream.failed() == []
    stream.stop()
