"""World that outlives an attempt: the store, the storages, the clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ports import CheckpointStorage, CoordinatorStore
from dagster_ckpt.testing.clock import ManualClock
from dagster_ckpt.testing.faulty import FaultyStorage
from dagster_ckpt.testing.memory import MemoryCheckpointStorage, MemoryCoordinatorStore


@dataclass(kw_only=True)
class ScenarioWorld:
    """Shared by the attempts of a scenario, and by the processes of one attempt."""

    memory_store: CoordinatorStore
    memory_storages: dict[str, CheckpointStorage]
    """By base URI; the first is the pipeline's own."""
    clock: ManualClock = field(default_factory=ManualClock)
    random: Random = field(default_factory=lambda: Random(0))
    seed: int = 0
    _lineages: Iterator[int] = field(default_factory=lambda: count(1))

    @classmethod
    def of(
        cls, store: CoordinatorStore | None, storage: CheckpointStorage | None, seed: int
    ) -> ScenarioWorld:
        """Return a new one; what is not given is in memory and empty."""
        own = storage or MemoryCheckpointStorage()
        return cls(
            memory_store=store or MemoryCoordinatorStore(),
            memory_storages={own.base_uri: own},
            random=Random(seed),
            seed=seed,
        )

    def new_lineage(self) -> str:
        """Return the identity of a history; scenarios of one seed have equal ones."""
        return f"history-{self.seed}-{next(self._lineages)}"

    def memory_at(self, uri: str | None) -> MemoryCheckpointStorage:
        """Return the memory storage at a URI (None: the pipeline's own), an empty one where nothing was written.

        Raises InvalidRequest for a storage of another kind: what is in it cannot be looked at this way.
        """
        storages = self.memory_storages
        found = next(iter(storages.values())) if uri is None else storages.get(uri.rstrip("/"))
        if found is None:
            return MemoryCheckpointStorage(uri or "memory://")
        while isinstance(found, FaultyStorage):
            found = found.inner
        if not isinstance(found, MemoryCheckpointStorage):
            raise InvalidRequest(f"only a memory storage can be looked into, {found.base_uri} is none")
        return found
