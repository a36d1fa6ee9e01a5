"""Shared state registry: the users of files that checkpoints share, and files without a user.

Not reference counting: an entry knows which checkpoint created it and which used it last, so that completions
out of order do no harm (FLINK-24611). Source: flink-runtime SharedStateRegistryImpl, SharedStateRegistryTest.

The registry decides and remembers, nothing else: it deletes no file. It is rebuilt from the retained
checkpoints when a coordinator starts; only ``highest_not_claimed`` must be stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from dagster_ckpt.core.config import ClaimMode
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.messages import StateHandle
from dagster_ckpt.core.properties import SharingStrategy
from dagster_ckpt.errors import InvalidRequest


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
