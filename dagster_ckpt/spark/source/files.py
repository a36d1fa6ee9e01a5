"""Files that a snapshot would read again: those read since, as the newest snapshot's log of a file source has them.

Spark lists a folder again after a restore and passes over what is no longer there without a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.model import FileKind, StageSnapshot
from dagster_ckpt.core.restore.horizon import Pin
from dagster_ckpt.core.units import counted
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot

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
