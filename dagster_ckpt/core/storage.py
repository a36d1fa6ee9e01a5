"""Values of checkpoint storage: digests, and what a listing or an exclusive creation answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Digest:
    """Size in bytes and checksum (``xxh3_128:<32 hex digits>``) of stored content."""

    size: int
    checksum: str


@dataclass(frozen=True, slots=True)
class AlreadyExists:
    """The key is taken; nothing was written."""

    key: str


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object found by ``list``."""

    key: str
    size: int
