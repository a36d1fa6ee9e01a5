"""The faults a test arms in the store, the storages and the stages of a scenario."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeVar

from dagster_ckpt.errors import CheckpointError, InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from dagster_ckpt.ports import CheckpointStorage, CoordinatorStore
from dagster_ckpt.testing.coordinator.world import PlayedAttempt
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
from dagster_ckpt.testing.memory import MemoryCheckpointStorage
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


class Faults(FailNext):
    """Faults of a scenario. Each fires once, at the next matching call, unless ``times`` says otherwise.

    ``arm`` is for those the other methods do not cover.
    """

    def __init__(self, played: PlayedAttempt) -> None:
        super().__init__()
        self._played = played
        self._death = _DeathAt()
        self.calls = RecordCalls()
        """Every call to the store and the storages, in order."""
        world = played.world
        self.store: CoordinatorStore = FaultyStore(world.memory_store, self.calls, self, self._death)
        self.storage: CheckpointStorage = self.storage_at(next(iter(world.memory_storages)))

    def storage_at(self, uri: str) -> CheckpointStorage:
        """Return the storage at a URI, empty when it was never used; one below a known base is a part of that."""
        uri = uri.rstrip("/")
        for base, known in self._played.world.memory_storages.items():
            if uri.startswith(f"{base}/"):
                nested = NestedStorage(known, uri.removeprefix(f"{base}/"))
                return FaultyStorage(nested, self.calls, self, self._death)
        inner = self._played.world.memory_storages.setdefault(uri, MemoryCheckpointStorage(uri))
        return FaultyStorage(inner, self.calls, self, self._death)

    # --- storage --------------------------------------------------------------------------------------------

    def fail_next_metadata_write(self, error: CheckpointError | None = None, *, times: int = 1) -> None:
        """Let the next write of a ``_metadata`` fail; nothing is written."""
        failure = error or Unavailable("the checkpoint storage is full")
        self.arm(Operation.CREATE, failure, matching="*/_metadata", times=times)

    def die_at_next_metadata_write(self) -> None:
        """Let the process end before the next ``_metadata`` is written: the call raises SimulatedCrash."""
        self._death.matching = "*/_metadata"

    def live_on(self) -> None:
        """Let no process end after all."""
        self._death.matching = ""

    def fail_next_location(self, error: CheckpointError | None = None) -> None:
        """Let the storage location of the next checkpoint fail: an I/O error during the trigger."""
        self.arm(Operation.LIST, error or Unavailable("the checkpoint storage cannot be reached"))

    def fail_next_deletion(self, error: CheckpointError | None = None) -> None:
        """Let the next deletion of files fail."""
        self.arm(Operation.DELETE, error or Unavailable("the checkpoint storage cannot be reached"))

    def damage(self, key: str, content: bytes = b"damaged", *, uri: str | None = None) -> None:
        """Let a stored file hold something else from now on. Raises NotFound where there is none."""
        memory = self._played.world.memory_at(uri)
        if key not in memory.contents:
            raise NotFound(f"{key!r} does not exist in checkpoint storage {memory.base_uri}")
        memory.contents[key] = content

    def block_deletions(self) -> None:
        """Hold the deletion of files until ``release_deletions``."""
        self._played.background.block()

    def release_deletions(self, count: int | None = None) -> None:
        """Let held deletions go on, the oldest ``count`` of them or all."""
        self._played.background.release(count)

    # --- store ----------------------------------------------------------------------------------------------

    def fail_next_store(self, *, times: int = 1) -> None:
        """Let the next compare-and-set fail for certain: nothing was stored."""
        error = Unavailable("the coordinator store cannot be reached")
        self.arm(Operation.COMPARE_AND_SET, error, times=times)

    def lose_next_store(self, *, times: int = 1) -> None:
        """Let the next compare-and-set fail with an unknown outcome; it did not happen."""
        error = OutcomeUnknown("the coordinator store did not answer")
        self.arm(Operation.COMPARE_AND_SET, error, times=times)

    def lose_next_store_answer(self, *, times: int = 1) -> None:
        """Let the next compare-and-set fail with an unknown outcome; it did happen."""
        error = OutcomeUnknown("the coordinator store did not answer")
        self.arm(Operation.COMPARE_AND_SET, error, effect=Effect.HAPPENED, times=times)

    # --- tasks ----------------------------------------------------------------------------------------------

    def fail_next_trigger(self, error: Exception) -> None:
        """Let the next trigger message raise. Raises InvalidRequest for what cannot be raised."""
        if not isinstance(error, Exception):
            raise InvalidRequest(f"a fault raises an exception, got {error!r}")

        def fail_once(message: TriggerStages) -> None:
            self._played.gateway.on_trigger = None
            raise error

        self._played.gateway.on_trigger = fail_once
