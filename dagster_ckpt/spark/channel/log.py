"""The channel log: one append-only, totally ordered log of entries per stage, read by any number of consumers.

::

    <log>/log.json                  {"format_version": 1, "start": s}: the first entry still kept
    <log>/schema.json               Spark schema of the rows (JSON)
    <log>/<20-digit index>.json     one entry each; the indices from ``start`` on have no gap
    <log>/data/…                    Parquet files that data entries name

An entry is created exclusively and whole (written aside, then hard-linked under the first free index), so
several appenders may race: the loser sees the winner's entry, takes it into account and tries the next index.
Because there is no gap, the end is found by galloping and bisecting, without listing the folder.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from dagster_ckpt.core.ids import LARGEST_NUMBER, BatchId, CheckpointId, LogPosition
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound
from dagster_ckpt.spark.channel.entries import (
    AlreadyAppended,
    Appended,
    AppendResult,
    BarrierEntry,
    CancelEntry,
    DataEntry,
    EndEntry,
    Entry,
    Outdated,
    decode,
    encode,
)
from dagster_ckpt.spark.exchange.mounts import remove_rows
from dagster_ckpt.spark.files import (
    DataFile,
    classified,
    create_exclusively,
    remove_files,
    replace_whole,
)

__all__ = ["AlreadyAppended", "AppendResult", "Appended", "ChannelLog", "Outdated"]

HEADER_FILE = "log.json"
SCHEMA_FILE = "schema.json"
DATA_FOLDER = "data"
FORMAT_VERSION = 1
FIRST_POSITION = LogPosition(0)
_CACHED_ENTRIES = 4096


_Verdict = TypeVar("_Verdict", bound=AlreadyAppended | Outdated)


class ChannelLog:
    """One stage's log. Methods are thread-safe; any number of processes may hold one on the same folder.

    Raises NotFound on first use when the folder holds no log, Corrupt when an entry is damaged or missing.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._lock = threading.RLock()
        self._end: LogPosition | None = None
        self._cache: dict[LogPosition, Entry] = {}

    # --- creation -------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        directory: str | Path,
        *,
        base: LogPosition = FIRST_POSITION,
        barrier: BarrierEntry | None = None,
        in_flight: Sequence[Entry] = (),
    ) -> ChannelLog:
        """Create a log whose first entry has index ``base``; raises InvalidRequest when there is one already.

        A restored log begins with the restored checkpoint's ``barrier`` at the index it had, so that the
        offsets in its consumers' state stay valid. An unaligned checkpoint puts its ``in_flight`` entries
        before it, all of them from index ``base`` on.
        """
        log = cls(directory)
        if (log.directory / HEADER_FILE).exists():
            raise InvalidRequest(
                f"{log.directory} already holds a channel log: open it, or choose a new folder"
            )
        log.directory.mkdir(parents=True, exist_ok=True)
        with classified(f"creating the channel log {log.directory}"):
            remove_files(log.directory.glob("[0-9]" * 20 + ".json"))
            first = [*in_flight, *([barrier] if barrier else [])]
            for position, entry in enumerate(first, start=base):
                create_exclusively(log._path(LogPosition(position)), encode(entry))
            created = create_exclusively(log.directory / HEADER_FILE, _header(base))
        if not created:
            raise InvalidRequest(
                f"{log.directory} was made a channel log by someone else at this moment: open it"
            )
        return log

    @property
    def data_folder(self) -> Path:
        """Folder in which the files of data entries are staged."""
        return self.directory / DATA_FOLDER

    # --- schema ---------------------------------------------------------------------------------------------

    def write_schema(self, schema_json: str) -> None:
        """State the Spark schema of the rows from now on; older entries are read by column name."""
        replace_whole(self.directory / SCHEMA_FILE, schema_json.encode())

    def read_schema(self) -> str:
        """Return the Spark schema (JSON). Raises NotFound before the stage has written it."""
        try:
            return (self.directory / SCHEMA_FILE).read_text()
        except FileNotFoundError:
            raise NotFound(
                f"channel log {self.directory} has no schema yet: start the stage that writes it first"
            ) from None

    # --- reading --------------------------------------------------------------------------------------------

    @property
    def start(self) -> LogPosition:
        """Index of the first entry still kept (the base, until the log is truncated)."""
        path = self.directory / HEADER_FILE
        try:
            document = parse_json(path.read_bytes())
            if document["format_version"] != FORMAT_VERSION:
                raise ValueError(f"format version {document['format_version']!r}")
            start = int(document["start"])
            if not 0 <= start <= LARGEST_NUMBER:
                raise ValueError("it begins nowhere")
            return LogPosition(start)
        except FileNotFoundError:
            raise NotFound(
                f"{self.directory} holds no channel log: create it, or start its stage first"
            ) from None
        except (ValueError, LookupError, TypeError, OverflowError) as error:
            raise Corrupt(
                f"{path} is damaged ({str(error)[:200]}): restore the pipeline from its latest checkpoint"
            ) from error

    @property
    def end(self) -> LogPosition:
        """Index the next entry will get. A few stat calls, however long the log."""
        with self._lock:
            known = self._end
            if known is None or not self._unbroken(known):
                known = self.start
            self._end = self._gallop(known)
            return self._end

    def read(self, position: LogPosition) -> Entry | None:
        """Return the entry at ``position``, or None when it is not written yet.

        Raises InvalidRequest when it was truncated away, Corrupt when it is damaged or missing.
        """
        cached = self._cache.get(position)
        if cached is not None:
            return cached
        path = self._path(position)
        try:
            entry = decode(path.read_bytes(), str(path))
        except FileNotFoundError:
            self._refuse_if_lost(position)
            return None
        with self._lock:
            if len(self._cache) >= _CACHED_ENTRIES:
                self._cache.pop(next(iter(self._cache)))
            self._cache[position] = entry
        return entry

    def entries(
        self, start: LogPosition, stop: LogPosition | None = None
    ) -> Iterator[tuple[LogPosition, Entry]]:
        """Yield (position, entry) from ``start`` up to ``stop`` (exclusive), or to the end as it is when
        reached.
        """
        position = start
        while stop is None or position < stop:
            entry = self.read(position)
            if entry is None:
                return
            yield position, entry
            position = LogPosition(position + 1)

    def find_barrier(self, checkpoint_id: CheckpointId) -> LogPosition | None:
        """Return the index of the barrier of ``checkpoint_id``, or None when it is not (or no longer) in the
        log.
        """
        return self._find(
            lambda entry: isinstance(entry, BarrierEntry) and entry.checkpoint_id == checkpoint_id,
            lambda entry: isinstance(entry, BarrierEntry) and entry.checkpoint_id < checkpoint_id,
        )

    def files_between(self, start: LogPosition, stop: LogPosition) -> tuple[DataEntry, ...]:
        """Return the data entries with rows in ``[start, stop)``: what an unaligned checkpoint stores."""
        found = (entry for _, entry in self.entries(start, stop))
        return tuple(entry for entry in found if isinstance(entry, DataEntry) and entry.files)

    def last_batch(self) -> BatchId | None:
        """Return the batch id of the last data entry or restored barrier; None when there is neither."""
        return self._batch_before(self.end)

    def find_batch(self, batch_id: BatchId) -> AlreadyAppended | None:
        """Tell whether the output of a batch is in the log, before any work is done for it."""
        last = self.last_batch()
        if last is None or batch_id > last:
            return None
        return AlreadyAppended(self._position_of_batch(batch_id))

    # --- appending ------------------------------------------------------------------------------------------

    def append_data(self, batch_id: BatchId, files: Sequence[DataFile]) -> AppendResult:
        """Append the output of a batch, once: a replayed batch is recognized, its new files stay unnamed.

        Raises InvalidRequest after the end of the stream.
        """

        def unless_there(_: LogPosition) -> Entry | AlreadyAppended:
            there = self.find_batch(batch_id)
            if there is not None:
                return there
            if self._ended() is not None:
                raise InvalidRequest(
                    f"batch {batch_id}: channel log {self.directory} has ended, no data may follow"
                )
            return DataEntry(batch_id=batch_id, files=tuple(files))

        return self._append(unless_there)

    def append_barrier(
        self, checkpoint_id: CheckpointId, *, timestamp: float, options_json: str = "{}"
    ) -> AppendResult | Outdated:
        """Put the barrier behind the last batch (the entry's ``batch_id``); repeating it changes nothing."""

        def unless_there(end: LogPosition) -> Entry | AlreadyAppended | Outdated:
            overtaking = self._overtaking(checkpoint_id)
            if overtaking is not None:
                there = self.find_barrier(checkpoint_id)
                return Outdated(overtaking) if there is None else AlreadyAppended(there)
            batch = self._batch_before(end)
            return BarrierEntry(
                checkpoint_id=checkpoint_id, batch_id=batch, timestamp=timestamp, options_json=options_json
            )

        return self._append(unless_there)

    def append_cancel(self, checkpoint_id: CheckpointId) -> AppendResult:
        """Tell consumers not to wait for the barrier of ``checkpoint_id``; repeating it changes nothing."""

        def unless_there(_: LogPosition) -> Entry | AlreadyAppended:
            there = self._find(
                lambda entry: isinstance(entry, CancelEntry) and entry.checkpoint_id == checkpoint_id,
                lambda entry: isinstance(entry, BarrierEntry) and entry.checkpoint_id < checkpoint_id,
            )
            return CancelEntry(checkpoint_id=checkpoint_id) if there is None else AlreadyAppended(there)

        return self._append(unless_there)

    # --- retention ------------------------------------------------------------------------------------------

    def truncate_before(self, position: LogPosition) -> int:
        """Forget the entries below ``position`` and remove their files; return how many entries went.

        The caller passes the least position any consumer may still read from. Safe to repeat after a crash.
        The newest batch or barrier is always kept: it tells the next appender which batch came last.
        """
        with self._lock, classified(f"truncating channel log {self.directory}"):
            old, new = self.start, min(position, self._last_to_keep())
            if new <= old:
                return 0
            doomed = [entry for _, entry in self.entries(old, new)]
            replace_whole(self.directory / HEADER_FILE, _header(new))
            for entry in doomed:
                self._remove_data(entry)
            return remove_files(self._path(LogPosition(index)) for index in range(old, new))

    # --- inside ---------------------------------------------------------------------------------------------

    def _append(self, decide: Callable[[LogPosition], Entry | _Verdict]) -> Appended | _Verdict:
        with self._lock, classified(f"appending to channel log {self.directory}"):
            while True:
                end = self.end
                decision = decide(end)
                if isinstance(decision, (AlreadyAppended, Outdated)):
                    return decision
                if create_exclusively(self._path(end), encode(decision)):
                    return Appended(end)

    def _path(self, position: LogPosition) -> Path:
        return self.directory / f"{position:020d}.json"

    def _unbroken(self, known: LogPosition) -> bool:
        """Tell whether everything below ``known`` is still as it was seen, not truncated past it by another
        process.
        """
        return self._path(LogPosition(known - 1)).exists() or known == self.start

    def _gallop(self, known: LogPosition) -> LogPosition:
        step, low, high = 1, known, known
        while self._path(high).exists():
            low, high, step = LogPosition(high + 1), LogPosition(high + step), step * 2
        while low < high:
            middle = LogPosition((low + high) // 2)
            low, high = (LogPosition(middle + 1), high) if self._path(middle).exists() else (low, middle)
        return low

    def _refuse_if_lost(self, position: LogPosition) -> None:
        if position < (start := self.start):
            raise InvalidRequest(
                f"entry {position} of channel log {self.directory} is truncated away, it begins at {start}: "
                "the reader's offset is older than any the log was kept for; restore both from one checkpoint"
            )
        path = self._path(position)
        if self._path(LogPosition(position + 1)).exists() and not path.exists():
            raise Corrupt(
                f"entry {path} is missing in the middle of the log: restore from the latest checkpoint"
            )

    def _backwards(self, end: LogPosition | None = None) -> Iterator[tuple[LogPosition, Entry]]:
        start = self.start
        for index in range((self.end if end is None else end) - 1, start - 1, -1):
            entry = self.read(LogPosition(index))
            if entry is None:
                return
            yield LogPosition(index), entry

    def _find(self, wanted: Callable[[Entry], bool], beyond: Callable[[Entry], bool]) -> LogPosition | None:
        for position, entry in self._backwards():
            if wanted(entry):
                return position
            if beyond(entry):
                return None
        return None

    def _batch_before(self, end: LogPosition) -> BatchId | None:
        for _, entry in self._backwards(end):
            if isinstance(entry, (DataEntry, BarrierEntry)):
                return entry.batch_id
        return None

    def _position_of_batch(self, batch_id: BatchId) -> LogPosition | None:
        return self._find(
            lambda entry: isinstance(entry, DataEntry) and entry.batch_id == batch_id,
            lambda entry: isinstance(entry, DataEntry) and entry.batch_id < batch_id,
        )

    def _ended(self) -> LogPosition | None:
        return self._find(
            lambda entry: isinstance(entry, EndEntry), lambda entry: isinstance(entry, DataEntry)
        )

    def _overtaking(self, checkpoint_id: CheckpointId) -> CheckpointId | None:
        """Return the id that makes a barrier of ``checkpoint_id`` late: a barrier from it on, or its own
        cancel.
        """
        for _, entry in self._backwards():
            if isinstance(entry, CancelEntry) and entry.checkpoint_id == checkpoint_id:
                return checkpoint_id
            if isinstance(entry, BarrierEntry):
                return entry.checkpoint_id if entry.checkpoint_id >= checkpoint_id else None
        return None

    def _last_to_keep(self) -> LogPosition:
        """Index from which on nothing may be forgotten: the newest batch or barrier, and the end of the
        stream.
        """
        newest = (p for p, entry in self._backwards() if isinstance(entry, (DataEntry, BarrierEntry)))
        ended = self._ended()
        return min(position for position in (next(newest, self.end), ended) if position is not None)

    def _remove_data(self, entry: Entry) -> None:
        if isinstance(entry, DataEntry):
            remove_rows(self.directory, [file.name for file in entry.files])


def _header(start: LogPosition) -> bytes:
    return json.dumps({"format_version": FORMAT_VERSION, "start": start}).encode()
