"""Runs a pipeline as a stream: attempt after attempt, as the restart strategy says, until something ends the run."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from dagster_ckpt.core.config import CheckpointConfig, RestoreOptions
from dagster_ckpt.core.events import CoordinatorEvent
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.properties import RunStatus
from dagster_ckpt.core.recovery import RestorePurpose
from dagster_ckpt.core.tasks import StageStatus
from dagster_ckpt.errors import CheckpointError, Fenced, InvalidRequest, NotFound
from dagster_ckpt.ports import CheckpointStorage, Clock, CoordinatorStore
from dagster_ckpt.runtime.clock import SystemClock
from dagster_ckpt.runtime.coordinator import AckDurability, CheckpointCoordinator
from dagster_ckpt.runtime.mailbox import Mailbox
from dagster_ckpt.runtime.opening import Ownership
from dagster_ckpt.spark.attempt_restore import AttemptRestorer, state_of_directory
from dagster_ckpt.spark.manifest_handles import handles_in_manifest
from dagster_ckpt.spark.reporting import Reporter
from dagster_ckpt.spark.stage_query import StageArguments
from dagster_ckpt.spark.streaming.background import DaemonBackground
from dagster_ckpt.spark.streaming.gateway import StreamingGateway
from dagster_ckpt.spark.streaming.restart import ExponentialDelay, GiveUp, RestartAfter, RestartStrategy
from dagster_ckpt.spark.streaming.run import (
    EndOfData,
    RunEnd,
    StageDied,
    StoppedWithSavepoint,
    StreamingRun,
    StreamingSettings,
    TakenOver,
)
from dagster_ckpt.spark.streaming.watch import ProgressWatch
from dagster_ckpt.spark.tables import PipelineTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.pipeline import CheckpointedPipeline

WAIT = 0.25


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Somebody asked the run to stop, without a savepoint; ``clean``: between two batches."""

    clean: bool


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The restart strategy allows no further restart."""

    why: str
    last: StageDied


ServiceEnd = EndOfData | StoppedWithSavepoint | TakenOver | Interrupted | GaveUp


@dataclass(kw_only=True)
class StreamingService:
    """Everything a streaming run needs; ``run`` blocks until its end. Nothing of Dagster is in here."""

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
    listeners: Sequence[Callable[[CoordinatorEvent], None]] = ()
    strategy: RestartStrategy = ExponentialDelay()
    settings: StreamingSettings = StreamingSettings()
    arguments: Mapping[StageUid, StageArguments] = field(default_factory=dict)
    clock: Clock = field(default_factory=SystemClock)
    library_version: str = ""
    watch: ProgressWatch = field(default_factory=ProgressWatch)
    """Looks at the run now and then."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set by anyone to end the run at the next batch boundary."""
    restarts: int = 0
    coordinator: CheckpointCoordinator | None = None
    """Of the current attempt."""
    current: StreamingRun | None = None

    def run(self) -> ServiceEnd:
        """Run to the end. Raises what keeps the first attempt from starting; InvalidRequest at any attempt.

        An exception from outside (a terminated run) stops everything at batch boundaries and goes through.
        """
        strategy = self.strategy
        while True:
            end = self._attempt()
            if not isinstance(end, StageDied):
                return end
            match strategy.on_failure(self.clock.monotonic(), random.random()):
                case RestartAfter(seconds, following):
                    strategy = following
                    self.restarts += 1
                    self._leave(end.message)
                    self.reporter.warn(f"{end.message}. Restart {self.restarts} in {seconds:.1f} s")
                    if self.stopping.wait(seconds):
                        return Interrupted(clean=False)
                case GiveUp(why):
                    self._end(RunStatus.FAILED, clean=False)
                    return GaveUp(why, end)

    # --- one attempt --------------------------------------------------------------------------------------------

    def _attempt(self) -> ServiceEnd | StageDied:
        """Open, restore, run, stop; an attempt whose stage died is stopped and not yet ended."""
        try:
            self._start()
        except Fenced as error:
            self._stopped()
            return TakenOver(str(error))
        except (InvalidRequest, NotFound):
            self._stopped()
            self._end(RunStatus.FAILED, clean=False)
            raise
        except Exception as error:  # storage or Spark failed on the way: as for a stage that died
            self._stopped()
            if self.restarts == 0 and self.coordinator is None:
                raise
            return StageDied(None, f"the attempt could not start: {error}", error)
        try:
            end = self._supervise()
        except BaseException:
            self._end(RunStatus.CANCELED, clean=self._stopped_apart())
            raise
        return self._conclude(end)

    def _start(self) -> None:
        self.coordinator = None
        tables = PipelineTables(
            pipeline=self.pipeline,
            table_dir=self.table_dir,
            mode=self.config.mode,
            epoch=lambda: coordinator.epoch,
        )
        gateway = StreamingGateway(tables=tables, reporter=self.reporter)
        coordinator = CheckpointCoordinator.open(
            graph=self.pipeline.graph,
            config=self.config,
            store=self.store,
            storage=self.storage,
            open_storage=self.open_storage,
            gateway=gateway,
            clock=self.clock,
            owner=self.owner,
            root=self.root or self.owner,
            restore=self.restore,
            listeners=self.listeners,
            read_manifest=handles_in_manifest,
            background=DaemonBackground(),
            purpose=RestorePurpose.FORK if self.restore.fork else RestorePurpose.IN_PLACE,
            directory_state=partial(state_of_directory, self.pipeline),
            epochs_below=tables.newest_epoch,
            library_version=self.library_version,
            ownership=Ownership.RESTART if self.restarts else Ownership.NEW_ATTEMPT,
            acks=AckDurability.AT_COMPLETION,
        )
        self.coordinator = coordinator
        for uid in self.pipeline.stages:
            coordinator.report_stage(uid, StageStatus.INITIALIZING)
        gateway.attempt = AttemptRestorer(
            pipeline=self.pipeline,
            coordinator=coordinator,
            work_dir=self.work_dir,
            open_storage=self.open_storage,
            tables=tables,
            reporter=self.reporter,
            options=self.restore,
            session=self.session,
        ).restore()
        self.current = StreamingRun(
            pipeline=self.pipeline,
            coordinator=coordinator,
            gateway=gateway,
            attempt=gateway.attempt,
            spark=self.session(),
            tables=tables,
            reporter=self.reporter,
            clock=self.clock,
            arguments=self.arguments,
            settings=self.settings,
            requests=Mailbox(self.clock, tell=self.reporter.info).serve,
        )
        self.current.start()

    def _supervise(self) -> RunEnd | None:
        """Return how the attempt ended; None: somebody asked the run to stop."""
        run = self.current
        assert run is not None, "the attempt was started"
        while not self.stopping.is_set():
            end = run.wait(WAIT)
            if end is not None:
                return end
            self.watch.tick(run, restarts=self.restarts)
        return None

    def _conclude(self, end: RunEnd | None) -> ServiceEnd | StageDied:
        match end:
            case None:
                clean = self._stopped()
                self._end(RunStatus.CANCELED, clean=clean)
                return Interrupted(clean)
            case StageDied():
                self._stopped()
            case TakenOver():
                self._stopped()
            case EndOfData():
                self._end(RunStatus.FINISHED, clean=self._stopped())
            case StoppedWithSavepoint():
                self._end(RunStatus.SUSPENDED, clean=self._stopped())
            case _:
                assert_never(end)
        return end

    def _stopped(self) -> bool:
        run, self.current = self.current, None
        return run.stop() if run is not None else True

    def _stopped_apart(self) -> bool:
        """Stop from another thread: an interrupt within a call into the JVM leaves this one's answer unread in py4j."""
        clean: list[bool] = []
        thread = threading.Thread(target=lambda: clean.append(self._stopped()), name="stop", daemon=True)
        thread.start()
        thread.join()
        return clean == [True]

    def _leave(self, message: str) -> None:
        """End a failed attempt so that the next one goes on from its latest checkpoint."""
        if self.coordinator is not None:
            with suppress(CheckpointError):
                self.coordinator.fail_over(message)
        self._end(RunStatus.SUSPENDED, clean=False)

    def _end(self, status: RunStatus, *, clean: bool) -> None:
        coordinator = self.coordinator
        if coordinator is None:
            return
        for pause in (0.0, 0.5, 2.0):
            time.sleep(pause)
            try:
                coordinator.close(status, clean=clean)
            except Fenced:
                return
            except CheckpointError as error:
                self.reporter.warn(f"the end of the attempt could not be stored: {error}")
            else:
                return
