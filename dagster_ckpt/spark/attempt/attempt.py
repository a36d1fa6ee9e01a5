"""One attempt of a pipeline, in both kinds of run: its coordinator, its tables, its working directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dagster_ckpt.core.checkpoint.lease import Lease
from dagster_ckpt.core.config import CheckpointConfig, RestoreOptions
from dagster_ckpt.core.coordinator.state import AckDurability
from dagster_ckpt.core.restore.facts import RestorePurpose
from dagster_ckpt.ports import CheckpointStorage, Clock, CoordinatorStore
from dagster_ckpt.runtime.attempt_setup import Admit, AttemptSetup, Listener, Ownership, admit_anyone
from dagster_ckpt.runtime.cleaner import Background, ThreadBackground
from dagster_ckpt.runtime.clock import SystemClock
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.runtime.driver.user_hook import UserHook
from dagster_ckpt.spark.attempt.gateway import StageGateway
from dagster_ckpt.spark.attempt.hooks import make_hooks
from dagster_ckpt.spark.attempt.mark import seen_in_directory
from dagster_ckpt.spark.attempt.restore import AttemptRestorer, state_of_directory
from dagster_ckpt.spark.attempt.sinks import PipelineSinks
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.sink.port import AttemptId
from dagster_ckpt.spark.snapshot.manifest_handles import handles_in_manifest
from dagster_ckpt.spark.stage_report import Reporter, TableChanged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline

G = TypeVar("G", bound=StageGateway)


@dataclass(kw_only=True)
class PipelineSetup:
    """What an attempt of a pipeline is opened with."""

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
    listeners: Sequence[Listener] = ()
    clock: Clock = field(default_factory=SystemClock)
    library_version: str = ""
    tell_tables: Callable[[TableChanged], None] = lambda change: None
    """Told of every sink whose rows have changed."""
    hook_resources: Any = None
    """Dagster resources for the pipeline's hooks."""
    admit: Admit = admit_anyone


class Attempt(Generic[G]):
    """An attempt that owns its epoch, or takes part in its run's."""

    def __init__(
        self,
        setup: PipelineSetup,
        coordinator: CheckpointCoordinator,
        tables: PipelineSinks,
        gateway: G,
        hooks: Mapping[str, UserHook],
    ) -> None:
        self._setup = setup
        self.coordinator = coordinator
        self.tables = tables
        self.gateway = gateway
        self.hooks = {uid: hook.hook for uid, hook in hooks.items()}
        """What the pipeline's hooks made for this attempt."""
        for hook in hooks.values():
            hook.answer_to(coordinator)

    @classmethod
    def open(
        cls,
        setup: PipelineSetup,
        gateway: type[G],
        *,
        ownership: Ownership = Ownership.ATTACH,
        acks: AckDurability = AckDurability.PER_STAGE,
        background: Background | None = None,
        lease: Lease | None = None,
    ) -> Attempt[G]:
        """Open the coordinator. Raises as ``CheckpointCoordinator.open`` does: nothing was changed then."""
        tables = PipelineSinks(
            pipeline=setup.pipeline,
            table_dir=setup.table_dir,
            work_dir=setup.work_dir,
            mode=setup.config.mode,
            tell=setup.tell_tables,
            attempt_id=lambda: AttemptId(coordinator.lineage, coordinator.epoch),
        )
        hooks = make_hooks(
            setup.pipeline, setup.config, resources=setup.hook_resources, warn=setup.reporter.warn
        )
        reached = gateway(tables=tables, reporter=setup.reporter)
        coordinator = CheckpointCoordinator.open(
            AttemptSetup(
                graph=setup.pipeline.graph,
                config=setup.config,
                store=setup.store,
                storage=setup.storage,
                open_storage=setup.open_storage,
                gateway=reached,
                clock=setup.clock,
                owner=setup.owner,
                root=setup.root,
                ownership=ownership,
                restore=setup.restore,
                purpose=RestorePurpose.FORK if setup.restore.fork else RestorePurpose.IN_PLACE,
                listeners=setup.listeners,
                hooks=hooks,
                read_manifest=handles_in_manifest,
                directory_state=partial(state_of_directory, setup.pipeline),
                seen=lambda: [*tables.seen(), *seen_in_directory(setup.work_dir, setup.pipeline.name)],
                acks=acks,
                background=background or ThreadBackground(),
                library_version=setup.library_version,
                lease=lease,
                admit=setup.admit,
            )
        )
        return cls(setup, coordinator, tables, reached, hooks)

    @cached_property
    def directory(self) -> AttemptDirectory:
        """The attempt's working directory, restored unless another process of this run has done that."""
        recorded = self.coordinator.working_directory
        directory = AttemptDirectory(Path(recorded)) if recorded else self._restored()
        self.gateway.attempt = directory
        return directory

    def _restored(self) -> AttemptDirectory:
        return AttemptRestorer(
            pipeline=self._setup.pipeline,
            coordinator=self.coordinator,
            work_dir=self._setup.work_dir,
            open_storage=self._setup.open_storage,
            tables=self.tables,
            reporter=self._setup.reporter,
            options=self._setup.restore,
            session=self._setup.session,
        ).restore()
