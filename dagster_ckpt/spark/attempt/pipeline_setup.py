"""Setup of a run of a pipeline: what its host gives, and how the coordinator reaches its stages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dagster_ckpt.core.checkpoint.tables import ShownTables
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.messages import NotifyAborted, NotifyComplete, TriggerStages
from dagster_ckpt.runtime.attempt_setup import RunSetup
from dagster_ckpt.spark.attempt.own_objects import StageArguments
from dagster_ckpt.spark.attempt.sinks import PipelineSinks
from dagster_ckpt.spark.cluster.probe import prove_executors
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.exchange.mounts import exchange_of, prove_reached
from dagster_ckpt.spark.plan.sources import Choose, choose_chains
from dagster_ckpt.spark.snapshot.restore import drop_local_copies_before, drop_local_copy
from dagster_ckpt.spark.stage_report import Reporter, TableChanged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


def proven_session(
    given: Callable[[], SparkSession],
    places: Mapping[str, Path],
    say: Callable[[str], None],
    bounded: Callable[[SparkSession], AbstractContextManager[None]],
) -> Callable[[], SparkSession]:
    """Return a function that gives an attempt's session, once every executor there is by then was probed.

    Calling it raises InvalidRequest for an executor that could lose rows, or cannot run stages. ``bounded`` says how
    long executors are waited for.
    """

    def session() -> SparkSession:
        for name, place in places.items():
            exchange = exchange_of(place)
            if exchange is not None:
                prove_reached(exchange, name)
        spark = given()
        with bounded(spark):
            prove_executors(spark, places, say)
        return spark

    return session


def shared_places(pipeline: CheckpointedPipeline, *, work_dir: Path, table_dir: Path) -> dict[str, Path]:
    """Return the folders that executors write to, by the name people know them by."""
    places = {"work_dir": work_dir / pipeline.name}
    for uid, stage in pipeline.stages.items():
        folder = None if stage.table is None else stage.target.local_folder(stage.table.name)
        if folder is None:
            continue  # staged below work_dir
        table = Path(folder)
        if table.is_absolute():
            places[f"the table of sink {uid}"] = table if table.is_dir() else table.parent
        else:
            places["table_dir"] = table_dir
    if pipeline.derived:
        places["table_dir"] = table_dir
    return places


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


@dataclass
class StageGateway:
    """Publishes tables and drops local copies; subclasses reach the stages themselves."""

    runs_what_finished: ClassVar[bool] = True
    """A source that had finished reads what has come since."""
    tables: PipelineSinks
    reporter: Reporter
    attempt: AttemptDirectory | None = None
    """Set once the working directory is restored."""
    publishing: threading.Lock = field(default_factory=threading.Lock)
    """Held while tables are published."""
    all_shown: Callable[[ShownTables], None] = lambda shown: None
    """Called with what every table shows; set once the coordinator is open."""
    notified: CheckpointId | None = None
    """Checkpoint of whose completion this process has heard last: its tables were published, or it knows why not."""

    def trigger(self, message: TriggerStages) -> None:
        """Ask the stages to start a checkpoint."""
        raise NotImplementedError

    def notify_complete(self, message: NotifyComplete) -> None:
        """Publish what the checkpoint contains in every two-phase table; only its local copies are kept."""
        if self.attempt is None:
            return
        with self.publishing:
            shown = self.publish(self.attempt, message)
            if shown is not None:
                self.all_shown(shown)
        self.notified = message.checkpoint_id
        for uid in self.tables.pipeline.stages:
            drop_local_copies_before(self.attempt.local_copies(uid), message.checkpoint_id)

    def publish(self, attempt: AttemptDirectory, message: NotifyComplete) -> ShownTables | None:
        """Publish what the checkpoint contains in every two-phase table; nobody else publishes meanwhile.

        Returns what all of them show; None where one does not show this checkpoint.
        """
        try:
            return self.tables.publish(attempt, message.checkpoint_id, message.permit, self.reporter)
        except Exception as error:  # of which one is not known
            self.tables.none_published(str(error))
            raise

    def notify_aborted(self, message: NotifyAborted) -> None:
        """Keep no local copy of it; what was prepared is published by the next checkpoint that completes."""
        if self.attempt is None:
            return
        for uid in self.tables.pipeline.stages:
            drop_local_copy(self.attempt.local_copies(uid), message.checkpoint_id)
