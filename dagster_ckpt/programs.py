"""Runs of a pipeline in a plain program: spark-submit, a notebook, a job of a managed platform. Public names.

The same guarantees, coordinator store and snapshots as under Dagster, whose resources say where everything is; there
is no Dagster instance, no run of Dagster's, no event. What is said goes to the logger ``dagster_ckpt.run``. A program
that Dagster launched calls ``pipes.run_launched`` instead.
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
from dagster_ckpt.core.paths import SnapshotLocation
from dagster_ckpt.core.supervision.ownership import ConcurrentRuns
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.resources.pipeline import gone_with_container, opened
from dagster_ckpt.dagster.resources.spark import SparkSessionResource
from dagster_ckpt.dagster.start import refuse_impossible
from dagster_ckpt.errors import CheckpointError, Declined, Fenced, InvalidRequest, untraced
from dagster_ckpt.running import Host, run_to_end, stage_arguments
from dagster_ckpt.runtime.attempt_setup import Admit
from dagster_ckpt.runtime.record_store import RecordStore
from dagster_ckpt.runtime.turn import RunTurn, Skipped
from dagster_ckpt.spark.cluster.lost import refuse_stopped
from dagster_ckpt.spark.epoch.attempt import EpochAttempt
from dagster_ckpt.spark.epoch.run import FailRun, RetryStage
from dagster_ckpt.spark.java.process import JavaErrors
from dagster_ckpt.spark.session import refuse_connect
from dagster_ckpt.spark.stage_report import Reporter
from dagster_ckpt.spark.streaming.restart import ExponentialDelay, RestartStrategy
from dagster_ckpt.spark.streaming.run import EndOfData, StoppedWithSavepoint, TakenOver
from dagster_ckpt.spark.streaming.service import GaveUp, Interrupted, ServiceEnd, StreamingService
from dagster_ckpt.spark.versions import refuse_pipelines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


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
    try:
        with hosted(
            pipeline,
            coordinator=coordinator,
            spark=spark,
            restore=restore,
            settings=settings,
            stages=stages,
            resources=resources,
            run_id=run_id,
        ) as host:
            return host_epoch(host, turn_of(host))
    except CheckpointError as error:
        raise untraced(error) from error.__cause__


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
    try:
        with hosted(
            pipeline,
            coordinator=coordinator,
            spark=spark,
            restore=restore,
            settings=settings,
            stages=stages,
            resources=resources,
            run_id=run_id,
        ) as host:
            return host_stream(
                host,
                turn_of(host),
                strategy=strategy or ExponentialDelay(),
                trigger_interval=trigger_interval,
                stopping=stopping or threading.Event(),
            )
    except CheckpointError as error:
        raise untraced(error) from error.__cause__


# --- one run ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def hosted(
    pipeline: CheckpointedPipeline,
    *,
    coordinator: CheckpointCoordinatorResource,
    spark: SparkSession | SparkSessionResource | None = None,
    restore: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    stages: Mapping[str, Mapping[str, Any]] | None = None,
    resources: Mapping[str, Any] | None = None,
    run_id: str = "",
    reporter: Reporter | None = None,
    opened_as: Callable[[CheckpointCoordinatorResource], None] = lambda coordinator: None,
    **told: Any,
) -> Iterator[Host]:
    """Yield the host of a run in this process, its resources open; ``told`` as ``Host`` has it.

    ``opened_as``: gets the coordinator resource, initialized.
    """
    options = RestoreOptions.of(**(restore or {}))
    found = SimpleNamespace(**(resources or {}))
    arguments = stage_arguments(pipeline, stages or {}, found)
    _refuse_without_places(coordinator)
    reporter = reporter or _Lines()
    own = SparkSessionResource() if spark is None else spark
    errors = JavaErrors()
    with errors.noted(), contextlib.ExitStack() as stack:
        where = stack.enter_context(opened(coordinator))
        if os.environ.get("DAGSTER_HOME"):
            where.use_instance(stack.enter_context(dg.DagsterInstance.get()))
        refuse_impossible(where, pipeline, own if isinstance(own, SparkSessionResource) else None)
        if lost := gone_with_container(where, pipeline):
            reporter.warn(lost)
        opened_as(where)
        with errors.kept():
            yield Host(
                pipeline=pipeline,
                places=where,
                spark=_session_of(own, stack),
                run_id=run_id or f"program-{uuid.uuid4()}",
                reporter=reporter,
                restore=options,
                settings=settings or {},
                arguments=arguments.__getitem__,
                resources=found,
                **told,
            )


def turn_of(
    host: Host,
    *,
    concurrent_runs: str = "",
    how_to_stop: str = "stop it with a savepoint (dagster-ckpt savepoint PIPELINE --stop suspend), or terminate it",
    **known: Any,
) -> RunTurn:
    """Return the turn of a run, as the coordinator says, or ``concurrent_runs``; ``known`` as ``RunTurn`` has it."""
    return RunTurn(
        records=RecordStore(host.places.store()),
        pipeline=host.pipeline.name,
        run_id=host.run_id,
        root=host.root or host.run_id,
        say=host.reporter.info,
        choice=ConcurrentRuns.of(host.places.concurrent_runs, concurrent_runs),
        how_to_stop=how_to_stop,
        **known,
    )


def host_epoch(
    host: Host, turn: RunTurn, *, began: Callable[[EpochAttempt], None] = lambda attempt: None
) -> EpochEnd:
    """Run an epoch in its turn; ``began``: gets the attempt, once it owns the pipeline."""
    _ = host.config  # settings that cannot be are refused before anything is waited for
    attempt = turn.take(host.epoch)
    if isinstance(attempt, Skipped):
        return EpochEnd(host.run_id, None, attempt.why)
    try:
        began(attempt)
        with _told_as_declined():
            _ = attempt.directory
            host.run_all(attempt)
            completed = attempt.complete()
    except BaseException as error:
        attempt.close_after_failure(error)
        raise
    attempt.close_after_failure()  # nothing to do where it was closed in order
    return EpochEnd(host.run_id, None if completed is None else completed.location)


def host_stream(
    host: Host,
    turn: RunTurn,
    *,
    began: Callable[[StreamingService], None] = lambda service: None,
    **of_stream: Any,
) -> StreamEnd:
    """Run a stream in its turn; ``began``: gets it before it runs. ``of_stream`` as ``Host.stream`` has it."""
    _ = host.config

    def stream(admit: Admit) -> ServiceEnd:
        service = host.stream(admit, **of_stream)
        began(service)
        with _stopped_by_signals(service.stopping):
            return run_to_end(service)

    end = turn.take(stream)
    return StreamEnd(host.run_id, skipped=end.why) if isinstance(end, Skipped) else _ended(host.run_id, end)


class _Lines:
    """Reporter of a plain program."""

    def info(self, message: str) -> None:
        log.info(message)

    def warn(self, message: str) -> None:
        log.warning(message)


def _session_of(
    chosen: SparkSession | SparkSessionResource, stack: contextlib.ExitStack
) -> Callable[[], SparkSession]:
    if not isinstance(chosen, SparkSessionResource):
        session = chosen
        refuse_connect(session)
        refuse_pipelines(session.version)

        def given() -> SparkSession:
            refuse_stopped(session)
            return session

        return given
    resource = stack.enter_context(opened(chosen))
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
