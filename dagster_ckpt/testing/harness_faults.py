"""The harness's world: store and storages that outlive an attempt, and the faults a test arms in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeVar

from dagster_ckpt.errors import CheckpointError, InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from dagster_ckpt.ports import CheckpointStorage, CoordinatorStore
from dagster_ckpt.testing.background import ManualBackground
from dagster_ckpt.testing.faults import (
    Call,
    Effect,
    FailNext,
    FaultyStorage,
    FaultyStore,
    Operation,
    RecordCalls,
    SimulatedCrash,
)
from dagster_ckpt.testing.gateway import RecordingGateway
from dagster_ckpt.testing.memory import MemoryCheckpointStorage, MemoryCoordinatorStore
from dagster_ckpt.testing.nested import NestedStorage

if TYPE_CHECKING:
    from dagster_ckpt.core.messages import TriggerStages

T = TypeVar("T")


class _DeathAt:
    """Ends the process at the next matching call, before its effect; armed by a glob, disarmed by firing."""

    def __init__(self) -> None:
        self.matching = ""

    def around(self, call: Call, proceed: Callable[[], T]) -> T:
        """Raise SimulatedCrash where armed for the call."""
        if self.matching and call.operation.writes and fnmatchcase(call.subject, self.matching):
            self.matching = ""
            raise SimulatedCrash(f"before {call.operation} of {call.subject!r}")
        return proceed()


def memory_at(storages: Mapping[str, CheckpointStorage], uri: str | None) -> MemoryCheckpointStorage:
    """Return the memory storage at a URI (None: the pipeline's own), an empty one where nothing was written.

    Raises InvalidRequest for a storage of another kind: what is in it cannot be looked at this way.
    """
    found = next(iter(storages.values())) if uri is None else storages.get(uri.rstrip("/"))
    if found is None:
        return MemoryCheckpointStorage(uri or "memory://")
    while isinstance(found, FaultyStorage):
        found = found.inner
    if not isinstance(found, MemoryCheckpointStorage):
        raise InvalidRequest(f"only a memory storage can be looked into, {found.base_uri} is none")
    return found


class HarnessFaults:
    """What fails, and when. Every fault fires once, at the next matching call, unless ``times`` says otherwise."""

    background: ManualBackground
    gateway: RecordingGateway

    def __init__(
        self,
        *,
        world: HarnessFaults | None,
        store: CoordinatorStore | None,
        storage: CheckpointStorage | None,
    ) -> None:
        self.faults = FailNext()
        """The armed faults, for those the methods below do not cover."""
        self._death = _DeathAt()
        self.calls = RecordCalls()
        """Every call to the store and the storages, in order."""
        if world is not None:
            self.memory_store: CoordinatorStore = world.memory_store
            self.memory_storages: dict[str, CheckpointStorage] = world.memory_storages
        else:
            self.memory_store = store or MemoryCoordinatorStore()
            own = storage or MemoryCheckpointStorage()
            self.memory_storages = {own.base_uri: own}
        self.store: CoordinatorStore = FaultyStore(self.memory_store, self.calls, self.faults, self._death)
        self._own_uri = next(iter(self.memory_storages))
        self.storage: CheckpointStorage = self.storage_at(self._own_uri)

    def storage_at(self, uri: str) -> CheckpointStorage:
        """Return the storage at a URI, empty when it was never used; one below a known base is a part of that."""
        uri = uri.rstrip("/")
        for base, known in self.memory_storages.items():
            if uri.startswith(f"{base}/"):
                nested = NestedStorage(known, uri.removeprefix(f"{base}/"))
                return FaultyStorage(nested, self.calls, self.faults, self._death)
        inner = self.memory_storages.setdefault(uri, MemoryCheckpointStorage(uri))
        return FaultyStorage(inner, self.calls, self.faults, self._death)

    # --- storage --------------------------------------------------------------------------------------------

    def fail_next_metadata_write(self, error: CheckpointError | None = None, *, times: int = 1) -> None:
        """Let the next write of a ``_metadata`` fail; nothing is written."""
        failure = error or Unavailable("the checkpoint storage is full")
        self.faults.arm(Operation.CREATE, failure, matching="*/_metadata", times=times)

    def die_at_next_metadata_write(self) -> None:
        """Let the process end before the next ``_metadata`` is written: the call raises SimulatedCrash."""
        self._death.matching = "*/_metadata"

    def live_on(self) -> None:
        """Let no process end after all."""
        self._death.matching = ""

    def fail_next_location(self, error: CheckpointError | None = None) -> None:
        """Let the storage location of the next checkpoint fail: an I/O error during the trigger."""
        self.faults.arm(Operation.LIST, error or Unavailable("the checkpoint storage cannot be reached"))

    def fail_next_deletion(self, error: CheckpointError | None = None) -> None:
        """Let the next deletion of files fail."""
        self.faults.arm(Operation.DELETE, error or Unavailable("the checkpoint storage cannot be reached"))

    def damage(self, key: str, content: bytes = b"damaged", *, uri: str | None = None) -> None:
        """Let a stored file hold something else from now on. Raises NotFound where there is none."""
        memory = memory_at(self.memory_storages, uri)
        if key not in memory.contents:
            raise NotFound(f"{key!r} does not exist in checkpoint storage {memory.base_uri}")
        memory.contents[key] = content

    def block_deletions(self) -> None:
        """Hold the deletion of files until ``release_deletions``."""
        self.background.block()

    def release_deletions(self, count: int | None = None) -> None:
        """Let held deletions go on, the oldest ``count`` of them or all."""
        self.background.release(count)

    # --- store ----------------------------------------------------------------------------------------------

    def fail_next_store(self, *, times: int = 1) -> None:
        """Let the next compare-and-set fail for certain: nothing was stored."""
        error = Unavailable("the coordinator store cannot be reached")
        self.faults.arm(Operation.COMPARE_AND_SET, error, times=times)

    def lose_next_store(self, *, times: int = 1) -> None:
        """Let the next compare-and-set fail with an unknown outcome; it did not happen."""
        error = OutcomeUnknown("the coordinator store did not answer")
        self.faults.arm(Operation.COMPARE_AND_SET, error, times=times)

    def lose_next_store_answer(self, *, times: int = 1) -> None:
        """Let the next compare-and-set fail with an unknown outcome; it did happen."""
        error = OutcomeUnknown("the coordinator store did not answer")
        self.faults.arm(Operation.COMPARE_AND_SET, error, effect=Effect.HAPPENED, times=times)

    # --- tasks ----------------------------------------------------------------------------------------------

    def fail_next_trigger(self, error: Exception) -> None:
        """Let the next trigger message raise. Raises InvalidRequest for what cannot be raised."""
        if not isinstance(error, Exception):
            raise InvalidRequest(f"a fault raises an exception, got {error!r}")

        def fail_once(message: TriggerStages) -> None:
            self.gateway.on_trigger = None
            raise error

        self.gateway.on_trigger = fail_once
