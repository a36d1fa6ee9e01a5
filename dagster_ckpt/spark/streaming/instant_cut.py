"""Instant cuts: batches of all stages that belong together, chosen from the last stages up to the sources.

A channel keeps what its stage wrote, and Spark keeps every stage's latest batches. So no barrier need flow: the cut of
a last stage is its newest batch; that of any other is the newest batch from which its readers, at their own cuts, have
read every row. No row is in flight then, nobody is held, and nothing is waited for but, for milliseconds, the commit of
a batch whose rows were read already. What a stage has done beyond its cut is done again after a restore.

Where readers of one log stand at different places, rows between them are in flight: with ``unaligned`` they are stored,
else barriers flow. So they do where a reader is so far behind that Spark may have forgotten the batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import BatchId, LogPosition, StageUid
from dagster_ckpt.core.messages import TriggerStages
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.channel.entries import BarrierEntry, DataEntry
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.streaming.stage_worker import StageCut, StageWorker

log = logging.getLogger("dagster_ckpt.stage")

Workers = Mapping[StageUid, StageWorker]


class NotAtOnce(Exception):
    """No cut can be had without barriers; the text says why."""


@dataclass(frozen=True, slots=True)
class _End:
    """Where a stage's log is cut, and behind which batch of the stage."""

    position: LogPosition
    batch: BatchId | None


@dataclass(frozen=True, slots=True)
class InstantCuts:
    """Cuts the parts of a graph that are not joined by any channel, each by itself."""

    config: CheckpointConfig
    has_hooks: bool = False

    @property
    def stores_in_flight(self) -> bool:
        """Rows that one reader has and another has not may be stored at once, without time for alignment."""
        return self.config.unaligned and not self.config.aligned_checkpoint_timeout

    def take(self, trigger: TriggerStages, workers: Workers) -> frozenset[StageUid]:
        """Begin the checkpoint wherever it needs no barriers; return the stages where it has begun."""
        if not self.config.cuts_at_once:
            return frozenset()
        if self.has_hooks or trigger.options.kind.is_savepoint:
            return frozenset()  # both are about what the sources had read when the checkpoint was triggered
        return frozenset[StageUid]().union(*(self._take_part(trigger, part) for part in _parts(workers)))

    def _take_part(self, trigger: TriggerStages, part: Workers) -> frozenset[StageUid]:
        try:
            if any(worker.induced is not None for worker in part.values()):
                raise NotAtOnce("a source decides where barriers fall")
            read = {upstream for worker in part.values() for upstream in worker.inputs}
            if keeps := [uid for uid in part if uid in read and part[uid].keeps_rows]:
                raise NotAtOnce(f"a barrier in the log of {keeps[0]} says which rows its table shows")
            ends = _ends(part, stores_in_flight=self.stores_in_flight)
            _refuse_in_flight(part, ends, allowed=self.stores_in_flight)
        except (NotAtOnce, CheckpointError, OSError) as error:
            log.info("checkpoint %d goes by barriers: %s", trigger.checkpoint_id, error)
            return frozenset()
        _begin(trigger, part, ends)
        return frozenset(part)


def _parts(workers: Workers) -> Iterator[Workers]:
    """Yield the parts that no channel joins, each with its stages in the order they have (inputs first)."""
    part_of: dict[StageUid, set[StageUid]] = {}
    for uid, worker in workers.items():
        joined = {uid}.union(*(part_of[upstream] for upstream in worker.inputs))
        for one in joined:
            part_of[one] = joined
    seen: set[StageUid] = set()
    for uid in workers:
        if uid not in seen:
            seen |= part_of[uid]
            yield {one: workers[one] for one in workers if one in part_of[uid]}


# --- where the logs are cut ---------------------------------------------------------------------------------------


def _ends(
    part: Workers, *, stores_in_flight: bool, last: Mapping[StageUid, _End] | None = None
) -> dict[StageUid, _End]:
    """Return where each log is cut; ``last``: ends of last stages that are in their logs already."""
    ends: dict[StageUid, _End] = {}
    read: dict[StageUid, LogPosition] = {}
    for uid in reversed(list(part)):
        worker = part[uid]
        if uid not in read:
            end = (last or {}).get(uid) or _End(worker.log.end, worker.log.last_batch())
        else:
            end = _end_behind(worker, read[uid], stores_in_flight=stores_in_flight)
        ends[uid] = end
        for upstream, position in worker.batches.furthest_at(end.batch).items():
            read[upstream] = max(position, read.get(upstream, position))
    return ends


def _end_behind(worker: StageWorker, read: LogPosition, *, stores_in_flight: bool) -> _End:
    """Return the furthest end with no row behind what was read; what an earlier attempt left is never cut in two."""
    newest = worker.batches.look().batch
    position = _behind_empty(worker.log, max(read, worker.begins_at), newest)
    batch = batch_before(worker.log, position)
    if _is_kept(worker, batch, newest):
        return _End(position, batch)
    if not stores_in_flight:
        raise NotAtOnce(f"what follows {worker.uid} is too far behind: batch {batch} of {newest}")
    return _End(_behind_batch(worker.log, position, newest), newest)


def _behind_empty(log: ChannelLog, position: LogPosition, newest: BatchId | None) -> LogPosition:
    for at, entry in log.entries(position):
        is_open = isinstance(entry, DataEntry) and (newest is None or entry.batch_id > newest)
        if is_open or (isinstance(entry, DataEntry) and entry.files):
            break
        position = LogPosition(at + 1)
    return position


def _behind_batch(log: ChannelLog, position: LogPosition, batch: BatchId | None) -> LogPosition:
    for at, entry in log.entries(position):
        if isinstance(entry, DataEntry) and (batch is None or entry.batch_id > batch):
            break
        position = LogPosition(at + 1)
    return position


def batch_before(log: ChannelLog, position: LogPosition) -> BatchId | None:
    """Return the last batch written before a position of this attempt, also where its entry is truncated away.

    Every batch writes one entry, in order: the batch before an entry is the one below its own. Raises NotAtOnce for a
    position whose own entry is gone: which batch that was cannot be told, and a later one would lose rows.
    """
    start = log.start
    if position < start:
        raise NotAtOnce(f"entry {position} of {log.directory} is removed already, it begins at {start}")
    for index in range(position - 1, start - 1, -1):
        entry = log.read(LogPosition(index))
        if isinstance(entry, (DataEntry, BarrierEntry)):
            return entry.batch_id
    for _, entry in log.entries(position):
        match entry:
            case BarrierEntry():
                return entry.batch_id
            case DataEntry():
                return BatchId(entry.batch_id - 1) if entry.batch_id else None
    return None


def _is_kept(worker: StageWorker, batch: BatchId | None, newest: BatchId | None) -> bool:
    """True where Spark is sure to have everything of a batch still, or is about to commit it."""
    if batch is None:
        # Before its first batch a source has no offsets: where it begins would be chosen again after a restore.
        return newest is None or (bool(worker.inputs) and newest <= worker.most_batches_back)
    return newest is None or (newest - batch <= worker.most_batches_back and worker.batches.is_kept(batch))


# --- what lies in between -----------------------------------------------------------------------------------------


def _recorded(worker: StageWorker, ends: Mapping[StageUid, _End]) -> frozenset[StageUid]:
    """Return the inputs with rows between what a stage has read at its cut and where their logs are cut."""
    read = worker.batches.positions_at(ends[worker.uid].batch)
    for upstream, channel in worker.inputs.items():
        if read[upstream] < channel.log.start:
            raise NotAtOnce(f"what {worker.uid} has not read of {upstream} at its cut is removed already")
    return frozenset(
        upstream
        for upstream, channel in worker.inputs.items()
        if channel.log.files_between(read[upstream], ends[upstream].position)
    )


def _refuse_in_flight(part: Workers, ends: Mapping[StageUid, _End], *, allowed: bool) -> None:
    for uid, worker in part.items():
        if (behind := _recorded(worker, ends)) and not allowed:
            raise NotAtOnce(f"{uid} has not read all that another reader of {min(behind)} has")


def _begin(trigger: TriggerStages, part: Workers, ends: Mapping[StageUid, _End]) -> None:
    """Note the cut in the logs of the last stages, and begin everywhere."""
    try:
        last = _noted(trigger, part)
        if any(last[uid].batch != ends[uid].batch for uid in last):
            # A batch was written meanwhile. The note is made, so what it has overtaken is stored.
            ends = _ends(part, stores_in_flight=True, last=last)
        cuts = {uid: _cut_of(worker, ends) for uid, worker in part.items()}
    except (NotAtOnce, CheckpointError, OSError) as error:
        for worker in part.values():
            worker.decline(trigger.checkpoint_id, f"no cut could be chosen: {error}")
        return
    for uid, worker in part.items():
        worker.cut_at(trigger.checkpoint_id, trigger.timestamp, trigger.options, cuts[uid])


def _noted(trigger: TriggerStages, part: Workers) -> dict[StageUid, _End]:
    """Append the checkpoint's barrier to logs that nobody reads: tables are published up to its batch."""
    read = {upstream for worker in part.values() for upstream in worker.inputs}
    ends = {}
    for uid, worker in part.items():
        if uid not in read:
            position, batch = worker.barriers.append(
                trigger.checkpoint_id, timestamp=trigger.timestamp, options=trigger.options
            )
            ends[uid] = _End(position, batch)
    return ends


def _cut_of(worker: StageWorker, ends: Mapping[StageUid, _End]) -> StageCut:
    end = ends[worker.uid]
    return StageCut(
        batch=end.batch,
        output_position=end.position,
        read=worker.batches.positions_at(end.batch),
        input_positions={upstream: ends[upstream].position for upstream in worker.inputs},
        recording=_recorded(worker, ends),
    )
