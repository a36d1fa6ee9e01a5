"""Setup by which an attempt of a pipeline is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.config import CheckpointConfig, RestoreOptions
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.ports import CheckpointStorage, Clock, CoordinatorStore, SystemClock
from dagster_ckpt.runtime.attempt_setup import Admit, Listener, admit_anyone
from dagster_ckpt.runtime.audit import NOBODY, Operator
from dagster_ckpt.spark.attempt.places import proven_session, shared_places
from dagster_ckpt.spark.attempt.stage_query import StageArguments
from dagster_ckpt.spark.plan.chains import Choose, choose_chains
from dagster_ckpt.spark.stage_report import Reporter, TableChanged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


@dataclass(kw_only=True)
class PipelineSetup:
    """Setup by which an attempt of a pipeline is opened."""

    pipeline: CheckpointedPipeline
    config: CheckpointConfig
    store: CoordinatorStore
    storage: CheckpointStorage
    open_storage: Callable[[str], CheckpointStorage]
    session: Callable[[], SparkSession]
    work_dir: Path
    table_dir: Path
    owner: str
    """The Dagster run."""
    root: str = ""
    """First run of a chain of re-executions: what an earlier try completed beats the restore point of them all."""
    reporter: Reporter
    restore: RestoreOptions = RestoreOptions()
    operator: Operator = NOBODY
    """Who chose what to restore, and what they were shown."""
    set_aside: Sequence[StageUid] = ()
    """Sinks whose waiting rows are written to files instead of being shown."""
    listeners: Sequence[Listener] = ()
    clock: Clock = field(default_factory=SystemClock)
    library_version: str = ""
    tell_tables: Callable[[TableChanged], None] = lambda change: None
    """Told of every sink whose rows have changed."""
    hook_resources: Any = None
    """Dagster resources for the pipeline's hooks."""
    planning: Callable[[StageUid], StageArguments] = lambda uid: StageArguments()
    """Arguments of a stage while its plan is looked at, to choose the chains of a pipeline that begins."""
    choose: Choose = choose_chains
    """Chooses the chains of a pipeline that begins."""
    admit: Admit = admit_anyone

    def __post_init__(self) -> None:
        """Let nobody have the session before its executors are proven."""
        places = shared_places(self.pipeline, work_dir=self.work_dir, table_dir=self.table_dir)
        self.session = proven_session(self.session, places, self.reporter.info, self.bounded)

    def bounded(self, spark: SparkSession) -> AbstractContextManager[None]:
        """Bound the wait for executors; an epoch waits until the cluster has room."""
        return nullcontext()
