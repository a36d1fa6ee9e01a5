"""Runs of a pipeline in a plain program: spark-submit, a notebook, a job of a managed platform. Public names.

The same guarantees, coordinator store and snapshots as under Dagster, whose resources say where everything is; there
is no Dagster instance, no run of Dagster's, no event. What is said goes to the logger ``dagster_ckpt.run``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.location import SnapshotLocation
from dagster_ckpt.core.supervision.concurrent_runs import ConcurrentRuns
from dagster_ckpt.dagster.folders import refuse_impossible
from dagster_ckpt.dagster.jobs.streaming import streaming_config
from dagster_ckpt.dagster.resources import CheckpointCoordinatorResource
from dagster_ckpt.dagster.spark_resource import SparkSessionResource
from dagster_ckpt.errors import Declined, Fenced, InvalidRequest
from dagster_ckpt.runtime.attempt_setup import Admit
from dagster_ckpt.runtime.record_store import RecordStore
from dagster_ckpt.runtime.turn import Skipped, Turn
from dagster_ckpt.spark.attempt.pipeline_setup import PipelineSetup
from dagster_ckpt.spark.attempt.stage_query import StageArguments
from dagster_ckpt.spark.epoch.attempt import EpochAttempt
from dagster_ckpt.spark.epoch.run import FailRun, RetryStage
from dagster_ckpt.spark.stage_report import not_published
from dagster_ckpt.spark.streaming.restart import ExponentialDelay, RestartStrategy
from dagster_ckpt.spark.streaming.run import EndOfData, StoppedWithSavepoint, TakenOver
from dagster_ckpt.spark.streaming.service import GaveUp, Interrupted, ServiceEnd, StreamingService
from dagster_ckpt.spark.streaming.settings import StreamingSettings
from dagster_ckpt.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline

__all__ = ["EpochEnd", "StreamEnd", "run_epoch", "run_stream"]

log = logging.getLogger("dagster_ckpt.run")

_PLACES = ("store_url", "checkpoint_dir", "savepoint_dir", "work_dir", "table_dir")


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """End of an epoch run."""

    run_id: str
    checkpoint: SnapshotLocation | None
    """Its checkpoint; None where none completed, and fewer failed than are tolerated."""
    skipped: str = ""
    """Why the run did nothing: another one is alive, and ``concurrent_runs`` is ``skip``."""


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """End of a streaming run that ended well."""

    run_id: str
    savepoint: str = ""
    """URI of the savepoint it was stopped with."""
    checkpoint_id: int | None = None
    """The final checkpoint, where all bounded sources came to their end."""
    interrupted: bool = False
    """It was asked to stop (SIGTERM, SIGINT), and the next run goes on from its last checkpoint."""
    skipped: str = ""


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
    options = RestoreOptions.of(**(restore or {}))
    with _run(pipeline, coordinator, spark, stages=stages, resources=resources, run_id=run_id) as run:
        config = run.coordinator.checkpoint_config(pipeline, settings or {})

        def begin(admit: Admit) -> EpochAttempt:
            setup = run.setup(restore=options, admit=admit)
            # An epoch ends with its checkpoint: the timer is for the same pipeline's streams.
            return EpochAttempt(PipelineSetup(config=config.model_copy(update={"interval": None}), **setup))

        attempt = run.turn().take(begin)
        if isinstance(attempt, Skipped):
            return EpochEnd(run.run_id, None, attempt.why)
        try:
            with _told_as_declined():
                _ = attempt.directory
                attempt.run_all(
                    run.arguments,
                    retries=run.coordinator.snapshot_retries,
                    pause=run.coordinator.snapshot_retry_delay,
                )
                completed = attempt.complete()
        finally:
            attempt.close_after_failure()  # nothing to do where it was closed in order
        return EpochEnd(run.run_id, None if completed is None else completed.location)


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
    options = RestoreOptions.of(**(restore or {}))
    with _run(pipeline, coordinator, spark, stages=stages, resources=resources, run_id=run_id) as run:
        config = streaming_config(run.coordinator, pipeline, settings)

        def stream(admit: Admit) -> ServiceEnd:
            service = StreamingService(
                config=config,
                strategy=strategy or ExponentialDelay(),
                settings=StreamingSettings(
                    trigger_interval=trigger_interval, snapshot_retries=run.coordinator.snapshot_retries
                ),
                arguments={uid: run.arguments(uid) for uid in pipeline.stages},
                stopping=stopping or threading.Event(),
                **run.setup(restore=options, admit=admit),
            )
            with _stopped_by_signals(service.stopping):
                end = service.run()
            late = not_published(service.unpublished)
            if late:
                log.warning("the next run publishes the rest: %s", late)
            return end

        end = run.turn().take(stream)
        return StreamEnd(run.run_id, skipped=end.why) if isinstance(end, Skipped) else _ended(run.run_id, end)


# --- one run ----------------------------------------------------------------------------------------------------


class _Lines:
    """Reporter of a plain program."""

    def info(self, message: str) -> None:
        log.info(message)

    def warn(self, message: str) -> None:
        log.warning(message)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What both kinds of run are opened with."""

    pipeline: CheckpointedPipeline
    coordinator: CheckpointCoordinatorResource
    session: Callable[[], SparkSession]
    stages: Mapping[str, Mapping[str, Any]]
    resources: Any
    run_id: str

    def setup(self, **more: Any) -> dict[str, Any]:
        """Return the arguments of a ``PipelineSetup``, but for its config."""
        where = self.coordinator
        return {
            "pipeline": self.pipeline,
            "store": where.store(),
            "storage": where.storage(self.pipeline),
            "open_storage": where.open_storage,
            "session": self.session,
            "work_dir": where.resolved_work_dir,
            "table_dir": where.resolved_table_dir(self.pipeline),
            "owner": self.run_id,
            "root": self.run_id,
            "reporter": _Lines(),
            "library_version": __version__,
            "hook_resources": self.resources,
            "planning": self.arguments,
            "concurrent_stages": where.concurrent_stages,
            **more,
        }

    def arguments(self, uid: StageUid) -> StageArguments:
        return StageArguments(config=self.stages.get(uid, {}), resources=self.resources)

    def turn(self) -> Turn:
        return Turn(
            records=RecordStore(self.coordinator.store()),
            pipeline=self.pipeline.name,
            run_id=self.run_id,
            root=self.run_id,
            say=log.info,
            choice=ConcurrentRuns.of(self.coordinator.concurrent_runs),
            how_to_stop="stop it with a savepoint (dagster-ckpt savepoint --stop), or terminate it",
        )


@contextlib.contextmanager
def _run(
    pipeline: CheckpointedPipeline,
    coordinator: CheckpointCoordinatorResource,
    spark: SparkSession | SparkSessionResource | None,
    *,
    stages: Mapping[str, Mapping[str, Any]] | None,
    resources: Mapping[str, Any] | None,
    run_id: str,
) -> Iterator[_Run]:
    unknown = sorted(set(stages or {}) - set(pipeline.stages))
    if unknown:
        known = ", ".join(pipeline.stages)
        raise InvalidRequest(
            f"config of stage {unknown[0]!r}: pipeline {pipeline.name!r} has the stages {known}"
        )
    _refuse_without_places(coordinator)
    with contextlib.ExitStack() as opened:
        where = opened.enter_context(coordinator.process_config_and_initialize_cm())
        if os.environ.get("DAGSTER_HOME"):
            where.use_instance(opened.enter_context(dg.DagsterInstance.get()))
        refuse_impossible(where, pipeline)
        yield _Run(
            pipeline=pipeline,
            coordinator=where,
            session=_session_of(spark, opened),
            stages=stages or {},
            resources=SimpleNamespace(**(resources or {})),
            run_id=run_id or f"program-{uuid.uuid4()}",
        )


def _session_of(
    spark: SparkSession | SparkSessionResource | None, opened: contextlib.ExitStack
) -> Callable[[], SparkSession]:
    chosen = SparkSessionResource() if spark is None else spark
    if not isinstance(chosen, SparkSessionResource):
        session = chosen
        return lambda: session
    resource = opened.enter_context(chosen.process_config_and_initialize_cm())
    return lambda: resource.session


def _refuse_without_places(where: CheckpointCoordinatorResource) -> None:
    """Raise InvalidRequest where a place would default into a Dagster instance that nobody has chosen."""
    missing = [name for name in _PLACES if not getattr(where, name)]
    if missing and not where.base_dir and not os.environ.get("DAGSTER_HOME"):
        raise InvalidRequest(
            f"outside of Dagster nothing says where {' and '.join(missing)} are: give the coordinator base_dir, or "
            "each of them"
        )


@contextlib.contextmanager
def _told_as_declined() -> Iterator[None]:
    """Tell decisions of the failure manager as errors of ours."""
    try:
        yield
    except (RetryStage, FailRun) as error:
        raise Declined(str(error)) from error


@contextlib.contextmanager
def _stopped_by_signals(stopping: threading.Event) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.signal(one, lambda *_: stopping.set()) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _ended(run_id: str, end: ServiceEnd) -> StreamEnd:
    match end:
        case StoppedWithSavepoint(uri):
            return StreamEnd(run_id, savepoint=uri)
        case EndOfData(number):
            return StreamEnd(run_id, checkpoint_id=None if number is None else int(number))
        case Interrupted():
            return StreamEnd(run_id, interrupted=True)
        case TakenOver(message):
            raise Fenced(message)
        case GaveUp(why, last):
            raise Declined(f"{last.message}; {why}") from last.error
