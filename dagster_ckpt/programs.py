"""Runs of a pipeline in a plain program: spark-submit, a notebook, a job of a managed platform. Public names.

The same guarantees, coordinator store and snapshots as under Dagster, whose resources say where everything is; there
is no Dagster instance, no run of Dagster's, no event. What is said goes to the logger ``dagster_ckpt.run``. A program
that Dagster launched calls ``pipes.run_launched`` instead.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.resources.spark import SparkSessionResource
from dagster_ckpt.program_run import EpochEnd, Host, StreamEnd, epoch_of, stream_of
from dagster_ckpt.spark.streaming.restart import RestartStrategy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline

__all__ = ["EpochEnd", "StreamEnd", "run_epoch", "run_stream"]


def run_epoch(
    pipeline: CheckpointedPipeline,
    *,
    coordinator: CheckpointCoordinatorResource,
    spark: SparkSession | SparkSessionResource | None = None,
    restore: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    stages: Mapping[str, Mapping[str, Any]] | None = None,
    resources: Mapping[str, Any] | None = None,
    run_id: str = "",
) -> EpochEnd:
    """Process what has arrived, stage by stage, take a checkpoint, publish; as the pipeline's Dagster job does.

    Args:
        pipeline: what to run.
        coordinator: where checkpoints live and how they are taken. Its places must be given (``base_dir``, or each).
        spark: a session, which is left running, or how one is started; None: the process's, or one of ours.
        restore: ``restore_from`` and its like, as in the run config of op ``restore``; default: the latest.
        settings: how this run's checkpoints are taken, over the pipeline's and the coordinator's.
        stages: config of stages by uid (``context.config``).
        resources: what stages and hooks find in ``context.resources``.
        run_id: name of this run in the coordinator store; a new try of a failed run has its name. Default: a new one.

    Raises:
        InvalidRequest: settings that cannot be, a pipeline or snapshot that does not fit.
        Declined: more checkpoints failed than are tolerated, or storage failed more often than is retried.
        Fenced: another run has taken the pipeline over.
        Unavailable: the store cannot be reached; or the checkpoint is complete and tables do not show its rows yet.
    """
    return epoch_of(
        Host(run_id=run_id),
        pipeline,
        coordinator=coordinator,
        spark=spark,
        restore=restore,
        settings=settings,
        stages=stages,
        resources=resources,
    )


def run_stream(
    pipeline: CheckpointedPipeline,
    *,
    coordinator: CheckpointCoordinatorResource,
    spark: SparkSession | SparkSessionResource | None = None,
    restore: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    stages: Mapping[str, Mapping[str, Any]] | None = None,
    resources: Mapping[str, Any] | None = None,
    run_id: str = "",
    strategy: RestartStrategy | None = None,
    trigger_interval: float = 0.0,
    stopping: threading.Event | None = None,
) -> StreamEnd:
    """Run all stages at once until the sources end or somebody stops the run, with checkpoints on a timer.

    SIGTERM and SIGINT stop it between two batches, where it runs in the main thread; ``stopping`` does from anywhere.
    Savepoints and stops are asked of it as of a stream under Dagster (``dagster-ckpt savepoint``).

    Args:
        pipeline, coordinator, spark, restore, settings, stages, resources, run_id: as in ``run_epoch``.
        strategy: what follows when a stage dies; default: restarts with growing delays.
        trigger_interval: least seconds between two batches of a stage; 0: as fast as there is data.
        stopping: set it to end the run at the next batch boundary.

    Raises as ``run_epoch``; Declined where the restart strategy gives up.
    """
    return stream_of(
        Host(run_id=run_id),
        pipeline,
        coordinator=coordinator,
        spark=spark,
        restore=restore,
        settings=settings,
        stages=stages,
        resources=resources,
        strategy=strategy,
        trigger_interval=trigger_interval,
        stopping=stopping,
    )
