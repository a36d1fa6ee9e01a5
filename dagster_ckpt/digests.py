"""Size and checksum of content, in the form that manifests and storages use: ``xxh3_128:<32 hex digits>``.

xxh3 guards against damage, not against an adversary; it is several times faster than reading the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import xxhash

from dagster_ckpt.core.paths import Digest

ALGORITHM = "xxh3_128"
CHUNK_BYTES = 1024 * 1024


class RunningDigest:
    """A digest that is fed chunk by chunk, while content passes by on its way to somewhere else."""

    __slots__ = ("_hash", "_size")

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()
        self._size = 0

    def update(self, chunk: bytes | memoryview) -> None:
        """Take the next chunk into account."""
        self._hash.update(chunk)
        self._size += len(chunk)

    def result(self) -> Digest:
        """Return the digest of everything fed so far."""
        return Digest(self._size, f"{ALGORITHM}:{self._hash.hexdigest()}")


def digest_bytes(content: bytes) -> Digest:
    """Return the digest of ``content``."""
    return Digest(len(content), f"{ALGORITHM}:{xxhash.xxh3_128_hexdigest(content)}")


class Readable(Protocol):
    """An open file, wherever it is."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes; none at its end."""


def digest_file(path: Path) -> Digest:
    """Return the digest of a local file, read in chunks. Raises OSError as ``open`` does."""
    with path.open("rb", buffering=0) as file:
        return digest_of(file)


def digest_of(file: Readable) -> Digest:
    """Return the digest of the rest of an open file, read in chunks."""
    running = RunningDigest()
    while chunk := file.read(CHUNK_BYTES):
        running.update(chunk)
    return running.result()
