"""Cleaning: when a subsumed checkpoint may be deleted, which files in storage, and who uses those that are shared.

Sources: flink-runtime CheckpointsCleaner (the first half). The second half classifies what a listing
found, so that orphans can go without touching anything that cannot be named.

The registry of shared files is no reference counting: an entry knows which checkpoint created it and which used it
last, so that completions out of order do no harm (FLINK-24611). Source: flink-runtime SharedStateRegistryImpl,
SharedStateRegistryTest.

It decides and remembers, nothing else: it deletes no file. It is rebuilt from the retained
checkpoints when a coordinator starts; only ``highest_not_claimed`` must be stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Generic, TypeVar, assert_never

from dagster_ckpt.core import paths
from dagster_ckpt.core.config import ClaimMode
from dagster_ckpt.core.files.retention import Retainable
from dagster_ckpt.core.ids import CheckpointId, PipelineId
from dagster_ckpt.core.messages import StateHandle
from dagster_ckpt.core.model import CheckpointMetadata, FileEntry
from dagster_ckpt.core.paths import StoredObject
from dagster_ckpt.core.request import SharingStrategy
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


@dataclass(frozen=True, slots=True)
class PlaceholderHandle:
    """Stands for a file that an earlier checkpoint registered under ``key`` and this one reuses."""

    key: str


class FolderUse(StrEnum):
    """Use of a folder: does a file keep its creator's folder from being removed?"""

    INDEPENDENT = "independent"
    """The file lives in a shared folder."""
    PINS_FOLDER = "pins_folder"
    """The file lives in the folder of the checkpoint that created it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unused:
    """Files and folders that no retained checkpoint needs any more."""

    files: tuple[StateHandle, ...]
    """To be deleted."""
    checkpoints_in_use: frozenset[CheckpointId]
    """Checkpoints whose folder must stay, because files in it are still used."""


@dataclass(slots=True)
class _Entry:
    handle: StateHandle
    created_by: CheckpointId
    last_used: CheckpointId
    pins_folder: bool
    confirmed: bool = False


class SharedStateRegistry:
    """The shared files of one pipeline by registration key (their storage key, unless the caller has a
    better)."""

    __slots__ = ("_closed", "_entries", "_highest_not_claimed", "_unshared")

    def __init__(self, *, highest_not_claimed: CheckpointId | None = None) -> None:
        self._entries: dict[str, _Entry] = {}
        self._highest_not_claimed = highest_not_claimed
        self._unshared: set[CheckpointId] = set()
        self._closed = False

    @property
    def highest_not_claimed(self) -> CheckpointId | None:
        """Files created by this checkpoint or an earlier one belong to someone else: they are never
        deleted."""
        return self._highest_not_claimed

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def register(
        self,
        key: str,
        handle: StateHandle | PlaceholderHandle,
        checkpoint_id: CheckpointId,
        *,
        created_by: CheckpointId | None = None,
        folder_use: FolderUse = FolderUse.INDEPENDENT,
    ) -> StateHandle:
        """Note that ``checkpoint_id`` uses the file under ``key``; return the handle the caller must go on
        with.

        The handle registered first stays. ``created_by`` is given where the file is known to be older than
        the first checkpoint that registers it (after a recovery). Raises InvalidRequest for a placeholder
        of an unknown key, for a different file under a known key (which counts as used), and after ``close``.
        """
        self._check_open(key)
        entry = self._entries.get(key)
        if entry is None:
            if isinstance(handle, PlaceholderHandle):
                raise InvalidRequest(
                    f"checkpoint {checkpoint_id} reuses shared file {key!r}, "
                    "which no checkpoint has registered"
                )
            self._entries[key] = _Entry(
                handle, created_by or checkpoint_id, checkpoint_id, folder_use is FolderUse.PINS_FOLDER
            )
            return handle
        # Also where the handle is refused: the checkpoint names the file, and nobody may delete it meanwhile.
        entry.last_used = max(entry.last_used, checkpoint_id)
        if (
            not isinstance(handle, PlaceholderHandle)
            and handle is not entry.handle
            and handle != entry.handle
        ):
            raise InvalidRequest(
                f"checkpoint {checkpoint_id} registers {handle} under {key!r}, where {entry.handle} "
                f"of checkpoint {entry.created_by} is registered: "
                "shared files are written once and never replaced"
            )
        entry.pins_folder = entry.pins_folder or folder_use is FolderUse.PINS_FOLDER
        return entry.handle

    def register_all(self, handles: Iterable[StateHandle], checkpoint_id: CheckpointId) -> None:
        """Register each handle under its own storage key."""
        self._check_open(f"those of checkpoint {checkpoint_id}")
        entries = self._entries
        for handle in handles:
            entry = entries.get(handle.key)
            if entry is None:
                entries[handle.key] = _Entry(handle, checkpoint_id, checkpoint_id, False)
            elif entry.handle == handle:
                entry.last_used = max(entry.last_used, checkpoint_id)
            else:
                self.register(handle.key, handle, checkpoint_id)

    def register_restored(
        self,
        handles: Iterable[StateHandle],
        checkpoint_id: CheckpointId,
        *,
        claim_mode: ClaimMode,
        sharing: SharingStrategy,
    ) -> None:
        """Take note of a snapshot the run was restored from, before it is added to the store.

        NO_CLAIM registers nothing, because nothing may be built on it; only CLAIM allows its files to be
        deleted (CheckpointCoordinatorTest#testSharedStateRegistrationOnRestore).
        """
        match claim_mode:
            case ClaimMode.NO_CLAIM:
                self._raise_not_claimed(checkpoint_id)
                return
            case ClaimMode.LEGACY:
                self._raise_not_claimed(checkpoint_id)
            case ClaimMode.CLAIM:
                pass
            case _:
                assert_never(claim_mode)
        if sharing is SharingStrategy.NO_SHARING:
            self._unshared.add(checkpoint_id)
        self.register_all(handles, checkpoint_id)

    def checkpoint_completed(self, checkpoint_id: CheckpointId) -> None:
        """Confirm the files last used by ``checkpoint_id``: a completed checkpoint refers to them."""
        for entry in self._entries.values():
            if entry.last_used == checkpoint_id:
                entry.confirmed = True

    def unconfirmed(self) -> tuple[StateHandle, ...]:
        """Files that only checkpoints in progress or aborted ones refer to; a later one may still build
        on them."""
        return tuple(entry.handle for entry in self._entries.values() if not entry.confirmed)

    def unregister_unused(self, lowest: CheckpointId, *, kept: Collection[CheckpointId] = ()) -> Unused:
        """Drop what no checkpoint from ``lowest`` (the lowest retained one) on has used, nor any of ``kept``.

        A file is used by checkpoints from its creator to its last user only.

        Dropped files are returned for deletion only if they were created after the highest snapshot that
        is not ours. Source: SharedStateRegistryTest#testUnregisterUnusedSavepointState,
        #testUnregisterInitialCheckpoint.
        """
        dropped = [
            key
            for key, entry in self._entries.items()
            if entry.last_used < lowest and not any(entry.created_by <= k <= entry.last_used for k in kept)
        ]
        threshold = self._highest_not_claimed or 0
        files: list[StateHandle] = []
        for key in dropped:
            entry = self._entries.pop(key)
            if entry.created_by > threshold:
                files.append(entry.handle)
        return Unused(files=tuple(files), checkpoints_in_use=self._checkpoints_in_use())

    def close(self) -> None:
        """Refuse registrations from now on: the coordinator is shut down."""
        self._closed = True

    def _checkpoints_in_use(self) -> frozenset[CheckpointId]:
        unshared = self._unshared
        return frozenset(
            entry.created_by
            for entry in self._entries.values()
            if entry.pins_folder or entry.created_by in unshared
        )

    def _raise_not_claimed(self, checkpoint_id: CheckpointId) -> None:
        self._highest_not_claimed = max(self._highest_not_claimed or checkpoint_id, checkpoint_id)

    def _check_open(self, what: str) -> None:
        if self._closed:
            raise InvalidRequest(f"the coordinator is shut down: shared file {what} was not registered")
