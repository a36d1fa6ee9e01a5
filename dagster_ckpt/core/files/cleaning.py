"""Cleaning: when a subsumed checkpoint may be deleted, and which files in storage.

Sources: flink-runtime CheckpointsCleaner (the first half). The second half classifies what a listing
found, so that orphans can go without touching anything that cannot be named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Generic, TypeVar

from dagster_ckpt.core import paths
from dagster_ckpt.core.files.retention import Retainable
from dagster_ckpt.core.ids import CheckpointId, PipelineId
from dagster_ckpt.core.model import CheckpointMetadata, FileEntry
from dagster_ckpt.core.paths import StoredObject
from dagster_ckpt.errors import InvalidRequest

C = TypeVar("C", bound=Retainable)

# --- subsumed checkpoints -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(Generic[C]):
    """Result of a release: what still waits, and what is deleted or forgotten."""

    cleaner: Cleanups[C]
    """The new state; the deletions are counted in it already."""
    delete: tuple[C, ...]
    """Their files go, oldest first; report each with ``ended``."""
    forget: tuple[C, ...]
    """Their files stay where they are: the properties say they are not ours to delete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanups(Generic[C]):
    """Checkpoints subsumed and not yet deleted, and how many deletions are in progress."""

    held: tuple[C, ...] = ()
    in_flight: int = 0
    """Deletions started and not ended; the request decider starts no checkpoint while they are too many."""

    @property
    def is_idle(self) -> bool:
        """True where no deletion is in progress: a coordinator that closes waits for it."""
        return self.in_flight == 0

    def hold(self, subsumed: Iterable[C]) -> Cleanups[C]:
        """Return the state with more subsumed checkpoints waiting."""
        held = sorted((*self.held, *subsumed), key=lambda c: c.checkpoint_id)
        return replace(self, held=tuple(held))

    def release(self, lowest: CheckpointId | None, in_use: Collection[CheckpointId]) -> Released[C]:
        """Let go of those below the lowest retained checkpoint whose folder nobody uses any more.

        ``lowest`` and ``in_use`` come from CompletedStore.lowest_retained and
        SharedStateRegistry.unregister_unused. Source: CheckpointsCleanerTest#testNotCleanCheckpointInUse,
        #testNotCleanHigherCheckpoint.
        """
        free = [
            c
            for c in self.held
            if lowest is not None and c.checkpoint_id < lowest and c.checkpoint_id not in in_use
        ]
        delete = tuple(c for c in free if c.properties.discard_subsumed)
        forget = tuple(c for c in free if not c.properties.discard_subsumed)
        held = tuple(c for c in self.held if c not in free)
        cleaner = replace(self, held=held, in_flight=self.in_flight + len(delete))
        return Released(cleaner=cleaner, delete=delete, forget=forget)

    def started(self) -> Cleanups[C]:
        """Return the state with one more deletion in progress (of an aborted checkpoint, of one at
        shutdown)."""
        return replace(self, in_flight=self.in_flight + 1)

    def ended(self) -> Cleanups[C]:
        """Return the state with one deletion less, whether it succeeded or not."""
        if self.in_flight == 0:
            raise InvalidRequest("a deletion ended that never started")
        return replace(self, in_flight=self.in_flight - 1)


# --- files in storage -----------------------------------------------------------------------------


class Disposition(StrEnum):
    """Disposition of one stored object."""

    KEEP_REFERENCED = "keep_referenced"
    """A snapshot that can be restored needs it."""
    KEEP_UNKNOWN = "keep_unknown"
    """Nobody can say what it is, or whether it is still being written: report it, leave it."""
    REMOVE = "remove"
    """Left behind by a checkpoint that is over, and used by none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Classified:
    """One stored object and the verdict on it."""

    key: str
    size: int
    disposition: Disposition
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFacts:
    """Facts about the files of one pipeline, gathered before they are listed."""

    pipeline: PipelineId
    referenced: Collection[str]
    """Keys that retained snapshots, held ones, and checkpoints in progress refer to (use a set)."""
    over: Collection[CheckpointId]
    """Checkpoints that failed, were subsumed or discarded, and that nobody can still be writing."""
    uncertain: Collection[CheckpointId] = ()
    """Checkpoints whose completion has an unknown outcome: nothing of them may be deleted."""


def classify(found: Iterable[StoredObject], facts: StorageFacts) -> list[Classified]:
    """Say of every object whether it is needed, unknown or left over. Nothing is removed here."""
    layout = paths.CheckpointPaths(facts.pipeline)
    return [_classify(item, facts, layout) for item in found]


def _classify(item: StoredObject, facts: StorageFacts, layout: paths.CheckpointPaths) -> Classified:
    disposition, reason = _verdict(item.key, facts, layout)
    return Classified(key=item.key, size=item.size, disposition=disposition, reason=reason)


def _verdict(key: str, facts: StorageFacts, layout: paths.CheckpointPaths) -> tuple[Disposition, str]:
    if key in facts.referenced:
        return Disposition.KEEP_REFERENCED, "a snapshot that can be restored needs it"
    number = layout.number_of(key)
    if number is None:
        return Disposition.KEEP_UNKNOWN, "its name is not one this library gives"
    if number in facts.uncertain:
        return Disposition.KEEP_UNKNOWN, f"whether checkpoint {number} completed is unknown"
    if number in facts.over:
        return Disposition.REMOVE, f"checkpoint {number}, which wrote it, is over and none uses it"
    return Disposition.KEEP_UNKNOWN, f"checkpoint {number} is in progress, retained, or not in the record"


def removal_order(keys: Iterable[str], pipeline: PipelineId) -> list[str]:
    """Return keys in the order to delete them: data, then file lists, then ``_metadata``; oldest first in
    each.

    A crash in between leaves behind what still says which files there were.
    """
    number_of = paths.CheckpointPaths(pipeline).number_of
    return sorted(keys, key=lambda key: (_rank(key), number_of(key) or 0, key))


def _rank(key: str) -> int:
    name = key.rpartition("/")[2]
    return {paths.MANIFEST_FILE: 1, paths.METADATA_FILE: 2}.get(name, 0)


def exclusive_keys(metadata: CheckpointMetadata, entries: Iterable[FileEntry], *, folder: str) -> list[str]:
    """Return the keys that go with one snapshot, in the order to delete them; shared files are not among
    them.

    ``entries`` are the rows of all its manifests; ``folder`` is its folder below the storage's base.
    """
    prefix = f"{folder}/" if metadata.kind.is_savepoint else ""
    data = {f"{prefix}{entry.key}" for entry in entries if entry.key is not None}
    lists = {f"{prefix}{stage.manifest.key}" for stage in metadata.stages if stage.manifest is not None}
    named = {*data, *lists, paths.metadata(folder)}
    own = (key for key in named if key.startswith(f"{folder}/"))
    return removal_order(own, PipelineId(metadata.pipeline))
