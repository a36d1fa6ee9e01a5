"""Removes, now and then, log entries and table files that nothing restorable needs any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import CheckpointId, LogPosition, StageUid
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.attempt.earlier_attempts import TableCleanUp
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.streaming.stage_worker import StageWorker

if TYPE_CHECKING:
    from dagster_ckpt.spark.stage_report import Reporter


class TableGarbage:
    """Told of every completion; collects in a thread of its own, rarely, and only between two checkpoints."""

    def __init__(
        self,
        *,
        clean_up: TableCleanUp,
        reporter: Reporter,
        every: float,
    ) -> None:
        """``every``: seconds between two collections."""
        self._clean_up = clean_up
        self._reporter = reporter
        self._every = every
        self._due_at = time.monotonic() + every
        self._collecting = threading.Lock()

    def collect_if_due(self) -> None:
        """Begin a collection if it is time for one."""
        if time.monotonic() >= self._due_at and self._collecting.acquire(blocking=False):
            threading.Thread(target=self._collect, name="table-garbage", daemon=True).start()

    def _collect(self) -> None:
        try:
            removed = self._clean_up.collect()
        except CheckpointError as error:
            self._reporter.info(f"table files no longer needed are kept for now: {error}")
            self._due_at = time.monotonic() + self._every
        else:
            if removed is not None:
                self._due_at = time.monotonic() + self._every
        finally:
            self._collecting.release()


MIN_ENTRIES_TO_TRUNCATE = 32
"""Entries that must be removable before a log is cut: each cut waits for the disk twice."""


def cut_point(
    log: ChannelLog,
    *,
    readers: Iterable[LogPosition],
    pending: Sequence[CheckpointId],
) -> LogPosition:
    """Return the first entry to keep: readers may return to it, or a pending checkpoint's barrier lies there."""
    barriers = (log.find_barrier(number) for number in pending)
    wanted = [*readers, *(at for at in barriers if at is not None)]
    return min(wanted, default=log.end)


def cut_logs(workers: Mapping[StageUid, StageWorker], pending: Sequence[CheckpointId]) -> int:
    """Cut every log as far as possible; return how many entries went. Safe while everything runs."""
    read = {upstream for worker in workers.values() for upstream in worker.inputs}
    needed = {uid: worker.needed_from(may_be_cut_back=uid in read) for uid, worker in workers.items()}
    removed = 0
    for uid, worker in workers.items():
        readers = [positions[uid] for positions in needed.values() if uid in positions]
        point = cut_point(worker.log, readers=readers, pending=pending)
        if point - worker.log.start < MIN_ENTRIES_TO_TRUNCATE:
            continue
        try:
            removed += worker.log.truncate_before(point)
        except CheckpointError:
            continue  # a full or read-only disk: the next cut tries again
    return removed
