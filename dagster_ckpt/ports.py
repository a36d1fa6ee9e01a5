"""Ports of the runtime, as small Protocols; each docstring states the guarantee demanded.

Every implementation runs the contract suite of its port (tests/contract). No safety decision lives behind a port:
the commit point of a checkpoint is always ``CoordinatorStore.compare_and_set``.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId
from dagster_ckpt.core.paths import AlreadyExists, Digest, StoredObject

if TYPE_CHECKING:
    from dagster_ckpt.core.messages import NotifyAborted, NotifyComplete, TriggerStages


# --- CoordinatorStore -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """The coordinator's record of one pipeline as stored: JSON text and its version (1, 2, …)."""

    version: int
    body: str


@dataclass(frozen=True, slots=True)
class Committed:
    """The compare-and-set took effect; ``version`` is the new one."""

    version: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """Someone else wrote first; nothing changed. ``current`` is None where no record exists."""

    current: StoredRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRow:
    """One checkpoint in the history of a pipeline; written again as its status changes (key: pipeline, id).

    ``kind``: checkpoint | savepoint. ``status``: in_progress | completed | failed | subsumed | discarded.
    Times are seconds since the Unix epoch. ``body`` is JSON text: statistics, failure cause, location.
    """

    pipeline: PipelineId
    checkpoint_id: CheckpointId
    epoch: CoordinatorEpoch
    kind: str
    status: str
    triggered_at: float
    ended_at: float | None = None
    body: str = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """Something that a person had done to a pipeline: never changed, never removed."""

    pipeline: PipelineId
    at: float
    """Seconds since the Unix epoch."""
    what: str
    """``restored``, ``forked``, ``disposed``, ``swapped`` or ``swapped back``: readers; ``begun``: from nothing, as
    ``restore_from: none`` asks for; ``set aside``: rows that a sink cannot show."""
    key: str
    """Snapshot it was done with, or pipeline that readers were swapped to; empty: none."""
    uri: str
    """The snapshot's folder, or the one that rows were set aside in; empty: none."""
    who: str = ""
    run_id: str = ""
    shown: str = ""
    """The preview as it was then, line by line."""


class CoordinatorStore(Protocol):
    """Durable home of the coordinator's record: one JSON document per pipeline, changed by compare-and-set only.

    Implementations guarantee: ``compare_and_set`` is linearizable across processes and machines that share the store;
    the record and its history rows become visible together or not at all; a reader never sees a partial write.
    A failure that certainly had no effect raises Unavailable; one that may have had raises OutcomeUnknown, after the
    implementation has tried to read back whether its own write landed.
    """

    def load(self, pipeline: PipelineId) -> StoredRecord | None:
        """Return the latest record, or None."""
        ...

    def compare_and_set(
        self,
        pipeline: PipelineId,
        expected: int,
        body: str,
        history: Sequence[HistoryRow] = (),
        audit: Sequence[AuditRow] = (),
        *,
        forgotten: Collection[CheckpointId] = (),
    ) -> Committed | Conflict:
        """Write ``body`` as version ``expected + 1`` if the stored version is ``expected`` (0: no record yet).

        ``history`` rows are inserted or replaced, ``audit`` rows added, the history rows of ``forgotten`` checkpoints
        removed, in the same transaction.
        """
        ...

    def audited(self, pipeline: PipelineId, *, limit: int) -> list[AuditRow]:
        """Return at most ``limit`` of the rows ``compare_and_set`` has added, newest first."""
        ...

    def history(
        self, pipeline: PipelineId, *, limit: int, before: CheckpointId | None = None
    ) -> list[HistoryRow]:
        """Return at most ``limit`` rows, newest id first, with ids below ``before`` when it is given."""
        ...

    def pipelines(self) -> list[PipelineId]:
        """Return the pipelines that have a record, sorted."""
        ...


# --- CheckpointStorage ------------------------------------------------------------------------------------------


class CheckpointStorage(Protocol):
    """Write-once bytes under '/'-separated keys below one base URI; shared by every machine of the pipeline.

    Implementations guarantee read-after-write, that a key is visible with all its bytes or not at all, and that keys
    they did not name are never touched. Exclusive creation is best effort: no decision may hang on it.
    Failures raise NotFound, Unavailable (nothing visible was written), Corrupt (digest mismatch), or OutcomeUnknown
    where a write was not answered and could not be read back either.
    """

    base_uri: str
    """Where keys live, as an fsspec URI without a trailing slash."""

    def create(self, key: str, source: bytes | Path) -> Digest | AlreadyExists:
        """Store bytes, or a local file's content, under a new key; the digest is of what was stored.

        A file's content may reach the disk as late as the next ``create`` from bytes, and not later: what names
        files is written from bytes, after them, by the same storage object. Raises FileNotFoundError, which is
        no error of the storage, when the local file is gone.
        """
        ...

    def read(self, key: str) -> bytes:
        """Return the whole content. Raises NotFound."""
        ...

    def fetch(self, key: str, target: Path, expected: Digest) -> None:
        """Copy (or hard-link, where that is the same file system) the content to a new local file, verified.

        ``target``'s folder exists. Raises NotFound, or Corrupt when size or checksum differ; then ``target`` is gone.
        """
        ...

    def list(self, prefix: str) -> Iterable[StoredObject]:
        """Yield every object whose key begins with ``prefix + '/'`` (``""``: every object), in no particular order."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Remove exactly these keys; missing ones are no error. Folders left empty are removed too."""
        ...


# --- TaskGateway ------------------------------------------------------------------------------------------------


class TaskGateway(Protocol):
    """Gateway to the stages of the coordinator's own attempt (Flink's three RPCs). At most once, best effort.

    Called after the decision is stored and outside any lock; raising from ``trigger`` fails the checkpoint,
    raising from a notification is logged only.
    """

    def trigger(self, message: TriggerStages) -> None:
        """Ask stages to start a checkpoint: a source puts the barrier behind its last batch."""
        ...

    def notify_complete(self, message: NotifyComplete) -> None:
        """Tell all stages that a checkpoint is complete: two-phase sinks publish, given the message's permit."""
        ...

    def notify_aborted(self, message: NotifyAborted) -> None:
        """Tell all stages that a checkpoint is over without completing."""
        ...


# --- Clock ------------------------------------------------------------------------------------------------------


class Clock(Protocol):
    """Time, injected."""

    def now(self) -> float:
        """Seconds since the Unix epoch, for records people read."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards, for delays and timeouts within one process."""
        ...


class SystemClock:
    """Time of this machine."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never run backwards."""
        return time.monotonic()
