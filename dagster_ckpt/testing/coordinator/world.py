"""World that outlives an attempt (the store, the storages, the clock), and the attempt that all parts work on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from itertools import count
from random import Random
from typing import TYPE_CHECKING, TypeVar

from dagster_ckpt.core.checkpoint.tables import Moved
from dagster_ckpt.core.coordinator.effects import CoordinatorEvent
from dagster_ckpt.core.graph import Edge, EdgePattern, PipelineGraph, StageSpec
from dagster_ckpt.core.ids import CheckpointId, StageUid, pipeline_id
from dagster_ckpt.core.paths import CheckpointPaths
from dagster_ckpt.errors import CheckpointError, InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from dagster_ckpt.ports import CheckpointStorage, CoordinatorStore
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.testing.faults import FailNext, RecordCalls
from dagster_ckpt.testing.faulty import (
    Call,
    Effect,
    FaultyStorage,
    FaultyStore,
    Operation,
    RecordingGateway,
    SimulatedCrash,
)
from dagster_ckpt.testing.memory import (
    ManualBackground,
    ManualClock,
    MemoryCheckpointStorage,
    MemoryCoordinatorStore,
    NestedStorage,
)

if TYPE_CHECKING:
    from dagster_ckpt.core.messages import TriggerStages

E = TypeVar("E", bound=Enum)

EdgeLike = Edge | tuple[str, str] | tuple[str, str, str]
"""An edge, or (upstream, downstream), or (upstream, downstream, "pointwise" | "all_to_all")."""


def build_graph(
    pipeline: str,
    stages: Mapping[str, int] | Sequence[StageSpec],
    edges: Sequence[EdgeLike],
    union_state: frozenset[str],
) -> PipelineGraph:
    """Return the graph a scenario names: stages with their parallelism, edges as pairs (and a pattern).

    Raises NotFound for an unknown stage, InvalidRequest for what is no stage, edge or pattern.
    """
    if isinstance(stages, Mapping):
        if odd := [f"{uid}: {width!r}" for uid, width in stages.items() if not isinstance(width, int)]:
            raise InvalidRequest(f"stages maps each uid to its parallelism, a number, got {odd[0]}")
        specs = tuple(
            StageSpec(uid=StageUid(uid), parallelism=width, uses_union_state=uid in union_state)
            for uid, width in stages.items()
        )
    else:
        specs = tuple(stages)
        if other := [s for s in specs if not isinstance(s, StageSpec)]:
            raise InvalidRequest(f"stages is {{uid: parallelism}} or a list of StageSpec, got {other[0]!r}")
    if strange := sorted(union_state - {s.uid for s in specs}):
        raise unknown_stage(strange[0], [s.uid for s in specs])
    return PipelineGraph(pipeline=pipeline_id(pipeline), stages=specs, edges=tuple(_edge(e) for e in edges))


def _edge(given: EdgeLike) -> Edge:
    if isinstance(given, Edge):
        return given
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        raise InvalidRequest(f"an edge is (upstream, downstream) or one more with the pattern, got {given!r}")
    pattern = one_of(EdgePattern, given[2], "pattern") if len(given) == 3 else EdgePattern.ALL_TO_ALL
    return Edge(upstream=StageUid(given[0]), downstream=StageUid(given[1]), pattern=pattern)


def unknown_stage(uid: str, stages: Iterable[str]) -> NotFound:
    """Return the error for a stage that is not there; it names those that are."""
    return NotFound(f"there is no stage {uid!r}: the stages are {', '.join(sorted(stages))}")


def number_of(given: int) -> CheckpointId:
    """Return a checkpoint's id. Raises InvalidRequest for anything but a number."""
    if not isinstance(given, int):
        raise InvalidRequest(f"checkpoints are named by their number, got {given!r}")
    return CheckpointId(given)


def one_of(kind: type[E], given: E | str, what: str) -> E:
    """Return the member ``given`` is or names, by its name or its value, in any case.

    Raises InvalidRequest that lists the names.
    """
    if isinstance(given, kind):
        return given
    wanted = str(given).lower()
    for member in kind:
        if wanted in (member.name.lower(), str(member.value).lower()):
            return member
    raise InvalidRequest(f"{what} must be one of {', '.join(m.name for m in kind)}, got {given!r}")


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
