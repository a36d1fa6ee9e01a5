"""Checkpoints inside the coordinator store (Flink: JobManagerCheckpointStorage): their URI, and their limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

SCHEME = "store://"
CHECKPOINTS_IN_STORE = "store://checkpoints"
"""Base URI of the checkpoints in the store. It names no database: it is the store of whoever opens it."""

LARGEST_OBJECT = 64 * 1024**2
"""Bytes a row may hold at all: it passes through memory whole, several times."""

NO_SAVEPOINTS_IN_STORE = (
    "the coordinator store holds checkpoints only; a savepoint is yours to keep and needs a folder or bucket "
    "outside of it"
)


class StorageKind(StrEnum):
    """Kind of checkpoint storage (Flink: execution.checkpointing.storage)."""

    FILESYSTEM = "filesystem"
    """To checkpoint storage: a folder or a bucket (``checkpoint_dir``)."""
    STORE = "store"
    """Into the coordinator store, as rows: for small state (Flink: jobmanager)."""

    @classmethod
    def _missing_(cls, value: object) -> StorageKind | None:
        return cls.STORE if value == "jobmanager" else None


def is_in_store(uri: str) -> bool:
    """Tell whether a storage's or a snapshot's URI is in the coordinator store."""
    return uri.startswith(SCHEME)


def size_text(count: int) -> str:
    """Return a size as people say it: ``5 mb``, ``6.1 mb``, ``900 b``."""
    for unit, size in (("gb", 1024**3), ("mb", 1024**2), ("kb", 1024)):
        if count >= size:
            return f"{count / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{count} b"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """Limits of what is kept in the store, in bytes."""

    per_object: int
    per_checkpoint: int

    def refusal(self, sizes: Sequence[int], *, others: int = 0) -> str:
        """Return why these files do not fit, beside ``others`` bytes of the same checkpoint; empty: they do."""
        largest = max(sizes, default=0)
        if largest > self.per_object:
            return _too_large(
                f"a file of {size_text(largest)}", largest, f"files of up to {size_text(self.per_object)}"
            )
        whole = sum(sizes) + others
        if whole > self.per_checkpoint:
            what = f"a checkpoint of {size_text(whole)}"
            return _too_large(what, whole, f"checkpoints of up to {size_text(self.per_checkpoint)}")
        return ""


STORE_LIMITS = StoreLimits(per_object=5 * 1024**2, per_checkpoint=50 * 1024**2)
"""The largest file (Flink: maxStateSize), and all files of a checkpoint, also those that an earlier one has written."""


def _too_large(what: str, found: int, holds: str) -> str:
    return (
        f"{what} ({found} bytes) does not fit into the coordinator store, which holds {holds}: "
        "set checkpoint_storage to filesystem and checkpoint_dir to a folder or bucket; the previous checkpoint stays"
    )
