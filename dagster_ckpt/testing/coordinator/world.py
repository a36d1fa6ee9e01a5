"""World that outlives an attempt (the store, the storages, the clock), and the attempt that all parts work on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random

from dagster_ckpt.core.checkpoint.shown import Moved
from dagster_ckpt.core.coordinator.effects import CoordinatorEvent
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.paths import CheckpointPaths
from dagster_ckpt.errors import InvalidRequest, NotFound
from dagster_ckpt.ports import CheckpointStorage, CoordinatorStore
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.testing.background import ManualBackground
from dagster_ckpt.testing.clock import ManualClock
from dagster_ckpt.testing.faulty import FaultyStorage
from dagster_ckpt.testing.gateway import RecordingGateway
from dagster_ckpt.testing.graph import number_of, unknown_stage
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


@dataclass(kw_only=True)
class PlayedAttempt:
    """One process of one attempt."""

    graph: PipelineGraph
    world: ScenarioWorld
    gateway: RecordingGateway = field(default_factory=RecordingGateway)
    background: ManualBackground = field(default_factory=ManualBackground)
    events: list[CoordinatorEvent] = field(default_factory=list)
    """Everything the listeners were told, in order."""
    moved: list[Moved] = field(default_factory=list)
    """Everything that was told of the pointer of readers, in order."""
    opened: CheckpointCoordinator | None = None
    """Another one after ``recover``."""

    @property
    def coordinator(self) -> CheckpointCoordinator:
        """The coordinator that is open now."""
        assert self.opened is not None, "the coordinator is opened with the harness"
        return self.opened

    @property
    def paths(self) -> CheckpointPaths:
        """Paths of the pipeline's files."""
        return CheckpointPaths(self.graph.pipeline)

    def check_task(self, stage: str, subtask: int = 0) -> None:
        """Raise NotFound, naming what there is, for a stage or a subtask that the graph does not have."""
        spec = self.graph.by_uid.get(StageUid(stage))
        if spec is None:
            raise unknown_stage(stage, self.graph.by_uid)
        if not 0 <= subtask < spec.parallelism:
            raise NotFound(f"stage {stage!r} has {spec.parallelism} subtasks, so no subtask {subtask}")

    def check_triggered(self, checkpoint_id: int) -> CheckpointId:
        """Return the id. Raises NotFound for a checkpoint that was never triggered."""
        number, following = number_of(checkpoint_id), self.coordinator.record.next_id
        if not 1 <= number < following:
            raise NotFound(f"checkpoint {number} was never triggered: the next one will be {following}")
        return number
