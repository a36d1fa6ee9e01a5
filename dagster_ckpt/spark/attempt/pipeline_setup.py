"""Setup of a run of a pipeline: what its host gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.runtime.attempt_setup import RunSetup
from dagster_ckpt.spark.attempt.places import proven_session, shared_places
from dagster_ckpt.spark.attempt.stage_query import StageArguments
from dagster_ckpt.spark.plan.chains import Choose, choose_chains
from dagster_ckpt.spark.stage_report import Reporter, TableChanged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


@dataclass(frozen=True, kw_only=True)
class PipelineSetup(RunSetup):
    """Setup of a run of a pipeline: what its attempts are opened with."""

    pipeline: CheckpointedPipeline
    spark: Callable[[], SparkSession]
    """Returns the session, started when it is first wanted."""
    work_dir: Path
    table_dir: Path
    reporter: Reporter
    set_aside: Sequence[StageUid] = ()
    """Sinks whose waiting rows are written to files instead of being shown."""
    tell_tables: Callable[[TableChanged], None] = lambda change: None
    """Told of every sink whose rows have changed."""
    hook_resources: Any = None
    """Dagster resources for the pipeline's hooks."""
    arguments: Callable[[StageUid], StageArguments] = lambda uid: StageArguments()
    """Config and resources of a stage."""
    choose: Choose = choose_chains
    """Chooses the chains of a pipeline that begins."""
    bounded: Callable[[SparkSession], AbstractContextManager[None]] = lambda spark: nullcontext()
    """Bounds the wait for executors; an epoch waits until the cluster has room."""

    @cached_property
    def session(self) -> Callable[[], SparkSession]:
        """Returns the session, whose executors were proven before anybody has it."""
        places = shared_places(self.pipeline, work_dir=self.work_dir, table_dir=self.table_dir)
        return proven_session(self.spark, places, self.reporter.info, self.bounded)
