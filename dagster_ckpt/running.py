"""One host for every run of a pipeline: an op of Dagster's, a plain program, a program that Dagster launched.

Whatever starts a run fills in a ``Host``, once; epochs and streams are made from it, and nothing of Dagster is in here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dagster_ckpt.core.config import CheckpointConfig, RestoreOptions
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.supervision.approval import refuse_outdated
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ports import CheckpointStorage, CoordinatorStore
from dagster_ckpt.runtime.attempt_setup import Admit, Listener, Ownership
from dagster_ckpt.runtime.record_store import NOBODY, Operator
from dagster_ckpt.spark.attempt.own_objects import StageArguments
from dagster_ckpt.spark.attempt.pipeline_setup import PipelineSetup
from dagster_ckpt.spark.epoch.attempt import EpochAttempt, NotPublished
from dagster_ckpt.spark.stage_report import Reporter, TableChanged, not_published
from dagster_ckpt.spark.streaming.run import StoppedWithSavepoint
from dagster_ckpt.spark.streaming.running_stage import StreamingSettings
from dagster_ckpt.spark.streaming.service import ServiceEnd, StreamingService
from dagster_ckpt.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
    from dagster_ckpt.core.checkpoint.record import CoordinatorRecord


class RunPlaces(Protocol):
    """Where everything of a run is kept, and how its checkpoints are taken: the coordinator resource."""

    @property
    def resolved_work_dir(self) -> Path:
        """Folder for running queries."""
        ...

    @property
    def snapshot_retries(self) -> int:
        """How often a stage is run again on transient errors of checkpoint storage."""
        ...

    @property
    def snapshot_retry_delay(self) -> float:
        """Seconds before the first such retry; doubles."""
        ...

    @property
    def concurrent_runs(self) -> str:
        """Treatment of another run that is alive, where the run itself says nothing."""
        ...

    def store(self) -> CoordinatorStore:
        """The coordinator store."""
        ...

    def storage(self, pipeline: CheckpointedPipeline) -> CheckpointStorage:
        """The pipeline's checkpoint storage."""
        ...

    def open_storage(self, uri: str) -> CheckpointStorage:
        """Checkpoint storage at a URI."""
        ...

    def resolved_table_dir(self, pipeline: CheckpointedPipeline) -> Path:
        """Folder of the pipeline's tables."""
        ...

    def checkpoint_config(
        self, pipeline: CheckpointedPipeline, run: Mapping[str, Any] | None = None
    ) -> CheckpointConfig:
        """The run's settings over the pipeline's over these. Raises InvalidRequest."""
        ...


@dataclass(frozen=True, kw_only=True)
class Host:
    """Host of one run of a pipeline: what it gives to the run, and what it is told."""

    pipeline: CheckpointedPipeline
    places: RunPlaces
    spark: Callable[[], SparkSession]
    run_id: str
    """Owner of the pipeline while it runs."""
    root: str = ""
    reporter: Reporter
    listeners: Sequence[Listener] = ()
    tell_tables: Callable[[TableChanged], None] = lambda change: None
    restore: RestoreOptions = RestoreOptions()
    approved: str = ""
    """Approval of the restore; empty: it needs none."""
    operator: Operator = NOBODY
    settings: Mapping[str, Any] = field(default_factory=dict)
    """How this run's checkpoints are taken."""
    set_aside: Sequence[StageUid] = ()
    arguments: Callable[[StageUid], StageArguments] = lambda uid: StageArguments()
    resources: Any = None
    """Resources for the pipeline's hooks."""

    @cached_property
    def config(self) -> CheckpointConfig:
        """The run's settings over the pipeline's over the places'. Raises InvalidRequest."""
        return self.places.checkpoint_config(self.pipeline, self.settings)

    def run_all(self, attempt: EpochAttempt) -> None:
        """Run all stages of an epoch, and a stage again where the failure manager decides so."""
        attempt.run_all(retries=self.places.snapshot_retries, pause=self.places.snapshot_retry_delay)

    def epoch(self, admit: Admit, *, ownership: Ownership = Ownership.NEW_ATTEMPT) -> EpochAttempt:
        """Claim the pipeline for an epoch. Raises as ``EpochAttempt`` does."""
        return EpochAttempt(self._setup(self.config.of_epoch, admit), ownership=ownership)

    def stream(self, admit: Admit, *, trigger_interval: float = 0.0, **more: Any) -> StreamingService:
        """Return a stream, which claims the pipeline when it runs; ``more`` as ``StreamingService`` has it."""
        settings = StreamingSettings(
            trigger_interval=trigger_interval, snapshot_retries=self.places.snapshot_retries
        )
        return StreamingService(setup=self._setup(self.config.of_stream, admit), settings=settings, **more)

    def _setup(self, config: CheckpointConfig, admit: Admit) -> PipelineSetup:
        places = self.places
        return PipelineSetup(
            pipeline=self.pipeline,
            config=config,
            store=places.store(),
            storage=places.storage(self.pipeline),
            open_storage=places.open_storage,
            spark=self.spark,
            work_dir=places.resolved_work_dir,
            table_dir=places.resolved_table_dir(self.pipeline),
            owner=self.run_id,
            root=self.root or self.run_id,
            reporter=self.reporter,
            restore=self.restore,
            operator=self.operator,
            set_aside=self.set_aside,
            listeners=self.listeners,
            tell_tables=self.tell_tables,
            library_version=__version__,
            storage_retries=places.snapshot_retries,
            hook_resources=self.resources,
            arguments=self.arguments,
            admit=partial(self._admit, admit) if self.approved else admit,
        )

    def _admit(self, admit: Admit, record: CoordinatorRecord) -> None:
        """Admit as ``admit`` does, and refuse a claim on a record that is not as the restore was approved."""
        admit(record)
        refuse_outdated(self.approved, record, self.restore, root=self.root or self.run_id)


def run_to_end(service: StreamingService) -> ServiceEnd:
    """Run a stream to its end.

    Raises NotPublished where it was stopped and tables do not show all rows yet: nobody looks at a run that succeeded.
    """
    end = service.run()
    late = not_published(service.unpublished)
    if late and isinstance(end, StoppedWithSavepoint):
        raise NotPublished(f"{end.line}, which holds all rows, and the next run publishes the rest: {late}")
    if late:
        service.setup.reporter.warn(f"the next run publishes the rest: {late}")
    return end


def stage_arguments(
    pipeline: CheckpointedPipeline, stages: Mapping[str, Any], resources: Any
) -> dict[StageUid, StageArguments]:
    """Return each stage's config and resources. Raises InvalidRequest for config of a stage there is not."""
    unknown = sorted(set(stages) - set(pipeline.stages))
    if unknown:
        raise InvalidRequest(
            f"config of stage {unknown[0]!r}: pipeline {pipeline.name!r} has the stages {', '.join(pipeline.stages)}"
        )
    return {uid: StageArguments(config=stages.get(uid, {}), resources=resources) for uid in pipeline.stages}
