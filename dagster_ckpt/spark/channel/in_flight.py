"""Channel logs of a restored attempt, and the in-flight data of an unaligned checkpoint that is put back in them.

They are stored with the stage that has not read them, below ``in_flight/<upstream>/`` of its working directory::

    in_flight/<upstream>/<20-digit position>.json     the entries, as the log has them
    in_flight/<upstream>/data/…                       the files that data entries name

A restore puts them back at the beginning of the upstream stage's log, where they were.
A restored log begins with the restored checkpoint's barrier, at the index it had, so that offsets stay valid. Before
the barrier come the in-flight entries of an unaligned checkpoint; a reader that had nothing to do and stands at an
earlier entry gets empty ones. A reader that had run past the barrier (at-least-once) is taken back to it.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import BatchId, CheckpointId, LogPosition, StageUid
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.model import FileKind
from dagster_ckpt.errors import Corrupt, Declined
from dagster_ckpt.spark.channel.entries import BarrierEntry, DataEntry, Entry, Release, decode
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.channel.positions import channel_positions, with_positions
from dagster_ckpt.spark.directories import IN_FLIGHT, StageDirectory
from dagster_ckpt.spark.exchange.mounts import bring_here, put_file
from dagster_ckpt.spark.files import batch_of, remove_files, replace_whole
from dagster_ckpt.spark.snapshot.state_files import PlannedFile

if TYPE_CHECKING:
    from dagster_ckpt.core.model import CheckpointMetadata, StageSnapshot
    from dagster_ckpt.core.restore.choice import Restore
    from dagster_ckpt.core.restore.matching import StageMatch
    from dagster_ckpt.spark.directories import AttemptDirectory


class InFlight(StrEnum):
    """Treatment of in-flight data by a restore."""

    REPLAY = "replay"
    """Stages read it first, as if nothing had happened."""
    DROP = "drop"
    """Its rows are left out; positions stay valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Entries of one input's log from ``start`` up to the barrier at ``stop``."""

    upstream: StageUid
    log: ChannelLog
    start: LogPosition
    stop: LogPosition


def spans_in_flight(
    positions: Mapping[StageUid, LogPosition],
    barriers: Mapping[StageUid, LogPosition],
    logs: Mapping[StageUid, ChannelLog],
) -> list[Span]:
    """Return the inputs with rows between where a stage has read them to and their barriers.

    Entries without rows are left out wherever none with rows lie before them: a restore fills their places. Raises
    Declined where a barrier was passed: that is no cut.
    """
    spans = []
    for uid, at in positions.items():
        stop = barriers[uid]
        if at > stop:
            raise Declined(f"{uid} was read to {at}, its barrier lies at {stop}: not a cut")
        first = _first_rows(logs[uid], at, stop)
        if first is not None:
            spans.append(Span(upstream=uid, log=logs[uid], start=first, stop=stop))
    return spans


def _first_rows(log: ChannelLog, start: LogPosition, stop: LogPosition) -> LogPosition | None:
    return next(
        (at for at, entry in log.entries(start, stop) if isinstance(entry, DataEntry) and entry.files), None
    )


def plan_in_flight(spans: Iterable[Span]) -> tuple[PlannedFile, ...]:
    """List the files that hold these entries. Raises Declined when one is not there (any more)."""
    return tuple(file for span in spans for file in _files_of(span))


def _files_of(span: Span) -> Iterable[PlannedFile]:
    folder = f"{IN_FLIGHT}/{span.upstream}"
    count = 0
    for position, entry in span.log.entries(span.start, span.stop):
        count += 1
        name = f"{position:020d}.json"
        yield _planned(f"{folder}/{name}", span.log.directory / name)
        if isinstance(entry, DataEntry):
            try:
                bring_here(span.log.directory, entry.files)
            except Corrupt as error:
                raise Declined(f"in-flight data was removed before it could be stored: {error}") from error
            for file in entry.files:
                yield _planned(f"{folder}/{file.name}", span.log.directory / file.name)
    if count != span.stop - span.start:
        raise Declined(
            f"the log of {span.upstream} has {count} of the {span.stop - span.start} entries in flight"
        )


def _planned(path: str, source: Path) -> PlannedFile:
    try:
        size = source.stat().st_size
    except FileNotFoundError as error:
        raise Declined(f"{source} was removed before it could be stored as in-flight data") from error
    return PlannedFile(path=path, size=size, kind=FileKind.CHANNEL, source=str(source))


# --- restore --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogBeginning:
    """Beginning of a restored log, before the restored barrier."""

    base: LogPosition
    entries: tuple[Entry, ...] = ()


def put_back(
    upstream: StageUid,
    *,
    log_dir: Path,
    barrier_at: LogPosition,
    readers: Iterable[Path],
    in_flight: InFlight = InFlight.REPLAY,
) -> LogBeginning:
    """Move what the readers (working directories) hold of ``upstream`` into its new log folder.

    Several readers may hold different parts of the same entries. Raises Corrupt when entries are missing.
    """
    found: dict[LogPosition, Entry] = {}
    for reader in readers:
        folder = StageDirectory(reader).in_flight / upstream
        for path in sorted(folder.glob("*.json")):
            if not path.stem.isdecimal():
                raise Corrupt(f"{path} is no entry of a channel log: restore from another checkpoint")
            position = LogPosition(int(path.stem))
            entry = decode(path.read_bytes(), str(path))
            found[position] = _brought(entry, folder, log_dir, in_flight)
    base = min(found, default=barrier_at)
    if sorted(found) != list(range(base, barrier_at)):
        raise Corrupt(
            f"the in-flight data of {upstream} has a gap between entry {base} and its barrier at {barrier_at}: "
            "restore from another checkpoint, or leave it out with without_channel_state_of"
        )
    return LogBeginning(base, tuple(found[position] for position in sorted(found)))


def _brought(entry: Entry, folder: Path, log_dir: Path, in_flight: InFlight) -> Entry:
    if not isinstance(entry, DataEntry) or not entry.files:
        return entry
    if in_flight is InFlight.DROP:
        return replace(entry, files=())
    for file in entry.files:
        put_file(folder / file.name, log_dir / file.name)
    return entry


def forget_in_flight(reader: Path) -> None:
    """Remove what was put back from a reader's working directory."""
    shutil.rmtree(StageDirectory(reader).in_flight, ignore_errors=True)


def move_offsets(query_dir: Path, batch: BatchId, positions: dict[StageUid, LogPosition]) -> bool:
    """Let a restored query go on from these positions; True when that changed its offsets.

    An at-least-once reader has run past the barriers of its cut: what the restored stages write behind them again
    must be read again.
    """
    path = query_dir / "offsets" / str(batch)
    lines = path.read_text(encoding="utf-8").split("\n")
    names = {str(uid): uid for uid in positions}
    offsets = {str(n): _offset(line) for n, line in enumerate(lines[2:])}
    # Of a channel that is read twice one reader may stand at the barrier, and the other beyond it.
    current = channel_positions(offsets, names, max)
    wanted = {uid: positions[uid] for uid, at in current.items() if at != positions[uid]}
    if not wanted:
        return False
    # Replaced, never edited: the file may be a hard link to the one in checkpoint storage.
    moved = [*lines[:2], *with_positions(lines[2:], names, wanted)]
    replace_whole(path, "\n".join(moved).encode())
    return True


def _offset(line: str) -> str:
    return line if line.startswith("{") else line.partition(":")[2]


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
    names = {snapshot.uid, match.uid, *match.earlier_uids}
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
