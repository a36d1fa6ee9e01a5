"""A deployment of the played pipeline: its places, and runs as Dagster or a streaming service would make them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from dagster_ckpt import CheckpointedPipeline
from dagster_ckpt.adapters.fsspec_storage import open_storage
from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.config import CheckpointConfig, RestoreOptions
from dagster_ckpt.core.coordinator.state import AckDurability
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.messages import NotifyComplete
from dagster_ckpt.core.model import Chain
from dagster_ckpt.core.request import Completed, RunStatus
from dagster_ckpt.errors import CheckpointError, Fenced
from dagster_ckpt.runtime.attempt_setup import Ownership
from dagster_ckpt.runtime.record_store import RecordStore
from dagster_ckpt.spark.attempt.attempt import Attempt
from dagster_ckpt.spark.attempt.earlier_attempts import TableCleanUp, mark_ended
from dagster_ckpt.spark.attempt.pipeline_setup import PipelineSetup
from dagster_ckpt.spark.attempt.stage_query import StageQuery
from dagster_ckpt.spark.epoch.attempt import EpochGateway
from dagster_ckpt.spark.snapshot import take
from dagster_ckpt.testing.memory import ManualBackground
from tests.attack.definition import AS_BEGUN, Definition
from tests.attack.outsides import Kind, Row, rows_of
from tests.attack.played import (
    Killed,
    PlayedDrains,
    PlayedRun,
    Step,
    pipeline_of,
    truth,
)


class RunFailed(Exception):
    """A run said itself that it failed: it is no silent end."""


@dataclass
class PlayedGateway(EpochGateway):
    """Dies, if it is to, before or after it publishes."""

    step: Step = field(default=lambda _: None)

    def notify_complete(self, message: NotifyComplete) -> None:
        """Publish, with a step on both sides."""
        self.step("completed")
        super().notify_complete(message)
        self.step("published")


class Lines:
    """A reporter that remembers."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def info(self, message: str) -> None:
        """Remember it."""
        self.said.append(message)

    def warn(self, message: str) -> None:
        """Remember it."""
        self.said.append(f"WARN {message}")


@dataclass(frozen=True)
class Deployment:
    """One deployment, with everything it keeps below one folder."""

    drains_of: ClassVar[type[PlayedDrains]] = PlayedDrains
    run_of: ClassVar[type[PlayedRun]] = PlayedRun
    root: Path
    with_stage: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    chained: bool = False
    """With the stage: it runs in one query with its source."""
    kind: Kind = Kind.OWN
    """Where its rows end."""
    defined: Definition = AS_BEGUN
    """As its author has it now."""

    @cached_property
    def pipeline(self) -> CheckpointedPipeline:
        """The pipeline; both deployments have one of this name."""
        return pipeline_of(self.kind, self.root, with_stage=self.with_stage, defined=self.defined)

    @property
    def store_file(self) -> Path:
        """The coordinator store."""
        return self.root / "store" / "coordinator.db"

    @property
    def storage(self) -> Path:
        """The checkpoint storage."""
        return self.root / "checkpoints"

    @property
    def table_dir(self) -> Path:
        """Where tables lie that have no place of their own."""
        return self.root / "tables"

    @property
    def tables(self) -> dict[str, list[Row]]:
        """The rows that readers find now."""
        found = {"rows": rows_of(self.defined.kind or self.kind, self.root / "tables" / self.defined.place)}
        found["newest"] = rows_of(self.kind, self.root / "tables" / self.defined.place_by_key)
        return found

    @property
    def record(self) -> CoordinatorRecord:
        """What the store knows of the pipeline."""
        store = SqlCoordinatorStore(f"sqlite:///{self.store_file}")
        try:
            found = RecordStore(store).record(self.pipeline.name)
        finally:
            store.close()
        assert found is not None
        return found

    @property
    def owes(self) -> bool:
        """A checkpoint is complete that not every table shows yet."""
        return self.record.latest_completed != self.record.shown_id

    def choose(self, *_: Any) -> tuple[Chain, ...]:
        """Return the chains of a pipeline that begins."""
        return (Chain(uid="totals", stages=("numbers", "totals")),)

    def truth(self, processed: int) -> dict[str, list[Row]]:
        """The rows of the tables after so many rows of the source."""
        return truth(processed, with_stage=self.with_stage)

    def snapshots(self) -> list[str]:
        """Folders of complete checkpoints, oldest first."""
        return [str(path.parent) for path in sorted(self.storage.rglob("chk-*/_metadata"), key=_number)]

    @contextlib.contextmanager
    def opened(self, **options: Any) -> Iterator[Attempt[PlayedGateway]]:
        """An attempt; the store is closed when it is over, whatever it ended by."""
        ownership = options.pop("ownership", Ownership.ATTACH)
        acks = options.pop("acks", AckDurability.PER_STAGE)
        owner = options.pop("owner")
        set_aside = options.pop("set_aside", ())
        is_new = not self.store_file.exists()
        self.store_file.parent.mkdir(parents=True, exist_ok=True)
        store = SqlCoordinatorStore(f"sqlite:///{self.store_file}")
        inlined, take.INLINE_THRESHOLD = take.INLINE_THRESHOLD, 0  # every file can be damaged by itself
        try:
            if is_new:
                store.migrate()
            defaults = {
                "incremental": True,
                "num_retained": 2,
                "externalized_checkpoint_retention": "retain_on_cancellation",
            }
            setup = PipelineSetup(
                pipeline=self.pipeline,
                config=CheckpointConfig.of(
                    **{**defaults, **self.settings, "operator_chaining": self.chained}
                ),
                store=store,
                storage=open_storage(str(self.storage)),
                open_storage=open_storage,
                spark=_no_cluster,
                work_dir=self.root / "work",
                table_dir=self.table_dir,
                owner=owner,
                reporter=Lines(),
                restore=RestoreOptions.of(**options),
                set_aside=set_aside,
                choose=self.choose,
            )
            yield Attempt.open(
                setup, PlayedGateway, ownership=ownership, acks=acks, background=ManualBackground()
            )
        finally:
            take.INLINE_THRESHOLD = inlined
            store.close()

    # --- the two kinds of run -------------------------------------------------------------------------------------

    def epoch(self, owner: str, arrived: int, *, step: Step = lambda _: None, **restore: Any) -> None:
        """An epoch run, as ``PipelineAttempt`` makes it: it raises where Dagster's run would fail."""
        with self.opened(owner=owner, **restore) as attempt:
            attempt.gateway.step = step
            try:
                run = self._run(attempt, owner, arrived, step)
                run.run_missing()
                self._collect(attempt, run)
            except Exception:
                with contextlib.suppress(CheckpointError):
                    attempt.coordinator.close(RunStatus.FAILED, clean=False)
                raise
            self._end(attempt, RunStatus.SUSPENDED)
            if attempt.tables.unpublished:
                raise RunFailed("; ".join(attempt.tables.unpublished.values()))

    def stream(
        self,
        owner: str,
        arrivals: list[int],
        *,
        end: str,
        step: Step = lambda _: None,
        between: Callable[[], None] = lambda: None,
        **restore: Any,
    ) -> None:
        """A stream: a checkpoint after each of ``arrivals``, then it ends.

        ``end``: clean, clean with rows on their way to the sinks (``in flight``) or prepared there (``unpublished``),
        failed.
        """
        with self.opened(
            owner=owner, ownership=Ownership.NEW_ATTEMPT, acks=AckDurability.AT_COMPLETION, **restore
        ) as attempt:
            attempt.gateway.step = step
            try:
                for number, arrived in enumerate(arrivals):
                    run = self._run(attempt, f"{owner}-{number}", arrived, step)
                    run.run_missing()
                    between()
                    self._collect(attempt, run)
                if end in {"in flight", "unpublished"}:
                    order = [spec.uid for spec in attempt.pipeline.graph.topological]
                    self._rows_on_their_way(
                        attempt, arrivals[-1] + 5, step, order[:1] if end == "in flight" else order
                    )
                if end == "failed":
                    attempt.coordinator.abandon("a query failed")
            except Exception:
                with contextlib.suppress(CheckpointError):
                    attempt.coordinator.abandon("a stage failed")
                    attempt.coordinator.close(RunStatus.SUSPENDED, clean=False)
                raise
            if end == "failed":
                attempt.coordinator.close(RunStatus.SUSPENDED, clean=False)
            else:
                self._end(attempt, RunStatus.CANCELED)

    def _rows_on_their_way(
        self, attempt: Attempt[PlayedGateway], arrived: int, step: Step, stages: Sequence[str]
    ) -> None:
        """Work on after the last checkpoint, in these stages only."""
        run = self._run(attempt, "on-their-way", arrived, step, beside=False)
        for uid in stages:
            query = StageQuery(
                pipeline=attempt.pipeline,
                uid=StageUid(uid),
                attempt=attempt.directory,
                table_writer=attempt.tables.writer,
            )
            run._release_earlier_barriers(query, None)
            run._processed(query)

    def _run(
        self, attempt: Attempt[PlayedGateway], run_id: str, arrived: int, step: Step, *, beside: bool = True
    ) -> PlayedRun:
        drains = self.drains_of()
        drains.run = self.run_of(
            pipeline=attempt.pipeline,
            coordinator=attempt.coordinator,
            attempt=attempt.directory,
            run_id=run_id,
            drains=drains,
            tables=attempt.tables,
            reporter=Lines(),
            has_turn=lambda uid: beside,
            arrived=arrived,
            step=step,
            **self.more_of_run(),
        )
        return drains.run

    def more_of_run(self) -> dict[str, Any]:
        """Return what a run knows of the pipeline besides."""
        return {"defined": self.defined}

    def _collect(self, attempt: Attempt[PlayedGateway], run: PlayedRun) -> None:
        """Tidy up as every run does behind a completed checkpoint."""
        number = run.checkpoint
        if number is None or not isinstance(attempt.coordinator.status_of(CheckpointId(number)), Completed):
            raise RunFailed("the run has no checkpoint")
        run.forget_consumed_entries(number)
        with contextlib.suppress(CheckpointError):
            TableCleanUp(
                coordinator=attempt.coordinator,
                tables=attempt.tables,
                attempt=attempt.directory,
                publishing=attempt.gateway.publishing,
            ).collect()

    def _end(self, attempt: Attempt[PlayedGateway], status: RunStatus) -> None:
        mark_ended(attempt.coordinator)
        with contextlib.suppress(Fenced):
            attempt.coordinator.close(status, clean=True)

    # --- copies ---------------------------------------------------------------------------------------------------

    def copy_to(self, target: Path) -> Path:
        """Copy everything there is, as it is now."""
        shutil.copytree(self.root, target)
        return target

    def put_back_all(self, copy: Path) -> None:
        """Make everything as it was in a copy."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(copy, self.root)


def _number(metadata: Path) -> int:
    return int(metadata.parent.name.removeprefix("chk-"))


def dying_after(steps: int) -> Step:
    """Return a step that kills the process when so many were made."""
    left = [steps]

    def step(_: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    return step


def _no_cluster() -> Any:
    """Return what is asked of a session that nobody starts a query in: it is local."""
    java = SimpleNamespace(isLocal=lambda: True)
    return SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: java)))
