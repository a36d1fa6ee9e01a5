"""Pins of a snapshot on its sources: for the horizon, and for the restore that is refused where they are gone.

Spark lists a folder again after a restore and passes over files that are no longer there without a word: the newest
snapshot's log of a file source tells which were read since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.model import CheckpointMetadata, FileKind, StageSnapshot
from dagster_ckpt.core.restore.horizon import Pin, TopicBounds, lost_positions, made_again, topic_pins, unread
from dagster_ckpt.core.units import counted
from dagster_ckpt.errors import CheckpointError, InvalidRequest
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot, open_snapshot
from dagster_ckpt.spark.source.positions import SourcePosition, TopicLog, source_positions
from dagster_ckpt.spark.stage_report import Reporter

if TYPE_CHECKING:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


_ADVICE = (
    "Bring them back: a restore would pass over them without a word. To keep what retained snapshots read again, "
    "remove files of a source only once they are older than the oldest of these"
)


def file_pins(snapshot: StoredSnapshot, newest: StoredSnapshot) -> Iterator[Pin]:
    """Yield a pin for each file that a snapshot would read again, as far as the newest snapshot knows of it."""
    for stage in snapshot.metadata.stages:
        later = newest.metadata.stage(stage.uid)
        if later is None:
            continue
        for source, offset in stage.offsets.items():
            last = log_offset(offset)
            if last is None or log_offset(later.offsets.get(source, "")) is None:
                continue
            try:
                yield from _missing(_Log(snapshot, stage, source), _Log(newest, later, source), last)
            except CheckpointError as error:
                yield Pin(what=f"files of stage {stage.uid}", is_there=True, unasked=str(error))


def log_offset(offset: str) -> int | None:
    """Return the last entry of a file source's log that was read; None for the offset of another source."""
    try:
        value = parse_json(offset)
    except ValueError:
        return None
    at = value.get("logOffset") if isinstance(value, dict) else None
    return at if type(at) is int else None


@dataclass(frozen=True, slots=True)
class _Log:
    """A file source's log, as a snapshot has it."""

    snapshot: StoredSnapshot
    stage: StageSnapshot
    source: str

    def files_after(self, last: int) -> Iterator[str]:
        """Yield the files after an entry; every tenth entry is a compaction of all before it."""
        folder = f"query/sources/{self.source}/"
        for entry in self.snapshot.entries(self.stage):
            if entry.kind is not FileKind.SOURCE_LOG or not entry.path.startswith(folder):
                continue
            number = entry.path.removeprefix(folder).removesuffix(".compact")
            if not number.isdecimal() or int(number) <= last:
                continue
            for line in self.snapshot.read(self.stage, entry).decode().splitlines()[1:]:
                record = parse_json(line)
                if record["batchId"] > last:
                    yield record["path"]


def _missing(log: _Log, newest: _Log, last: int) -> Iterator[Pin]:
    files = set(newest.files_after(last))
    local = {uri for uri in files if urlsplit(uri).scheme in ("", "file")}
    gone = {uri for uri in local if not Path(unquote(urlsplit(uri).path)).exists()}
    if gone:
        gone -= set(log.files_after(-1))  # of another history: read before the snapshot
    if gone:
        first = unquote(urlsplit(min(gone)).path)
        comes = "comes" if len(gone) == 1 else "come"
        files_of = f"{counted(len(gone), 'file')} of stage {log.stage.uid} that {comes} after it"
        yield Pin(what=f"{files_of}, first {first}", is_there=False, advice=_ADVICE)
    elsewhere = sorted(files - local)
    if elsewhere:
        what = f"{counted(len(elsewhere), 'file')} of stage {log.stage.uid} from {elsewhere[0]} on"
        yield Pin(what=what, is_there=True, unasked="only files on this machine's file systems are")


OpenStorage = Callable[[str], CheckpointStorage]
_UNDECLARED = 'say where it is, @spark_source(reads=KafkaTopics("broker:9092"))'


class SourcePins:
    """Pins of a pipeline's snapshots, the newest first: it knows what came after the others.

    A log is asked once for its ends, and no more once it has not answered.
    """

    def __init__(self, pipeline: CheckpointedPipeline) -> None:
        self._pipeline = pipeline
        self._newest: StoredSnapshot | None = None
        self._silent: dict[int, str] = {}
        self._bounds: dict[tuple[int, frozenset[str]], TopicBounds] = {}
        self._ids: dict[tuple[int, frozenset[str]], Mapping[str, str]] = {}

    def of(self, snapshot: StoredSnapshot) -> Iterator[Pin]:
        """Yield the pins of a snapshot's sources, with until when their records are kept."""
        if self._newest is None:
            self._newest = snapshot
        yield from file_pins(snapshot, self._newest)
        yield from self._of_topics(snapshot.metadata)

    def _of_topics(self, metadata: CheckpointMetadata) -> Iterator[Pin]:
        for at in source_positions(metadata, self._pipeline):
            why = _UNDECLARED if at.origin is None else self._silent.get(id(at.origin), "")
            if not why:
                try:
                    yield from self._asked(at)
                    continue
                except CheckpointError as error:
                    why = self._silent[id(at.origin)] = str(error)
            yield Pin(what=_named(at), is_there=True, unasked=why)

    def _asked(self, at: SourcePosition) -> tuple[Pin, ...]:
        assert at.origin is not None
        log: TopicLog = at.origin.open()
        known = id(at.origin), frozenset(at.positions)
        if known not in self._bounds:
            self._bounds[known] = log.bounds(list(at.positions))
        bounds = self._bounds[known]
        if at.topic_ids and known not in self._ids:
            self._ids[known] = log.ids(list(at.positions))
        again = made_again(at.topic_ids, self._ids.get(known, {}))
        lost = (*lost_positions(at.positions, bounds), *again)
        return lost or topic_pins(at.positions, log.clocks(unread(at.positions, bounds)))


def refuse_gone_files(
    snapshot: StoredSnapshot, record: CoordinatorRecord | None, open_storage: OpenStorage
) -> None:
    """Raise InvalidRequest where files are gone that a snapshot would read again, as a newer one of ``record`` tells.

    Spark lists the folder again and passes over them: their rows would leave the tables, and not come back.
    """
    for newer in _newer(snapshot, record, open_storage):
        gone = next((pin for pin in file_pins(snapshot, newer) if not pin.is_there), None)
        if gone is not None:
            raise InvalidRequest(
                f"{snapshot.describe()} cannot be restored: {gone.what} is gone. {gone.advice}. To go on without "
                "their rows, say so (allow_missing_files)"
            )


def _newer(
    snapshot: StoredSnapshot, record: CoordinatorRecord | None, open_storage: OpenStorage
) -> Iterator[StoredSnapshot]:
    """Yield the retained snapshots taken after a snapshot, newest first; a damaged one tells nothing."""
    entries = () if record is None else (*record.completed, *record.savepoints)
    for entry in sorted(entries, key=lambda entry: -entry.checkpoint_id):
        if entry.checkpoint_id > snapshot.metadata.checkpoint_id:
            with suppress(CheckpointError):
                storage = open_storage(entry.location.base_uri)
                yield open_snapshot(storage, entry.location.folder, recorded=entry.metadata_checksum)


def refuse_lost(positions: Sequence[SourcePosition], reporter: Reporter) -> None:
    """Raise InvalidRequest for positions from which a source cannot read on.

    A log that does not answer does not keep the pipeline from starting: Spark may reach it by other ways than we do.
    """
    for at in positions:
        if at.origin is None:
            continue
        try:
            sentences = list(_lost(at))
        except CheckpointError as error:
            reporter.warn(f"whether {_named(at)} of source {at.source} is still there is not known: {error}")
            continue
        if sentences and _is_strict(at):
            raise InvalidRequest(sentences[0])
        for sentence in sentences:
            reporter.warn(f"records are lost: {sentence}")


def _lost(at: SourcePosition) -> Iterator[str]:
    assert at.origin is not None
    log: TopicLog = at.origin.open()
    again = made_again(at.topic_ids, log.ids(list(at.topic_ids))) if at.topic_ids else ()
    for pin in (*lost_positions(at.positions, log.bounds(list(at.positions))), *again):
        yield f"source {at.source} cannot read on: {pin.what} is gone in {log.place}. {pin.advice}"


def _is_strict(at: SourcePosition) -> bool:
    return at.origin is None or at.origin.is_strict()


def _named(at: SourcePosition) -> str:
    topics = ", ".join(sorted(at.positions))
    return f"topic {topics}" if len(at.positions) == 1 else f"topics {topics}"
