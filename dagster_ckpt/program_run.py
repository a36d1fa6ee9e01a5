"""One run of a pipeline outside of Dagster's own processes: of a plain program, or of one that Dagster launched."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.location import SnapshotLocation
from dagster_ckpt.core.supervision.concurrent_runs import ConcurrentRuns
from dagster_ckpt.core.supervision.owner import OwnerState
from dagster_ckpt.dagster.jobs.streaming import streaming_config
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.resources.folders import gone_with_container
from dagster_ckpt.dagster.resources.opened import opened
from dagster_ckpt.dagster.resources.spark import SparkSessionResource
from dagster_ckpt.dagster.start import refuse_impossible
from dagster_ckpt.errors import Declined, Fenced, InvalidRequest, Unavailable
from dagster_ckpt.runtime.attempt_setup import Admit, Listener, Ownership
from dagster_ckpt.runtime.audit import NOBODY, Operator
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.runtime.record_store import RecordStore
from dagster_ckpt.runtime.turn import Skipped, Turn, unknown_state
from dagster_ckpt.spark.attempt.pipeline_setup import PipelineSetup
from dagster_ckpt.spark.attempt.stage_query import StageArguments
from dagster_ckpt.spark.cluster.lost import refuse_stopped
from dagster_ckpt.spark.epoch.attempt import EpochAttempt
from dagster_ckpt.spark.epoch.run import FailRun, RetryStage
from dagster_ckpt.spark.java_errors import JavaErrors
from dagster_ckpt.spark.session import refuse_connect
from dagster_ckpt.spark.stage_report import Reporter, TableChanged, not_published
from dagster_ckpt.spark.streaming.restart import ExponentialDelay, RestartStrategy
from dagster_ckpt.spark.streaming.run import EndOfData, StoppedWithSavepoint, TakenOver
from dagster_ckpt.spark.streaming.service import GaveUp, Interrupted, ServiceEnd, StreamingService
from dagster_ckpt.spark.streaming.settings import StreamingSettings
from dagster_ckpt.spark.streaming.watch import ProgressWatch
from dagster_ckpt.version import __version__

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


# --- whoever starts a run ----------------------------------------------------------------------------------------


class _Lines:
    """Reporter of a plain program."""

    def info(self, message: str) -> None:
        log.info(message)

    def warn(self, message: str) -> None:
        log.warning(message)


@dataclass(frozen=True, kw_only=True)
class Host:
    """Host that starts a run: its knowledge of the run, and the reports it is told."""

    run_id: str = ""
    """Owner of the pipeline while it runs; empty: a new name."""
    root: str = ""
    operator: Operator = NOBODY
    concurrent_runs: str = ""
    """Over the coordinator's."""
    how_to_stop: str = "stop it with a savepoint (dagster-ckpt savepoint PIPELINE --stop), or terminate it"
    state_of: Callable[[str], OwnerState] = unknown_state
    """What is known of another run, by its id."""
    guarding: Callable[[Admit], Admit] = lambda admit: admit
    """Adds what else a claim needs."""
    reporter: Reporter = field(default_factory=_Lines)
    listeners: Sequence[Listener] = ()
    tell_tables: Callable[[TableChanged], None] = lambda change: None
    watch: ProgressWatch = field(default_factory=ProgressWatch)
    opened: Callable[[CheckpointCoordinatorResource], None] = lambda coordinator: None
    """Gets the coordinator resource, initialized."""
    began: Callable[[Callable[[], CheckpointCoordinator | None], Callable[[], Mapping[str, str]]], None] = (
        lambda coordinator, unpublished: None
    )
    """Gets the coordinator of the current attempt, and the tables that do not show the newest checkpoint's rows."""


def epoch_of(
    host: Host,
    pipeline: CheckpointedPipeline,
    *,
    coordinator: CheckpointCoordinatorResource,
    spark: SparkSession | SparkSessionResource | None = None,
    restore: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    stages: Mapping[str, Mapping[str, Any]] | None = None,
    resources: Mapping[str, Any] | None = None,
) -> EpochEnd:
    """Run an epoch for a host; the rest as ``run_epoch``."""
    options = RestoreOptions.of(**(restore or {}))
    with _run(host, pipeline, coordinator, spark, stages=stages, resources=resources) as run:
        config = run.coordinator.checkpoint_config(pipeline, settings or {})

        def begin(admit: Admit) -> EpochAttempt:
            setup = run.setup(restore=options, admit=host.guarding(admit))
            # An epoch ends with its checkpoint: the timer is for the same pipeline's streams.
            once = config.model_copy(update={"interval": None})
            return EpochAttempt(PipelineSetup(config=once, **setup), ownership=Ownership.NEW_ATTEMPT)

        attempt = run.turn().take(begin)
        if isinstance(attempt, Skipped):
            return EpochEnd(run.run_id, None, attempt.why)
        host.began(lambda: attempt.coordinator, lambda: attempt.unpublished)
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


def stream_of(
    host: Host,
    pipeline: CheckpointedPipeline,
    *,
    coordinator: CheckpointCoordinatorResource,
    spark: SparkSession | SparkSessionResource | None = None,
    restore: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    stages: Mapping[str, Mapping[str, Any]] | None = None,
    resources: Mapping[str, Any] | None = None,
    strategy: RestartStrategy | None = None,
    trigger_interval: float = 0.0,
    stopping: threading.Event | None = None,
) -> StreamEnd:
    """Run a stream for a host; the rest as ``run_stream``."""
    options = RestoreOptions.of(**(restore or {}))
    with _run(host, pipeline, coordinator, spark, stages=stages, resources=resources) as run:
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
                watch=host.watch,
                **run.setup(restore=options, admit=host.guarding(admit)),
            )
            host.began(lambda: service.coordinator, lambda: service.unpublished)
            with _stopped_by_signals(service.stopping):
                end = service.run()
            late = not_published(service.unpublished)
            if late and isinstance(end, StoppedWithSavepoint):
                raise Unavailable(
                    f"{end.line}, which holds all rows, and the next run publishes the rest: {late}"
                )
            if late:
                host.reporter.warn(f"the next run publishes the rest: {late}")
            return end

        end = run.turn().take(stream)
        return StreamEnd(run.run_id, skipped=end.why) if isinstance(end, Skipped) else _ended(run.run_id, end)


# --- one run ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Run:
    """Setup by which both kinds of run are opened."""

    host: Host
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
            "root": self.root,
            "reporter": self.host.reporter,
            "operator": self.host.operator,
            "listeners": self.host.listeners,
            "tell_tables": self.host.tell_tables,
            "library_version": __version__,
            "hook_resources": self.resources,
            "planning": self.arguments,
            **more,
        }

    @property
    def root(self) -> str:
        return self.host.root or self.run_id

    def arguments(self, uid: StageUid) -> StageArguments:
        return StageArguments(config=self.stages.get(uid, {}), resources=self.resources)

    def turn(self) -> Turn:
        return Turn(
            records=RecordStore(self.coordinator.store()),
            pipeline=self.pipeline.name,
            run_id=self.run_id,
            root=self.root,
            say=self.host.reporter.info,
            choice=ConcurrentRuns.of(self.coordinator.concurrent_runs, self.host.concurrent_runs),
            how_to_stop=self.host.how_to_stop,
            state_of=self.host.state_of,
        )


@contextlib.contextmanager
def _run(
    host: Host,
    pipeline: CheckpointedPipeline,
    coordinator: CheckpointCoordinatorResource,
    spark: SparkSession | SparkSessionResource | None,
    *,
    stages: Mapping[str, Mapping[str, Any]] | None,
    resources: Mapping[str, Any] | None,
) -> Iterator[_Run]:
    unknown = sorted(set(stages or {}) - set(pipeline.stages))
    if unknown:
        known = ", ".join(pipeline.stages)
        raise InvalidRequest(
            f"config of stage {unknown[0]!r}: pipeline {pipeline.name!r} has the stages {known}"
        )
    _refuse_without_places(coordinator)
    errors = JavaErrors()
    with errors.noted(), contextlib.ExitStack() as stack:
        where = stack.enter_context(opened(coordinator))
        if os.environ.get("DAGSTER_HOME"):
            where.use_instance(stack.enter_context(dg.DagsterInstance.get()))
        own = SparkSessionResource() if spark is None else spark
        refuse_impossible(where, pipeline, own if isinstance(own, SparkSessionResource) else None)
        if lost := gone_with_container(where, pipeline):
            host.reporter.warn(lost)
        host.opened(where)
        with errors.kept():
            yield _Run(
                host=host,
                pipeline=pipeline,
                coordinator=where,
                session=_session_of(spark, stack),
                stages=stages or {},
                resources=SimpleNamespace(**(resources or {})),
                run_id=host.run_id or f"program-{uuid.uuid4()}",
            )


def _session_of(
    spark: SparkSession | SparkSessionResource | None, stack: contextlib.ExitStack
) -> Callable[[], SparkSession]:
    chosen = SparkSessionResource() if spark is None else spark
    if not isinstance(chosen, SparkSessionResource):
        session = chosen
        refuse_connect(session)

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
