"""The local copy of a checkpoint: which copies are kept on a worker, and when one is good enough to
restore from.

The stored checkpoint is the truth: a local copy only saves the way there. Sources: flink-runtime
TaskLocalStateStoreImpl (TaskLocalStateStoreImplTest), PrioritizedOperatorSubtaskState.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.model import FileEntry


class LocalBackup(StrEnum):
    """Local backup: whether local copies are kept at all."""

    OFF = "off"
    ON = "on"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalChange:
    """The copies kept from now on, and those whose files are deleted."""

    copies: LocalCopies
    pruned: tuple[CheckpointId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCopies:
    """Checkpoints of which this worker has a copy of a stage's files."""

    backup: LocalBackup = LocalBackup.ON
    stored: tuple[CheckpointId, ...] = ()
    """In ascending order."""

    def store(self, checkpoint_id: CheckpointId) -> LocalChange:
        """Keep a copy; with backups off it is deleted again at once."""
        if self.backup is LocalBackup.OFF:
            return LocalChange(copies=self, pruned=(checkpoint_id,))
        return LocalChange(copies=replace(self, stored=tuple(sorted({*self.stored, checkpoint_id}))))

    def confirm(self, checkpoint_id: CheckpointId) -> LocalChange:
        """The checkpoint is complete: all older copies go
        (TaskLocalStateStoreImplTest#confirmCheckpoint)."""
        return self._prune(tuple(stored for stored in self.stored if stored < checkpoint_id))

    def abort(self, checkpoint_id: CheckpointId) -> LocalChange:
        """The checkpoint is over: exactly its copy goes (#abortCheckpoint)."""
        return self._prune(tuple(stored for stored in self.stored if stored == checkpoint_id))

    def unreadable(self, checkpoint_id: CheckpointId) -> LocalChange:
        """The copy could not be read: it goes (#deletesLocalStateIfRetrievalFails)."""
        return self.abort(checkpoint_id)

    def dispose(self) -> LocalChange:
        """The worker leaves for good: every copy goes, the confirmed one too (#dispose)."""
        return self._prune(self.stored)

    def find(self, checkpoint_id: CheckpointId) -> CheckpointId | None:
        """Return the id where a copy may be tried, else None (#retrieveNullIfDisableLocalRecovery)."""
        if self.backup is LocalBackup.OFF or checkpoint_id not in self.stored:
            return None
        return checkpoint_id

    def _prune(self, pruned: tuple[CheckpointId, ...]) -> LocalChange:
        kept = tuple(stored for stored in self.stored if stored not in pruned)
        return LocalChange(copies=replace(self, stored=kept), pruned=pruned)


class RecoverySource(StrEnum):
    """Source a file is restored from."""

    LOCAL = "local"
    STORAGE = "storage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A file to restore and the places to try, best first; storage is always the last."""

    entry: FileEntry
    sources: tuple[RecoverySource, ...]


def prioritize(entries: Iterable[FileEntry], local: Mapping[str, FileEntry] | None) -> tuple[Candidate, ...]:
    """Return for every file of the manifest where to take it from.

    ``local`` is the copy's own list by path, or None without one. All files of one state partition come
    from the same place, for a partition is consistent only as a whole: one that differs in any file is
    taken from storage (PrioritizedOperatorSubtaskStateTest#testPrioritization); other partitions may still
    be local (#testTryCreateMixedLocalAndRemoteAlternative).
    """
    wanted = tuple(entries)
    if local is None:
        return tuple(Candidate(entry=entry, sources=(RecoverySource.STORAGE,)) for entry in wanted)
    differing = {_group(entry) for entry in wanted if not _same(entry, local.get(entry.path))}
    return tuple(
        Candidate(
            entry=entry,
            sources=(RecoverySource.STORAGE,)
            if _group(entry) in differing
            else (RecoverySource.LOCAL, RecoverySource.STORAGE),
        )
        for entry in wanted
    )


def _group(entry: FileEntry) -> tuple[str | None, int | None]:
    return entry.operator, entry.partition


def _same(entry: FileEntry, copy: FileEntry | None) -> bool:
    return copy is not None and (copy.size, copy.checksum) == (entry.size, entry.checksum)
