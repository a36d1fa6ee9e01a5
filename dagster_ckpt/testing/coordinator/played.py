"""The attempt a scenario plays: what every part of its harness works on."""

from __future__ import annotations

from dataclasses import dataclass, field

from dagster_ckpt.core.checkpoint.shown import Moved
from dagster_ckpt.core.coordinator.events import CoordinatorEvent
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.paths import CheckpointPaths
from dagster_ckpt.errors import NotFound
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.testing.background import ManualBackground
from dagster_ckpt.testing.coordinator.world import ScenarioWorld
from dagster_ckpt.testing.gateway import RecordingGateway
from dagster_ckpt.testing.graph import number_of, unknown_stage


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
