"""Stores and storages whose calls pass through faults, the words to speak of such calls; a gateway that can fail."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from pathlib import Path
from typing import Protocol, TypeVar

from dagster_ckpt.core.ids import CheckpointId, ExecutionAttempt, PipelineId
from dagster_ckpt.core.messages import CheckpointFailureReason, NotifyAborted, NotifyComplete, TriggerStages
from dagster_ckpt.core.paths import AlreadyExists, Digest, StoredObject
from dagster_ckpt.ports import (
    AuditRow,
    CheckpointStorage,
    Committed,
    Conflict,
    CoordinatorStore,
    HistoryRow,
    StoredRecord,
)

T = TypeVar("T")


class SimulatedCrash(BaseException):
    """The process ended here; whoever catches it must throw the coordinator away and open a new one."""


class Operation(StrEnum):
    """Every call a wrapper intercepts."""

    LOAD = "load"
    COMPARE_AND_SET = "compare_and_set"
    HISTORY = "history"
    PIPELINES = "pipelines"
    CREATE = "create"
    READ = "read"
    FETCH = "fetch"
    LIST = "list"
    DELETE = "delete"

    @property
    def writes(self) -> bool:
        """True where a lost answer leaves the caller in doubt."""
        return self in (Operation.COMPARE_AND_SET, Operation.CREATE, Operation.DELETE)


class Effect(Enum):
    """Effect of a failing call: did it do its work before it failed?"""

    NONE = "none"
    HAPPENED = "happened"


@dataclass(frozen=True, slots=True)
class Call:
    """One intercepted call; ``subject`` is the pipeline, the key, the prefix, or the keys joined by ' '."""

    operation: Operation
    subject: str = ""


class Fault(Protocol):
    """Fault around a call."""

    def around(self, call: Call, proceed: Callable[[], T]) -> T:
        """Return ``proceed()``, or fail before, instead of or after it."""
        ...


# --- wrappers -----------------------------------------------------------------------------------------------


def _through(faults: Sequence[Fault], call: Call, proceed: Callable[[], T]) -> T:
    if not faults:
        return proceed()
    first, rest = faults[0], faults[1:]
    return first.around(call, lambda: _through(rest, call, proceed))


class FaultyStore:
    """A CoordinatorStore whose calls pass through faults."""

    def __init__(self, inner: CoordinatorStore, *faults: Fault) -> None:
        self.inner = inner
        self._faults = faults

    def load(self, pipeline: PipelineId) -> StoredRecord | None:
        """Load through the faults."""
        return _through(self._faults, Call(Operation.LOAD, pipeline), lambda: self.inner.load(pipeline))

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
        """Compare and set through the faults."""
        call = Call(Operation.COMPARE_AND_SET, pipeline)
        return _through(
            self._faults,
            call,
            lambda: self.inner.compare_and_set(pipeline, expected, body, history, audit, forgotten=forgotten),
        )

    def audited(self, pipeline: PipelineId, *, limit: int) -> list[AuditRow]:
        """Read the audit through the faults."""
        call = Call(Operation.HISTORY, pipeline)
        return _through(self._faults, call, lambda: self.inner.audited(pipeline, limit=limit))

    def history(
        self, pipeline: PipelineId, *, limit: int, before: CheckpointId | None = None
    ) -> list[HistoryRow]:
        """Read history through the faults."""
        call = Call(Operation.HISTORY, pipeline)
        return _through(self._faults, call, lambda: self.inner.history(pipeline, limit=limit, before=before))

    def pipelines(self) -> list[PipelineId]:
        """List pipelines through the faults."""
        return _through(self._faults, Call(Operation.PIPELINES), self.inner.pipelines)


class FaultyStorage:
    """A CheckpointStorage whose calls pass through faults."""

    def __init__(self, inner: CheckpointStorage, *faults: Fault) -> None:
        self.inner = inner
        self.base_uri = inner.base_uri
        self._faults = faults

    def create(self, key: str, source: bytes | Path) -> Digest | AlreadyExists:
        """Create through the faults."""
        return _through(self._faults, Call(Operation.CREATE, key), lambda: self.inner.create(key, source))

    def read(self, key: str) -> bytes:
        """Read through the faults."""
        return _through(self._faults, Call(Operation.READ, key), lambda: self.inner.read(key))

    def fetch(self, key: str, target: Path, expected: Digest) -> None:
        """Fetch through the faults."""
        _through(self._faults, Call(Operation.FETCH, key), lambda: self.inner.fetch(key, target, expected))

    def list(self, prefix: str) -> Iterable[StoredObject]:
        """List through the faults; the whole listing counts as one call."""

        def whole() -> builtins.list[StoredObject]:
            return [*self.inner.list(prefix)]

        return iter(_through(self._faults, Call(Operation.LIST, prefix), whole))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete through the faults."""
        call = Call(Operation.DELETE, " ".join(keys))
        _through(self._faults, call, lambda: self.inner.delete(keys))


@dataclass(frozen=True, slots=True)
class CompleteNotice:
    """One task heard that a checkpoint is complete."""

    checkpoint_id: CheckpointId
    subsumed: CheckpointId | None = None


@dataclass(frozen=True, slots=True)
class AbortNotice:
    """One task heard that a checkpoint is over."""

    checkpoint_id: CheckpointId
    reason: CheckpointFailureReason
    latest_completed: CheckpointId | None


Notice = CompleteNotice | AbortNotice


class RecordingGateway:
    """A TaskGateway for tests."""

    def __init__(self) -> None:
        self.triggers: list[TriggerStages] = []
        """Every trigger message, in order."""
        self.completes: list[NotifyComplete] = []
        """Every complete message, in order."""
        self.aborts: list[NotifyAborted] = []
        """Every abort message, in order."""
        self.on_trigger: Callable[[TriggerStages], None] | None = None
        """Called within each trigger: to acknowledge at once, or to raise."""
        self.on_complete: Callable[[NotifyComplete], None] | None = None
        self.on_aborted: Callable[[NotifyAborted], None] | None = None
        self._notices: list[tuple[tuple[ExecutionAttempt, ...], Notice]] = []

    def trigger(self, message: TriggerStages) -> None:
        """Remember a trigger."""
        self.triggers.append(message)
        if self.on_trigger is not None:
            self.on_trigger(message)

    def notify_complete(self, message: NotifyComplete) -> None:
        """Remember a completion."""
        self.completes.append(message)
        notice = CompleteNotice(message.checkpoint_id, message.subsumed)
        self._notices.append((message.attempts, notice))
        if self.on_complete is not None:
            self.on_complete(message)

    def notify_aborted(self, message: NotifyAborted) -> None:
        """Remember an abort."""
        self.aborts.append(message)
        notice = AbortNotice(message.checkpoint_id, message.reason, message.latest_completed)
        self._notices.append((message.attempts, notice))
        if self.on_aborted is not None:
            self.on_aborted(message)

    def triggered(self, stage: str, subtask: int = 0) -> list[CheckpointId]:
        """Return the checkpoints one subtask was asked to start, in order."""
        return [m.checkpoint_id for m in self.triggers if _names(m.attempts, stage, subtask)]

    def notices(self, stage: str, subtask: int = 0) -> list[Notice]:
        """Return the notices to one subtask, in order."""
        return [notice for attempts, notice in self._notices if _names(attempts, stage, subtask)]


def _names(attempts: tuple[ExecutionAttempt, ...], stage: str, subtask: int) -> bool:
    return any(a.stage == stage and a.subtask == subtask for a in attempts)
