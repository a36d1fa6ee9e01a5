"""What the streaming benchmarks share: a streaming run without Dagster in a scratch folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.adapters.fsspec_storage import open_storage
from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore
from dagster_ckpt.core.config import CheckpointConfig, RestoreOptions
from dagster_ckpt.core.coordinator.effects import CheckpointCompleted, CheckpointFailed, CoordinatorEvent
from dagster_ckpt.core.request import CheckpointRequest, Completed, Queued
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.spark.attempt.pipeline_setup import PipelineSetup
from dagster_ckpt.spark.streaming.restart import FixedDelay
from dagster_ckpt.spark.streaming.run import StreamingRun
from dagster_ckpt.spark.streaming.running_stage import StreamingSettings
from dagster_ckpt.spark.streaming.service import StreamingService
from tests.progress import source_of, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt import CheckpointedPipeline


class Quiet:
    """A reporter that says warnings only."""

    def info(self, message: str) -> None: ...

    def warn(self, message: str) -> None:
        print(f"  ! {message[:300]}", flush=True)


@dataclass
class Stream:
    """One run in a thread."""

    service: StreamingService
    events: list[CoordinatorEvent] = field(default_factory=list)
    ends: list[Any] = field(default_factory=list)
    thread: threading.Thread | None = None

    def start(self) -> Stream:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        wait(lambda: self.run is not None and self.run.is_started.is_set(), self)
        return self

    def _run(self) -> None:
        try:
            self.ends.append(self.service.run())
        except BaseException as error:
            self.ends.append(error)

    @property
    def run(self) -> StreamingRun | None:
        return self.service.current

    @property
    def coordinator(self) -> CheckpointCoordinator:
        assert self.service.coordinator is not None
        return self.service.coordinator

    def batch(self, uid: str) -> int | None:
        assert self.run is not None
        return self.run.stages[uid].worker.batches.look().batch  # type: ignore[index]

    def checkpoint(self) -> Completed:
        """Take a checkpoint; its end is heard of, not asked for: asking takes the coordinator's lock."""
        number = f"bench-{time.monotonic_ns()}"
        self.coordinator.trigger(CheckpointRequest(request_id=number))
        wait(lambda: not isinstance(self.coordinator.outcome_of_request(number), Queued), self)
        triggered: Any = self.coordinator.outcome_of_request(number)
        wait(lambda: self._is_over(triggered.id), self)
        done = self.coordinator.status_of(triggered.id)
        assert isinstance(done, Completed), done
        return done

    def _is_over(self, number: int) -> bool:
        ends = (CheckpointCompleted, CheckpointFailed)
        return any(isinstance(event, ends) and event.checkpoint_id == number for event in self.events[-20:])

    def completions(self) -> list[CheckpointCompleted]:
        return [event for event in self.events if isinstance(event, CheckpointCompleted)]

    def stop(self) -> None:
        self.service.stopping.set()
        assert self.thread is not None
        self.thread.join()


def wait(holds: Callable[[], bool], stream: Stream | None = None, *, every: float = 0.005) -> None:
    def check() -> None:
        if stream is not None and stream.ends:
            raise RuntimeError(f"the run has ended: {stream.ends}")

    def moves() -> object:
        run = stream.run if stream is not None else None
        return run and [stage.worker.batches.current.batch for stage in run.stages.values()]

    wait_until(holds, source_of(holds), moves=moves, check=check, quiet=600.0, every=every)


def service(
    folder: Path,
    pipeline: CheckpointedPipeline,
    spark: SparkSession,
    *,
    owner: str = "bench",
    storage: Callable[[CheckpointStorage], CheckpointStorage] = lambda s: s,
    trigger_interval: float = 0.0,
    restore_from: str = "latest",
    **settings: Any,
) -> Stream:
    """A streaming run below ``folder``, not yet started; ``trigger_interval`` in seconds, 0: at full speed."""
    folder.mkdir(parents=True, exist_ok=True)
    store = SqlCoordinatorStore(f"sqlite:///{folder / 'coordinator.db'}")
    store.migrate()
    defaults = {
        "savepoint_dir": str(folder / "savepoints"),
        "incremental": True,
        "num_retained": 3,
        "tolerable_failed_checkpoints": 2**31 - 1,
        "externalized_checkpoint_retention": "retain_on_cancellation",
    }
    events: list[CoordinatorEvent] = []
    made = StreamingService(
        setup=PipelineSetup(
            pipeline=pipeline,
            config=CheckpointConfig.of(**{**defaults, **settings, **pipeline.checkpointing}),
            store=store,
            storage=storage(open_storage(str(folder / "checkpoints"))),
            open_storage=open_storage,
            spark=lambda: spark,
            work_dir=folder / "work",
            table_dir=folder / "tables",
            owner=owner,
            reporter=Quiet(),
            restore=RestoreOptions.of(restore_from=restore_from),
            listeners=[events.append],
        ),
        strategy=FixedDelay(attempts=1000, delay=0.5),
        settings=StreamingSettings(trigger_interval=trigger_interval),
    )
    return Stream(made, events)


@contextmanager
def streaming(
    folder: Path, pipeline: CheckpointedPipeline, spark: SparkSession, **settings: Any
) -> Iterator[Stream]:
    stream = service(folder, pipeline, spark, **settings).start()
    try:
        yield stream
    finally:
        stream.stop()
