"""Retention: completed checkpoints that are kept, as a value; local copies on a worker.

Source: flink-runtime CheckpointSubsumeHelper and DefaultCompletedCheckpointStore. The store is only the
decision; the durable pointers are in the coordinator's record, written before anything is deleted.

The stored checkpoint is the truth: a local copy only saves the way there. Sources: flink-runtime
TaskLocalStateStoreImpl (TaskLocalStateStoreImplTest), PrioritizedOperatorSubtaskState.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from dagster_ckpt.core.config import (
    NEWEST_ONLY,
    CheckpointConfig,
    Dated,
    Retention,
)
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.model import FileEntry
from dagster_ckpt.core.request import CheckpointProperties, RunStatus
from dagster_ckpt.errors import Corrupt, InvalidRequest


class Retainable(Dated, Protocol):
    """Completed checkpoint as the store needs to know it."""

    @property
    def properties(self) -> CheckpointProperties:
        """Properties: how the checkpoint is treated."""
        ...

    @property
    def is_left_behind(self) -> bool:
        """True where a restore went back to before it: it stands for no hour and no day."""
        ...


C = TypeVar("C", bound=Retainable)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableEntry:
    """A pointer in the record that could not be read back."""

    checkpoint_id: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Added(Generic[C]):
    """The store after a completion, and what that completion pushed out (oldest first)."""

    store: CompletedStore[C]
    subsumed: tuple[C, ...]

    @property
    def highest_subsumed(self) -> CheckpointId | None:
        """Largest id pushed out, or None."""
        return max((CheckpointId(c.checkpoint_id) for c in self.subsumed), default=None)

    @property
    def notified_subsumed(self) -> CheckpointId | None:
        """The id stages are told of: the largest pushed out, if its files may be deleted at all."""
        last = max(self.subsumed, key=lambda c: c.checkpoint_id, default=None)
        if last is None or not last.properties.discard_subsumed:
            return None
        return CheckpointId(last.checkpoint_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutDown(Generic[C]):
    """Effect of a run's end on the retained checkpoints."""

    forgotten: tuple[C, ...]
    """Their pointers leave the record: no later run continues this one."""
    discarded: tuple[C, ...]
    """Those of them whose files are deleted."""
    kept: tuple[C, ...]
    """Their pointers stay, for the next run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedStore(Generic[C]):
    """At most ``num_retained`` completed checkpoints, oldest first; more where no rule lets one go.

    Those that ``retention`` keeps for an hour or a day are beside them, and count towards nothing; so is the newest one
    that all tables show, while newer ones wait to be published.
    """

    num_retained: int
    retention: Retention = NEWEST_ONLY
    entries: tuple[C, ...] = ()
    shown: int | None = None
    """Newest checkpoint that all tables show; None: there is none, or no table."""

    def __post_init__(self) -> None:
        if self.num_retained < 1:
            raise InvalidRequest(f"num_retained must be at least 1, got {self.num_retained}")

    @property
    def latest(self) -> C | None:
        """The entry added last."""
        return self.entries[-1] if self.entries else None

    @property
    def lowest_retained(self) -> CheckpointId | None:
        """Id of the first entry that is no savepoint and not kept beside the newest.

        Shared files last used before it are free, but for those which entries before it use. None: there is no such
        entry, so nothing may be freed.
        """
        own = [c for c in self.entries if not _is_savepoint(c)]
        beside = {c.checkpoint_id for c in self._beside}
        return next((CheckpointId(c.checkpoint_id) for c in own if c.checkpoint_id not in beside), None)

    @property
    def standing(self) -> dict[int, str]:
        """Hour, day or both for which an entry is kept beside the newest."""
        why = _standing(self.entries, self.retention)
        return {c.checkpoint_id: why[c.checkpoint_id] for c in self._beside if c.checkpoint_id in why}

    @property
    def _beside(self) -> tuple[C, ...]:
        """Entries before the newest that are kept for their hour or day, or for what tables show."""
        standing = _standing(self.entries, self.retention)
        kept_beside = {*standing, self.shown}
        newest = self.retention.keep_last or self.num_retained
        return tuple(c for c in self.entries[:-newest] if c.checkpoint_id in kept_beside)

    def add(self, entry: C) -> Added[C]:
        """Return the store with ``entry``, whose pointer is already durable, and what it subsumed.

        Raises InvalidRequest when the id is already stored.
        """
        if any(c.checkpoint_id == entry.checkpoint_id for c in self.entries):
            raise InvalidRequest(f"checkpoint {entry.checkpoint_id} is already in the store")
        longer = replace(self, entries=(*self.entries, entry))
        subsumed = longer._in_excess()
        return Added(store=longer._without(subsumed), subsumed=subsumed)

    def let_go(self, number: int) -> Added[C]:
        """Return the store without an entry that nothing keeps any more: tables show a newer one now."""
        subsumed = tuple(c for c in self._in_excess() if c.checkpoint_id == number)
        return Added(store=self._without(subsumed), subsumed=subsumed)

    def _without(self, gone: tuple[C, ...]) -> CompletedStore[C]:
        return replace(self, entries=tuple(c for c in self.entries if c not in gone)) if gone else self

    def _in_excess(self) -> tuple[C, ...]:
        """Return the entries that no rule keeps, from the oldest to the newest, without an early stop."""
        protected = next((c for c in reversed(self.entries) if not _is_savepoint(c)), None)
        beside = self._beside
        excess = len(self.entries) - len(beside) - (self.retention.keep_last or self.num_retained)
        subsumed: list[C] = []
        for entry in self.entries:
            droppable = _can_subsume(entry, latest=self.entries[-1], newest_checkpoint=protected)
            if len(subsumed) < excess and droppable and entry not in beside:
                subsumed.append(entry)
        return tuple(subsumed)

    def shut_down(self, status: RunStatus) -> ShutDown[C]:
        """Return the checkpoints that end with the run; a status that is not globally terminal keeps every pointer.

        Source: DefaultCompletedCheckpointStoreTest#testShutdownShould[Not]DiscardStateHandleWhenJobIs….
        """
        if not status.is_globally_terminal:
            return ShutDown(forgotten=(), discarded=(), kept=self.entries)
        discarded = tuple(c for c in self.entries if c.properties.discard_on(status))
        return ShutDown(forgotten=self.entries, discarded=discarded, kept=())


def completed_store(
    config: CheckpointConfig, entries: tuple[C, ...], *, shown: int | None
) -> CompletedStore[C]:
    """Return the store as a run's settings, and what tables show, bound it."""
    return CompletedStore(
        num_retained=config.num_retained, retention=config.retention, entries=entries, shown=shown
    )


def recover(entries: Iterable[C | UnreadableEntry], *, num_retained: int) -> CompletedStore[C]:
    """Return the store as it was, sorted by id whatever order the entries come in.

    Raises Corrupt when one cannot be read: falling back to an older checkpoint would lose data unnoticed
    (DefaultCompletedCheckpointStoreTest#testCorruptDataInStateHandleStoreShouldNotBeSkipped).
    """
    readable: dict[int, C] = {}
    for entry in entries:
        if isinstance(entry, UnreadableEntry):
            raise Corrupt(
                f"the pointer to checkpoint {entry.checkpoint_id} cannot be read ({entry.cause}): "
                "nothing was restored. Repair it, or choose another restore point with restore_from"
            )
        if entry.checkpoint_id in readable:
            raise Corrupt(f"checkpoint {entry.checkpoint_id} is in the store twice: nothing was restored")
        readable[entry.checkpoint_id] = entry
    return CompletedStore(
        num_retained=num_retained, entries=tuple(readable[number] for number in sorted(readable))
    )


def _standing(entries: tuple[C, ...], retention: Retention) -> dict[int, str]:
    """Return why each stands for an hour or a day; savepoints and what a restore has left behind stand for none."""
    return retention.standing([c for c in entries if not (_is_savepoint(c) or c.is_left_behind)])


def _can_subsume(entry: C, *, latest: C, newest_checkpoint: C | None) -> bool:
    if entry is latest:
        return False
    if _is_savepoint(entry) or latest.properties.kind.is_synchronous:
        return True
    # Later incremental checkpoints build on the newest one that is no savepoint.
    return entry is not newest_checkpoint


def _is_savepoint(entry: Retainable) -> bool:
    return entry.properties.kind.is_savepoint


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
