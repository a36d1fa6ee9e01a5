"""Finds out when everything behind ended sources is processed, the batches included that only move watermarks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagster_ckpt.spark.streaming.running_stage import RunningStage

_LOOK_EVERY = 0.05


class InputExhausted:
    """Waits, stage after stage, in a thread of its own; to be started once every source has ended."""

    def __init__(self, stages: Sequence[RunningStage]) -> None:
        """``stages``: inputs before their readers."""
        self._stages = stages
        self._done = threading.Event()

    def start(self) -> None:
        """Begin to wait."""
        threading.Thread(target=self._wait, name="end-of-data", daemon=True).start()

    @property
    def is_set(self) -> bool:
        """True when no stage has anything left to do."""
        return self._done.is_set()

    def _wait(self) -> None:
        with suppress(Exception):  # a query that fails meanwhile is its supervisor's to see
            for stage in self._stages:
                if not self._finish(stage):
                    return
            self._done.set()

    def _finish(self, stage: RunningStage) -> bool:
        """Wait until the stage has read everything; then until Spark finds no further batch, with data or without.

        The inputs of the stage are finished, so nothing is added to their rows meanwhile.
        """
        if stage.is_ended:
            return True
        pause = threading.Event()
        while not stage.is_quiet():
            if not stage.is_active:
                return False
            pause.wait(_LOOK_EVERY)
        if stage.query is not None:
            stage.query.processAllAvailable()
        return True
