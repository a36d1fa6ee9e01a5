"""Runs a pipeline as a stream: attempt after attempt, as the restart strategy says, until something ends the run."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, assert_never

from dagster_ckpt.core.checkpoint.lease import Lease
from dagster_ckpt.core.checkpoint.tasks import StageStatus
from dagster_ckpt.core.coordinator.state import AckDurability
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.core.units import duration
from dagster_ckpt.errors import CheckpointError, Fenced, InvalidRequest, NotFound
from dagster_ckpt.runtime.attempt_setup import Ownership
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.runtime.mailbox import Mailbox
from dagster_ckpt.spark.attempt.attempt import Attempt, with_hooks
from dagster_ckpt.spark.attempt.earlier_attempts import mark_ended
from dagster_ckpt.spark.attempt.own_objects import StageArguments
from dagster_ckpt.spark.attempt.pipeline_setup import PipelineSetup
from dagster_ckpt.spark.cluster.lost import abandon_if_deserted, not_for_ever
from dagster_ckpt.spark.plan.errors import ChangedQuery
from dagster_ckpt.spark.streaming.background import DaemonBackground
from dagster_ckpt.spark.streaming.loop import StreamingGateway
from dagster_ckpt.spark.streaming.progress import ProgressWatch
from dagster_ckpt.spark.streaming.restart import ExponentialDelay, GiveUp, RestartAfter, RestartStrategy
from dagster_ckpt.spark.streaming.run import (
    EndOfData,
    RunEnd,
    StageDied,
    StoppedWithSavepoint,
    StreamingRun,
    TakenOver,
)
from dagster_ckpt.spark.streaming.running_stage import StreamingSettings
from dagster_ckpt.spark.versions import refuse_streams

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    """A streaming run; ``run`` blocks until its end. Nothing of Dagster is in here."""

    setup: PipelineSetup
    strategy: RestartStrategy = ExponentialDelay()
    settings: StreamingSettings = StreamingSettings()
    watch: ProgressWatch = field(default_factory=ProgressWatch)
    """Looks at the run now and then."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set by anyone to end the run at the next batch boundary."""
    restarts: int = 0
    coordinator: CheckpointCoordinator | None = None
    """Of the current attempt."""
    current: StreamingRun | None = None
    unpublished: Mapping[str, str] = field(default_factory=dict)
    """Tables of the current attempt that do not show the newest checkpoint's rows, and why; changes while it runs."""
    _spark: SparkSession | None = None
    """Of the newest attempt."""
    _leased: CheckpointCoordinator | None = None
    """Of the newest attempt that was claimed: it keeps the run's lease, also between two attempts."""

    def __post_init__(self) -> None:
        """Bound the wait for executors: a master that was restarted may not know of the application."""
        self.setup = replace(self.setup, bounded=not_for_ever)

    def run(self) -> ServiceEnd:
        """Run to the end. Raises what keeps the first attempt from starting; InvalidRequest at any attempt.

        An exception from outside (a terminated run) stops everything at batch boundaries and goes through.
        """
        try:
            return self._run()
        finally:
            self._release()

    def _run(self) -> ServiceEnd:
        strategy = self.strategy
        while True:
            end = self._attempt()
            if not isinstance(end, StageDied):
                return end
            if isinstance(end.error, ChangedQuery):
                self._end(RunStatus.FAILED, clean=False, cause=end.message)
                return GaveUp("no restart would change that", end)
            match strategy.on_failure(self.setup.clock.monotonic(), random.random()):
                case RestartAfter(seconds, following):
                    strategy = following
                    self.restarts += 1
                    self._leave(end.message)
                    self.setup.reporter.warn(f"{end.message}. Restart {self.restarts} in {duration(seconds)}")
                    if self.stopping.wait(seconds):
                        return Interrupted(clean=False)
                case GiveUp(why):
                    self._end(RunStatus.FAILED, clean=False, cause=end.message)
                    return GaveUp(why, end)

    # --- one attempt --------------------------------------------------------------------------------------------

    def _attempt(self) -> ServiceEnd | StageDied:
        """Open, restore, run, stop; an attempt whose stage died is stopped and not yet ended."""
        try:
            self._start()
        except Fenced as error:
            self._stopped()
            return TakenOver(str(error))
        except (InvalidRequest, NotFound) as error:
            self._stopped()
            if (taken := self._taken_over(error)) is not None:
                return taken
            self._end(RunStatus.FAILED, clean=False, cause=error)
            raise
        except Exception as error:  # storage or Spark failed on the way: as for a stage that died
            self._stopped()
            if self.restarts == 0 and self.coordinator is None:
                raise
            if (taken := self._taken_over(error)) is not None:
                return taken
            self._renew_if_deserted()
            return StageDied(None, f"the attempt could not start: {error}", error)
        except BaseException:  # terminated while it started
            self._stopped_apart()
            self._end(RunStatus.CANCELED, clean=False)
            raise
        try:
            end = self._supervise()
        except BaseException:
            self._end(RunStatus.CANCELED, clean=self._stopped_apart())
            raise
        return self._conclude(end)

    def _taken_over(self, error: Exception) -> TakenOver | None:
        """Tell a start that failed because a newer attempt has removed what its stages need from one of its own."""
        try:
            if self.coordinator is not None:
                self.coordinator.refuse_fenced()
        except Fenced as fenced:
            self.setup.reporter.info(f"seen of it while stages were started: {error}")
            return TakenOver(str(fenced))
        except CheckpointError:
            pass  # the store cannot be asked: what failed is told as it is
        return None

    def _start(self) -> None:
        self.coordinator = None
        import pyspark

        refuse_streams(pyspark.__version__)
        attempt = Attempt.open(
            self.setup,
            StreamingGateway,
            ownership=Ownership.RESTART if self.restarts else Ownership.NEW_ATTEMPT,
            acks=AckDurability.AT_COMPLETION,
            background=DaemonBackground(),
            lease=Lease(reads_mailbox=True),
        )
        self.coordinator = self._leased = attempt.coordinator
        self.unpublished = attempt.tables.unpublished
        for uid in attempt.pipeline.stages:
            attempt.coordinator.report_stage(uid, StageStatus.INITIALIZING)
        # Its executors are looked at before anything is restored for them.
        spark = self._spark = self.setup.session()
        self.current = StreamingRun(
            pipeline=attempt.pipeline,
            coordinator=attempt.coordinator,
            gateway=attempt.gateway,
            attempt=attempt.directory,
            spark=spark,
            tables=attempt.tables,
            reporter=self.setup.reporter,
            clock=self.setup.clock,
            arguments=with_hooks(self._arguments(), self.setup.pipeline, attempt.hooks),
            settings=self.settings,
            requests=Mailbox(tell=self.setup.reporter.info).serve,
        )
        self.current.start()

    def _arguments(self) -> Mapping[StageUid, StageArguments]:
        return {uid: self.setup.arguments(uid) for uid in self.setup.pipeline.stages}

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
                self._renew_if_deserted()
            case TakenOver():
                self._stopped()
                self._end(RunStatus.FAILED, clean=False)
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

    def _renew_if_deserted(self) -> None:
        """Let the next attempt have a session of its own where the cluster has left this one without executors."""
        if self._spark is not None and abandon_if_deserted(self._spark):
            self.setup.reporter.info(
                "no executor is left: the next attempt begins with another Spark session"
            )

    def _stopped_apart(self) -> bool:
        """Stop from another thread: an interrupt within a call into the JVM leaves this one's answer unread in py4j."""
        clean: list[bool] = []
        thread = threading.Thread(target=lambda: clean.append(self._stopped()), name="stop", daemon=True)
        thread.start()
        thread.join()
        return clean == [True]

    def _leave(self, message: str) -> None:
        """End a failed attempt so that the next one goes on from its latest checkpoint."""
        if (coordinator := self.coordinator) is None:
            return
        with suppress(CheckpointError):
            coordinator.abandon(message)
        if self.coordinator is not None:
            self._tell_end(partial(coordinator.hand_over, message))

    def _release(self) -> None:
        """Give the lease back, where the run ends between two attempts."""
        if self._leased is not None:
            with suppress(CheckpointError):
                self._leased.release_lease()

    def _end(self, status: RunStatus, *, clean: bool, cause: object = "") -> None:
        coordinator = self.coordinator
        if coordinator is None:
            return

        def end() -> None:
            # Closed whatever becomes of the mark: an attempt that is not goes on renewing its lease.
            is_marked = clean and self._mark_ended(coordinator)
            coordinator.close(status, clean=is_marked, keeps_newest=status is RunStatus.FINISHED, cause=cause)

        self._tell_end(end)

    def _mark_ended(self, coordinator: CheckpointCoordinator) -> bool:
        try:
            mark_ended(coordinator)
        except (CheckpointError, OSError) as error:
            self.setup.reporter.warn(f"the working directory is not continued: {error}")
            return False
        return True

    def _tell_end(self, end: Callable[[], None]) -> None:
        for pause in (0.0, 0.5, 2.0):
            time.sleep(pause)
            try:
                end()
            except Fenced:
                return
            except CheckpointError as error:
                self.setup.reporter.warn(f"the end of the attempt could not be stored: {error}")
            else:
                return
