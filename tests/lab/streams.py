"""A stream that runs in a thread of this process, without Dagster, and what can be seen of it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from dagster_ckpt.core.coordinator.effects import CheckpointCompleted, CheckpointFailed, CoordinatorEvent
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.messages import NotifyComplete
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import (
    CheckpointOutcome,
    CheckpointRequest,
    Completed,
    Pending,
    Queued,
    Triggered,
)
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.streaming.loop import StreamingGateway
from dagster_ckpt.spark.streaming.run import StreamingRun
from dagster_ckpt.spark.streaming.running_stage import StreamingSettings
from dagster_ckpt.spark.streaming.service import ServiceEnd, StreamingService
from tests import progress
from tests.lab.lines import Lines

CHECKPOINT_TRIES = 20
SETTINGS = StreamingSettings(
    snapshot_retries=0,
    tidy_tables_every=1.0,
    starting_at_once=1,  # Spark gives the process of a reader ten seconds to start
    start_timeout=progress.QUIET,
    stop_timeout=progress.QUIET,
)


@dataclass
class Running:
    """A streaming run in a thread of this process."""

    service: StreamingService
    thread: threading.Thread
    events: list[CoordinatorEvent]
    ends: list[ServiceEnd | BaseException]

    @property
    def coordinator(self) -> CheckpointCoordinator:
        coordinator = self.service.coordinator
        assert coordinator is not None, "the run has not opened its coordinator"
        return coordinator

    @property
    def current(self) -> StreamingRun:
        """The run of its stages that goes on now."""
        current = self.service.current
        assert current is not None, "no stages run"
        return current

    @property
    def reporter(self) -> Lines:
        assert isinstance(self.service.setup.reporter, Lines)
        return self.service.setup.reporter

    def moves(self) -> object:
        """What progress of the run can be seen in; not its checkpoints, which a wait may ask for again and again."""
        current = self.service.current
        stages = dict(current.stages) if current is not None else {}
        batches = {uid: (stage.starts, stage.worker.batches.current.batch) for uid, stage in stages.items()}
        said = self.reporter.said
        return (self.service.restarts, batches, len(said), said[-5:])

    def wait_until_running(self) -> None:
        def runs() -> bool:
            current = self.service.current
            return current is not None and current.is_started.is_set()

        until(runs, self)

    def checkpoint(self, **request: Any) -> Completed:
        """Take one checkpoint and wait for it; again where the run had to restart (a busy machine)."""
        for _ in range(CHECKPOINT_TRIES):
            self.wait_until_running()
            done = self.outcome(self.trigger(**request))
            if isinstance(done, Completed) and done.metadata.kind.is_savepoint:
                return done  # stages are not told of it, and tables are not published
            if isinstance(done, Completed):
                self._wait_until_published(CheckpointId(done.metadata.checkpoint_id))
                return done
        raise AssertionError(f"{CHECKPOINT_TRIES} checkpoints failed, the last: {done}")

    def _wait_until_published(self, number: CheckpointId) -> None:
        """Wait until the stages were told of a completion: the tables are published before that."""

        def told() -> bool:
            current = self.service.current
            return current is None or (current.loop.newest_complete or 0) >= number

        until(told, self)

    def outcome(self, number: CheckpointId) -> CheckpointOutcome:
        """Wait until a checkpoint is over."""
        until(lambda: not isinstance(self.status_of(number), Pending), self)
        return self.status_of(number)

    def status_of(self, number: CheckpointId) -> CheckpointOutcome:
        coordinator = self.service.coordinator
        return Pending(()) if coordinator is None else coordinator.status_of(number)

    def trigger(self, **request: Any) -> CheckpointId:
        """Ask for a checkpoint and wait until it is underway (it may have to wait for its turn)."""
        mine = uuid.uuid4().hex
        self.coordinator.trigger(CheckpointRequest(request_id=mine, **request))
        until(lambda: not isinstance(self.coordinator.outcome_of_request(mine), Queued), self)
        outcome = self.coordinator.outcome_of_request(mine)
        assert isinstance(outcome, Triggered), outcome
        return outcome.id

    def stop_with_savepoint(self, kind: CheckpointKind = CheckpointKind.SYNC_SAVEPOINT_SUSPEND) -> ServiceEnd:
        outcome = self.coordinator.stop_with_savepoint(CheckpointRequest(kind=kind))
        assert isinstance(outcome, Triggered), outcome
        return self.join()

    def stop(self) -> ServiceEnd:
        """Ask it to stop at the next batch boundary, and wait for its end."""
        self.service.stopping.set()
        return self.join()

    def join(self) -> ServiceEnd:
        progress.join(self.thread, "the run ends", moves=self.moves)
        end = self.ends[0]
        if isinstance(end, BaseException):
            raise end
        return end

    def completed(self) -> list[int]:
        return [int(e.checkpoint_id) for e in self.events if isinstance(e, CheckpointCompleted)]

    def failed(self) -> list[CheckpointFailed]:
        return [e for e in self.events if isinstance(e, CheckpointFailed)]

    def wait_for_checkpoints(self, more: int) -> None:
        wanted = len(self.completed()) + more
        until(lambda: len(self.completed()) >= wanted, self)

    def crash(self) -> None:
        """Stop the queries and everything else at once, without telling anybody: what SIGKILL leaves behind."""
        run = self.service.current
        if run is None:
            return
        run.poller.stop()
        run.loop.stop()
        for stage in run.stages.values():
            stage.gate.stop()
            if stage.query is not None:
                stage.query.stop()
        self.service.coordinator = None
        self.service.stopping.set()


@contextmanager
def commits_that_wait(for_it: threading.Event) -> Iterator[None]:
    """Let no table of a stream be published before the event."""
    publish = StreamingGateway.publish

    def committing(self: StreamingGateway, attempt: AttemptDirectory, message: NotifyComplete) -> None:
        for_it.wait()
        publish(self, attempt, message)

    with patch.object(StreamingGateway, "publish", committing):
        yield


def until(
    holds: Callable[[], object], running: Running | None = None, *, moves: Callable[[], object] | None = None
) -> None:
    """Wait for something to become true while the run gets on; fail with what it said, at once when it has ended."""

    def check() -> None:
        if running is not None and not running.thread.is_alive():
            raise AssertionError(f"the run has ended: {running.ends}, it said {running.reporter.said}")

    watched = moves or (progress.nothing if running is None else running.moves)
    progress.wait_until(holds, progress.source_of(holds), moves=watched, check=check)
