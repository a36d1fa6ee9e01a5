"""Streams of a drawn pipeline: they run in a thread until they have caught up, or die."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from random import Random
from typing import Any

from dagster_ckpt import CheckpointKind, run_stream
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.ports import SystemClock
from dagster_ckpt.runtime.mailbox import post
from dagster_ckpt.spark.streaming.restart import NoRestart
from dagster_ckpt.testing.faults import SimulatedCrash
from tests.attack.judge import Verdict
from tests.fuzz.world import Finding, World
from tests.spark.crashing import crash_before_change

PATIENCE = 240.0
"""Seconds in which a stream has to come further."""


@dataclass
class StreamedWorld(World):
    """A deployment that streams."""

    def stream(self, dice: Random) -> None:
        """Let a stream run until it has caught up, and end it: between two batches, or with a savepoint."""
        self.feed(dice)
        stops = dice.choice(("stopped", "savepoint"))
        self.said.append(stops)
        known = set(self._keys())

        def run() -> None:
            with self._streaming(NoRestart()) as (stream, stopping):
                self._caught_up(stream)
                if stops == "savepoint":
                    self._ask_to_stop()
                else:
                    stopping.set()

        self._settled(run)
        self._forget_on_the_way(known)

    def crashed_stream(self, dice: Random) -> None:
        """Let a stream die before one of its changes of files; the next epoch is exact."""
        self.feed(dice)
        self.candidates = self._read()
        number = dice.randrange(2 * self.changes)
        self.said.append(f"dies before change {number}")
        known = set(self._keys())
        dying = crash_before_change(number, self.folder, in_threads=RuntimeError)
        try:
            with dying, self._streaming(NoRestart()) as (stream, stopping):
                self._caught_up(stream)
                stopping.set()
        except Finding:
            raise
        except (Exception, SimulatedCrash) as error:
            self.said.append(f"died: {type(error).__name__}")
        for query in self.spark.streams.active:
            query.stop()
        self._settled(self._run)
        self._forget_on_the_way(known)

    def _forget_on_the_way(self, known: set[str]) -> None:
        new = [key for key in self._keys() if key not in known]
        self.unknown.update(new[:-1])
        self._note_snapshots()

    @contextlib.contextmanager
    def _streaming(self, strategy: Any) -> Iterator[tuple[threading.Thread, threading.Event]]:
        """Yield the thread of a stream, and what stops it. Raises what it ended by, and Finding where it never ends."""
        stopping, errors = threading.Event(), list[BaseException]()

        def stream() -> None:
            try:
                run_stream(
                    self.pipeline,
                    coordinator=self.coordinator,
                    spark=self.spark,
                    settings={"interval": 0.5},
                    strategy=strategy,
                    stopping=stopping,
                )
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=stream, daemon=True)
        thread.start()
        try:
            yield thread, stopping
            thread.join(PATIENCE)
        finally:
            stopping.set()
            thread.join(PATIENCE)
            if thread.is_alive():
                raise Finding(Verdict.STUCK, f"a stream does not end: {stack_of(thread)}")
        if errors:
            raise errors[0]

    def _caught_up(self, stream: threading.Thread) -> None:
        """Wait until the tables show all that was read. Raises Finding where they never do."""
        until = time.monotonic() + PATIENCE
        while stream.is_alive():
            try:
                self._the_one(self.candidates)
            except Finding:
                if time.monotonic() > until:
                    raise
            except Exception:
                if time.monotonic() > until:
                    raise
            else:
                return
            time.sleep(0.2)

    def _ask_to_stop(self) -> None:
        request = CheckpointRequest(
            kind=CheckpointKind.SYNC_SAVEPOINT_SUSPEND, request_id=f"stop-{self.feeds}"
        )
        with closing(self.coordinator.model_copy().store()) as store:
            post(store, PipelineId(self.pipeline.name), request, clock=SystemClock())


def stack_of(thread: threading.Thread) -> str:
    """Return where a thread is."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "gone" if frame is None else "".join(traceback.format_stack(frame)[-6:])
