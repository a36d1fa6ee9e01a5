"""Consumer groups that are told the offsets of completed checkpoints, so that lag tools see the pipeline."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from dagster_ckpt.authoring.targets import SourceOrigin
from dagster_ckpt.core.coordinator.effects import CheckpointCompleted, CoordinatorEvent
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.restore.horizon import Positions
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.source.positions import TopicLog, source_positions
from dagster_ckpt.spark.stage_report import Reporter

if TYPE_CHECKING:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


class GroupOffsets:
    """A listener that tells groups in a thread of its own: a broker that is slow holds up no checkpoint.

    Of checkpoints that complete meanwhile the newest is told. The thread lives no longer than it has something to tell,
    and the process ends after it, so that the last checkpoint of a run is told.
    """

    def __init__(self, pipeline: CheckpointedPipeline, reporter: Reporter) -> None:
        self._pipeline, self._reporter = pipeline, reporter
        self._lock = threading.Lock()
        self._next: CheckpointMetadata | None = None
        self.thread: threading.Thread | None = None

    @staticmethod
    def wanted(pipeline: CheckpointedPipeline) -> bool:
        """Return True where a source names a group."""
        return any(_group(stage.reads) for stage in pipeline.authored.stages.values())

    def __call__(self, event: CoordinatorEvent) -> None:
        """Hear one event of the coordinator."""
        if not isinstance(event, CheckpointCompleted):
            return
        with self._lock:
            self._next = event.metadata
            if self.thread is None:
                self.thread = threading.Thread(target=self._tell_all, name="group-offsets", daemon=False)
                self.thread.start()

    def _tell_all(self) -> None:
        while True:
            with self._lock:
                metadata, self._next = self._next, None
                if metadata is None:
                    self.thread = None
                    return
            self._tell(metadata)

    def _tell(self, metadata: CheckpointMetadata) -> None:
        for at in source_positions(metadata, self._pipeline):
            group = _group(at.origin)
            if at.origin is None or not group:
                continue
            try:
                _commit(at.origin, group, at.positions)
            except CheckpointError as error:
                self._reporter.warn(
                    f"group {group!r} was not told the offsets of checkpoint {metadata.checkpoint_id}: {error}"
                )


def _commit(origin: SourceOrigin, group: str, positions: Positions) -> None:
    log: TopicLog = origin.open()
    log.commit(group, positions)


def _group(origin: object) -> str:
    return origin.group_told() if isinstance(origin, SourceOrigin) else ""
