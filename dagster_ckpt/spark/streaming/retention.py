"""Removes the log entries that no reader and no pending checkpoint needs any more.

A completed checkpoint holds its in-flight data itself, so it never needs the logs of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dagster_ckpt.core.ids import CheckpointId, LogPosition, StageUid
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.channel_log import ChannelLog
from dagster_ckpt.spark.streaming.stage_worker import StageWorker

WORTH_IT = 32
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
    needed = {uid: worker.needed_from() for uid, worker in workers.items()}
    removed = 0
    for uid, worker in workers.items():
        readers = [positions[uid] for positions in needed.values() if uid in positions]
        point = cut_point(worker.log, readers=readers, pending=pending)
        if point - worker.log.start < WORTH_IT:
            continue
        try:
            removed += worker.log.truncate_before(point)
        except CheckpointError:
            continue  # a full or read-only disk: the next cut tries again
    return removed
