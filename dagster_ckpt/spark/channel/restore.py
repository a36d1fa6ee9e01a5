"""Gives every stage of a restored attempt its channel log back, and every reader its place in it.

A restored log begins with the restored checkpoint's barrier, at the index it had, so that offsets stay valid. Before
the barrier come the in-flight entries of an unaligned checkpoint; a reader that had nothing to do and stands at an
earlier entry gets empty ones. A reader that had run past the barrier (at-least-once) is taken back to it.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import BatchId, CheckpointId, LogPosition, StageUid
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.spark.channel.entries import BarrierEntry, DataEntry, Entry
from dagster_ckpt.spark.channel.in_flight import (
    InFlight,
    LogBeginning,
    forget_in_flight,
    move_offsets,
    put_back,
)
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.channel.release import Release
from dagster_ckpt.spark.files import batch_of, remove_files

if TYPE_CHECKING:
    from dagster_ckpt.core.model import CheckpointMetadata, StageSnapshot
    from dagster_ckpt.core.restore.choice import Restore
    from dagster_ckpt.core.restore.matching import StageMatch
    from dagster_ckpt.spark.directories import AttemptDirectory


def restore_logs(directory: AttemptDirectory, decision: Restore) -> None:
    """Create the logs of all restored stages, whose query directories are in place. Raises Corrupt."""
    matches = decision.stages.matches
    for match in matches:
        _restore_log(directory, match, decision)
    for match in matches:
        _restore_reader(directory, match, decision.metadata)


def _restore_log(directory: AttemptDirectory, match: StageMatch, decision: Restore) -> None:
    snapshot, metadata = match.snapshot, decision.metadata
    log_dir = directory.stage(match.uid).log
    at = LogPosition(snapshot.output_position or 0)
    beginning = put_back(
        StageUid(snapshot.uid),
        log_dir=log_dir,
        barrier_at=at,
        readers=[directory.stage(other.uid).root for other in decision.stages.matches],
        in_flight=InFlight.DROP if decision.drop_in_flight else InFlight.REPLAY,
    )
    names = (snapshot.uid, *match.earlier_uids)
    base = LogPosition(min([beginning.base, *_positions_in(names, metadata.stages)]))
    ChannelLog.create(
        log_dir,
        base=base,
        barrier=_barrier(snapshot, metadata),
        in_flight=_entries_from(base, beginning, snapshot),
    )


def _barrier(snapshot: StageSnapshot, metadata: CheckpointMetadata) -> BarrierEntry:
    return BarrierEntry(
        checkpoint_id=CheckpointId(metadata.checkpoint_id),
        batch_id=_batch(snapshot),
        timestamp=metadata.triggered_at,
    )


def _batch(snapshot: StageSnapshot) -> BatchId | None:
    return None if snapshot.batch_id is None else BatchId(snapshot.batch_id)


def _entries_from(base: LogPosition, beginning: LogBeginning, snapshot: StageSnapshot) -> list[Entry]:
    empty = DataEntry(batch_id=_batch(snapshot) or BatchId(0), files=())
    return [*[empty] * (beginning.base - base), *beginning.entries]


def _restore_reader(directory: AttemptDirectory, match: StageMatch, metadata: CheckpointMetadata) -> None:
    stage, snapshot = directory.stage(match.uid), match.snapshot
    forget_in_flight(stage.root)
    Release(stage.root).through(CheckpointId(metadata.checkpoint_id))
    batch = _batch(snapshot)
    barriers = {StageUid(uid): LogPosition(at) for uid, at in snapshot.input_positions.items()}
    passed = {uid: at for uid, at in barriers.items() if any(p > at for p in _positions_of(snapshot, [uid]))}
    if batch is not None and passed:
        move_offsets(stage.query, batch, passed)


def _positions_in(names: Collection[str], readers: Sequence[StageSnapshot]) -> Iterator[int]:
    """Yield where the readers of a stage's log stand at the cut; one may know it by a name of before."""
    for reader in readers:
        yield from _positions_of(reader, names)


def _positions_of(reader: StageSnapshot, names: Collection[str]) -> Iterator[int]:
    for offset in reader.offsets.values():
        try:
            value = parse_json(offset)
            if isinstance(value, dict) and value.get("channel") in names and "pos" in value:
                yield int(value["pos"])
        except (ValueError, TypeError, OverflowError) as error:
            raise Corrupt(
                f"an offset of stage {reader.uid} cannot be understood ({error}): restore from another checkpoint"
            ) from error


def sweep_staging(log: ChannelLog) -> int:
    """Remove staged output that no entry names and entries below the start; return how many went.

    Only output of batches that are in the log counts: what a later batch has staged may still be appended. So
    it is safe at any time, also while the query runs. Reads the whole log: call it when a stage starts.
    """
    start, through = log.start, log.last_batch()
    stale = [path for path in log.directory.glob("[0-9]" * 20 + ".json") if int(path.stem) < start]
    if through is None or not log.data_folder.is_dir():
        return remove_files(stale)
    data = (entry for _, entry in log.entries(start) if isinstance(entry, DataEntry))
    named = {name.split("/")[1] for entry in data for name in (file.name for file in entry.files)}
    doomed = [
        folder
        for folder in log.data_folder.iterdir()
        if (batch := batch_of(folder.name)) is not None and batch <= through and folder.name not in named
    ]
    for folder in doomed:
        shutil.rmtree(folder, ignore_errors=True)
    return remove_files(stale) + len(doomed)
