"""Reads the files Spark keeps in a query's checkpoint directory, one at a time; knows their formats, decides nothing.

Spark writes each of them once (temporary name, then rename) and never edits it, so what was read once about a
file of a given size and time stays true: ``lru_cache`` keeps the captures of a long run cheap.
Formats: Spark 4.1 to 4.3, org.apache.spark.sql.execution.streaming (OffsetSeqLog, CommitLog,
RocksDBFileManager, StateStoreChangelogWriter).
"""

from __future__ import annotations

import errno
import os
import struct
import zipfile
import zlib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from dagster_ckpt.core.ids import relative_path
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.units import size as size_text

_LARGEST_TEXT = 8 * 1024 * 1024
"""So much of what is packed in a snapshot archive or a changelog is read."""
_LZ4_BLOCK = 64 * 1024


class Unreadable(Exception):
    """A file of Spark's checkpoint is there but does not have the format it should; the text names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRecord:
    """``offsets/<N>``: what batch N reads, and the settings it runs with."""

    version: str
    watermark_ms: int | None
    conf: dict[str, str] = field(default_factory=dict)
    offsets: dict[str, str] = field(default_factory=dict)
    """End offset by source name or index, as JSON text; sources without one are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """``commits/<N>``: batch N is done."""

    version: str
    watermark_ms: int | None
    partitions: dict[str, int] = field(default_factory=dict)
    """State partitions by operator; empty under state checkpoint format 1."""
    unique_ids: frozenset[str] = frozenset()
    """Ids in the names of the state files this batch wrote; empty under state checkpoint format 1."""


def _lines(path: Path) -> list[str]:
    with open(path, "rb", buffering=0) as file:
        content = file.read()
    try:
        return content.decode().split("\n")
    except UnicodeDecodeError as error:
        raise Unreadable(f"{path} is damaged: it is no text") from error


def _whole(path: Path, header: dict[str, Any], name: str) -> int | None:
    value = header.get(name)
    if value is not None and not isinstance(value, int):
        raise Unreadable(f"{path} is damaged: its {name} is no number")
    return value


def _object(path: Path, header: dict[str, Any], name: str) -> dict[str, Any]:
    value = header.get(name) or {}
    if not isinstance(value, dict):
        raise Unreadable(f"{path} is damaged: its {name} is no JSON object")
    return value


def _json_line(path: Path, lines: list[str], index: int) -> dict[str, Any]:
    try:
        value = parse_json(lines[index]) if len(lines) > index and lines[index] else {}
    except ValueError as error:
        raise Unreadable(f"{path} is damaged: line {index + 1} is not JSON") from error
    if not isinstance(value, dict):
        raise Unreadable(f"{path} is damaged: line {index + 1} is not a JSON object")
    return value


def _versioned(path: Path, known: tuple[str, ...]) -> list[str]:
    lines = _lines(path)
    if lines[0] not in known:
        raise Unreadable(f"{path} has format {lines[0][:20]!r}; this library knows {', '.join(known)}")
    return lines


def read_query_id(path: Path) -> str:
    """Return the query id in ``metadata``. Raises FileNotFoundError, Unreadable."""
    identifier = _json_line(path, _lines(path), 0).get("id")
    if not isinstance(identifier, str):
        raise Unreadable(f"{path} is damaged: it names no query id")
    return identifier


def read_offset(place: str | Path) -> OffsetRecord:
    """Read one entry of the offset log, version 1 (by position) or 2 (by name)."""
    seen = os.stat(place)
    return _read_offset(place, seen.st_mtime_ns, seen.st_ino)


@lru_cache(maxsize=256)
def _read_offset(place: str | Path, _modified: int, _inode: int) -> OffsetRecord:
    path = Path(place)
    lines = _versioned(path, ("v1", "v2"))
    header = _json_line(path, lines, 1)
    if lines[0] == "v1":
        offsets = {str(i): text for i, text in enumerate(lines[2:])}
    else:
        offsets = dict(line.split(":", 1) for line in lines[2:] if ":" in line)
    return OffsetRecord(
        version=lines[0],
        watermark_ms=_whole(path, header, "batchWatermarkMs"),
        conf=_object(path, header, "conf"),
        offsets={name: text for name, text in offsets.items() if text not in ("", "-")},
    )


def read_commit(place: str | Path) -> CommitRecord:
    """Read one entry of the commit log, version 1 or 2."""
    seen = os.stat(place)
    return _read_commit(place, seen.st_mtime_ns, seen.st_ino)


@lru_cache(maxsize=1024)
def _read_commit(place: str | Path, _modified: int, _inode: int) -> CommitRecord:
    path = Path(place)
    lines = _versioned(path, ("v1", "v2"))
    header = _json_line(path, lines, 1)
    ids: dict[str, list[list[str]]] = _object(path, header, "stateUniqueIds")
    try:
        partitions = {operator: len(parts) for operator, parts in ids.items()}
        unique_ids = frozenset(str(uid) for parts in ids.values() for stores in parts for uid in stores)
    except TypeError as error:
        raise Unreadable(f"{path} is damaged: its stateUniqueIds are no lists") from error
    return CommitRecord(
        version=lines[0],
        watermark_ms=_whole(path, header, "nextBatchWatermarkMs"),
        partitions=partitions,
        unique_ids=unique_ids,
    )


@lru_cache(maxsize=16384)
def referenced_files(path: str | Path, _modified: int, _size: int) -> tuple[tuple[str, int], ...]:
    """Return (path beside the archive, size) of the immutable files of a RocksDB snapshot ``.zip``."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open("metadata") as file:
            packed = file.read(_LARGEST_TEXT + 1)
        if len(packed) > _LARGEST_TEXT:
            raise Unreadable(f"{path} is damaged: its list of files has more than {size_text(_LARGEST_TEXT)}")
        text = packed.decode().split("\n", 1)[1]
        content = parse_json(text)
        # The names come from a savepoint of whoever: one with '..' would have our own files stored with the next.
        tables = [_named("SSTs", f["dfsSstFileName"], f["sizeBytes"]) for f in content.get("sstFiles") or ()]
        logs = [_named("logs", f["dfsLogFileName"], f["sizeBytes"]) for f in content.get("logFiles") or ()]
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        RuntimeError,  # it is encrypted, or packed in a way that Python does not know
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
        OverflowError,
    ) as error:
        raise Unreadable(f"{path} is damaged: it is not a RocksDB snapshot archive") from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # a place before its beginning
            raise
        raise Unreadable(f"{path} is damaged: it is not a RocksDB snapshot archive") from error
    return tuple(tables + logs)


def _named(folder: str, name: str, size: int) -> tuple[str, int]:
    return f"{folder}/{relative_path(name)}", int(size)


def lineage_of(path: Path) -> dict[int, str]:
    """Return version -> unique id of the changelogs that a format 2 ``.changelog`` builds on.

    The first record of the file is ``v3``/``v4`` and a JSON list, as Java's writeUTF spells them, in lz4
    blocks. Raises Unreadable for another compression codec.
    """
    try:
        content = _beginning(path)
        (skipped,) = struct.unpack_from(">H", content, 0)
        (length,) = struct.unpack_from(">H", content, 2 + skipped)
        items = parse_json(content[4 + skipped : 4 + skipped + length])
        return {int(item["version"]): str(item["checkpointUniqueId"]) for item in items}
    except (struct.error, ValueError, LookupError, TypeError, OverflowError) as error:
        raise Unreadable(f"{path} names no lineage that this library can read") from error


def _beginning(path: Path) -> bytes:
    """Return the first blocks of a changelog, unpacked. Raises ValueError, struct.error."""
    content = b""
    with path.open("rb") as file:
        while len(content) < 2 * _LZ4_BLOCK and (head := file.read(21))[:8] == b"LZ4Block":
            packed, unpacked = struct.unpack_from("<ii", head, 9)
            if not 0 <= packed <= 2 * _LZ4_BLOCK or not 0 < unpacked <= 2 * _LZ4_BLOCK:
                break  # an empty block ends the file; no other length is Spark's
            block = file.read(packed)
            content += block if head[8] & 0xF0 == 0x10 else _unpack_lz4(block, unpacked)
    return content


def _unpack_lz4(block: bytes, size: int) -> bytes:
    import pyarrow as pa

    try:
        return bytes(pa.Codec("lz4_raw").decompress(block, size))
    except OSError as error:
        raise ValueError("a block of it cannot be unpacked") from error
