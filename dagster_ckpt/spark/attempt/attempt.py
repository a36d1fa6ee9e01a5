"""One attempt of a pipeline, in both kinds of run: its coordinator, its tables, its working directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dagster_ckpt.authoring.own_objects import HookContext
from dagster_ckpt.authoring.pipeline import run_as
from dagster_ckpt.core.chains import OtherChains, kept_chains
from dagster_ckpt.core.checkpoint.lease import Lease
from dagster_ckpt.core.checkpoint.record import CompletedRecord, CoordinatorRecord
from dagster_ckpt.core.coordinator.state import AckDurability
from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.core.model import Chain, CheckpointMetadata
from dagster_ckpt.core.restore.choice import Fresh, Restore
from dagster_ckpt.core.restore.facts import RestorePurpose, Seen
from dagster_ckpt.core.restore.start_checks import refuse_start
from dagster_ckpt.core.restore.start_facts import OutsideFacts, StartFacts
from dagster_ckpt.errors import InvalidRequest, Unavailable
from dagster_ckpt.runtime.attempt_setup import AttemptSetup, Ownership
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.runtime.driver.user_hook import UserHook
from dagster_ckpt.runtime.files import Background, ThreadBackground
from dagster_ckpt.runtime.record_store import RecordStore
from dagster_ckpt.runtime.status import finished_stages
from dagster_ckpt.runtime.stored import read_metadata
from dagster_ckpt.spark.attempt.earlier_attempts import seen_in_directory
from dagster_ckpt.spark.attempt.own_objects import StageArguments, call_stage
from dagster_ckpt.spark.attempt.pipeline_setup import PipelineSetup, StageGateway
from dagster_ckpt.spark.attempt.restore import (
    AttemptRestorer,
    bounded_among,
    refuse_lost_positions,
    refuse_partial_inputs,
    state_of_directory,
    stored_in,
)
from dagster_ckpt.spark.attempt.showing import ShownBefore
from dagster_ckpt.spark.attempt.sinks import PipelineSinks
from dagster_ckpt.spark.attempt.sinks_at_start import SinksAtStart
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.exchange.mounts import work_in
from dagster_ckpt.spark.sink.port import AttemptId
from dagster_ckpt.spark.snapshot.upload import handles_in_manifest
from dagster_ckpt.spark.source.pins import refuse_gone_files
from dagster_ckpt.spark.source.positions import GroupOffsets
from dagster_ckpt.spark.versions import refuse_channels

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
    from dagster_ckpt.core.config import CheckpointConfig
    from dagster_ckpt.core.restore.choice import RestoreDecision


@dataclass(frozen=True, slots=True)
class OpenedChains:
    """Chains an attempt is opened with; opening it finds out whether they are those of what it starts from."""

    chains: tuple[Chain, ...]
    fits_fresh: bool
    """They may be those of a start without state too."""


def chains_to_begin_with(setup: PipelineSetup, ownership: Ownership) -> OpenedChains:
    """Return the chains the attempt most probably has: the last one's.

    Raises InvalidRequest where this very run has begun with chains that the stages do not fit any more.
    """
    loaded = RecordStore(setup.store).load(setup.pipeline.name)
    if loaded is None:
        return chosen_chains(setup)
    record = loaded.record
    runs_now = record.owner == setup.owner and record.started_epoch == record.epoch
    try:
        chains = kept_chains(setup.pipeline.graph, record.chains)
    except InvalidRequest:
        if ownership is Ownership.ATTACH and runs_now:
            raise
        chains = ()  # the directory is not adopted then, and a snapshot of it is refused
    return OpenedChains(chains, fits_fresh=not chains and not setup.config.operator_chaining)


def chosen_chains(setup: PipelineSetup) -> OpenedChains:
    """Return the chains of a pipeline that begins without state: none, unless ``operator_chaining`` is on."""
    if not setup.config.operator_chaining:
        return OpenedChains((), fits_fresh=True)

    def call(spark: SparkSession, uid: StageUid, inputs: Sequence[DataFrame]) -> DataFrame:
        return call_stage(setup.pipeline.stages[uid], spark, inputs, setup.arguments(uid))

    chains = setup.choose(setup.pipeline, setup.session(), call, setup.reporter.info)
    return OpenedChains(chains, fits_fresh=True)


def make_hooks(
    pipeline: CheckpointedPipeline, config: CheckpointConfig, *, resources: Any, warn: Callable[[str], None]
) -> dict[str, UserHook]:
    """Return an object of each hook's class. A call may take half of the checkpoint's timeout: stages need the rest."""
    context = HookContext(pipeline=pipeline.name, resources=resources)
    return {
        hook.uid: UserHook(
            hook.uid, hook.new(context), timeout=min(hook.timeout, config.timeout / 2), warn=warn
        )
        for hook in pipeline.hooks
    }


def with_hooks(
    arguments: Mapping[StageUid, StageArguments], pipeline: CheckpointedPipeline, hooks: Mapping[str, Any]
) -> dict[StageUid, StageArguments]:
    """Return the arguments of every stage, with the attempt's hooks in them."""
    return {uid: replace(arguments.get(uid, StageArguments()), hooks=hooks) for uid in pipeline.stages}


G = TypeVar("G", bound=StageGateway)

TRIES = 4
"""How often an attempt is opened whose restore point changes meanwhile."""


@dataclass(frozen=True, slots=True)
class _Options:
    """How the coordinator of an attempt is opened."""

    ownership: Ownership
    acks: AckDurability
    background: Background
    lease: Lease | None


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
        self.pipeline = tables.pipeline
        """As it runs: its chains are one stage each."""
        self.coordinator = coordinator
        self.tables = tables
        self.gateway = gateway
        self.hooks = {uid: hook.hook for uid, hook in hooks.items()}
        """What the pipeline's hooks made for this attempt."""
        gateway.all_shown = coordinator.tables_shown
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
        options = _Options(ownership, acks, background or ThreadBackground(), lease)
        chains = chains_to_begin_with(setup, ownership)
        for _ in range(TRIES):
            try:
                return cls._opened(setup, gateway, options, chains)
            except OtherChains as other:
                chains = (
                    chosen_chains(setup)
                    if other.chains is None
                    else OpenedChains(other.chains, fits_fresh=True)
                )
        raise Unavailable(
            "what the pipeline starts from has changed while it was looked at: start the run again"
        )

    @classmethod
    def _opened(
        cls, setup: PipelineSetup, gateway: type[G], options: _Options, begin: OpenedChains
    ) -> Attempt[G]:
        import pyspark

        pipeline = run_as(setup.pipeline, begin.chains)
        refuse_channels(pyspark.__version__, [(one.upstream, one.downstream) for one in pipeline.graph.edges])
        tables = PipelineSinks(
            pipeline=pipeline,
            table_dir=setup.table_dir,
            work_dir=setup.work_dir,
            session=setup.session,
            tell=setup.tell_tables,
            attempt_id=lambda: AttemptId(coordinator.lineage, coordinator.epoch),
        )
        hooks = make_hooks(
            setup.pipeline, setup.config, resources=setup.hook_resources, warn=setup.reporter.warn
        )
        groups = [GroupOffsets(pipeline, setup.reporter)] if GroupOffsets.wanted(pipeline) else []
        reached = gateway(tables=tables, reporter=setup.reporter)
        coordinator = CheckpointCoordinator.open(
            AttemptSetup.of(
                setup,
                graph=pipeline.graph,
                fits_fresh=begin.fits_fresh,
                gateway=reached,
                ownership=options.ownership,
                purpose=RestorePurpose.FORK if setup.restore.fork else RestorePurpose.IN_PLACE,
                listeners=[*setup.listeners, *groups],
                hooks=hooks,
                read_manifest=handles_in_manifest,
                directory_state=partial(state_of_directory, pipeline, setup.work_dir),
                tell_shown=tables.tell_shown,
                check_start=partial(_check_start, setup, tables, gateway.runs_what_finished),
                seen=lambda: [*tables.seen(), *_seen_in_directories(setup)],
                acks=options.acks,
                background=options.background,
                lease=options.lease,
            )
        )
        return cls(setup, coordinator, tables, reached, hooks)

    @cached_property
    def directory(self) -> AttemptDirectory:
        """The attempt's working directory, restored unless another process of this run has done that."""
        recorded = self.coordinator.working_directory
        directory = _directory_of_run(recorded) if recorded else self._restored()
        work_in(directory.root)
        self.gateway.attempt = directory
        return directory

    def _restored(self) -> AttemptDirectory:
        return AttemptRestorer(
            pipeline=self.pipeline,
            coordinator=self.coordinator,
            work_dir=self._setup.work_dir,
            open_storage=self._setup.open_storage,
            tables=self.tables,
            reporter=self._setup.reporter,
            options=self._setup.restore,
            before=_shown_before(self._setup),
            set_aside=self._setup.set_aside,
            session=self._setup.session,
        ).restore()


def _directory_of_run(recorded: str) -> AttemptDirectory:
    """Return the directory that this run has restored. Raises InvalidRequest where this process does not see it.

    Made again, it would be an empty one: every stage would begin at its source's start, and write its rows again.
    """
    directory = AttemptDirectory(Path(recorded))
    if not directory.mark.exists():
        raise InvalidRequest(
            f"the working directory {recorded} of this run is not here: another process has restored it, on another "
            "machine or in another container. Give work_dir a folder that all processes of a run share, or let one "
            "process execute all steps (PipelineOptions(executor=in_process_executor), the default)"
        )
    return directory


def _shown_before(setup: PipelineSetup) -> ShownBefore:
    names = (setup.pipeline.name, *setup.pipeline.previous_names)
    return ShownBefore(names, RecordStore(setup.store), setup.open_storage)


def _seen_in_directories(setup: PipelineSetup) -> Iterator[Seen]:
    for name in (setup.pipeline.name, *setup.pipeline.previous_names):
        yield from seen_in_directory(setup.work_dir, name)


def _check_start(
    setup: PipelineSetup, tables: PipelineSinks, runs_what_finished: bool, decision: RestoreDecision
) -> None:
    finished = frozenset if runs_what_finished else partial(_finished, setup, tables.pipeline, decision)
    outside = OutsideFacts(
        inputs=partial(refuse_partial_inputs, tables.pipeline, decision),
        positions=partial(refuse_lost_positions, tables.pipeline, setup.reporter, decision, finished),
        files=partial(_check_files, setup, decision),
        sinks=partial(_check_beginning, setup, tables, decision),
    )
    refuse_start(StartFacts(outside=outside))


def _finished(
    setup: PipelineSetup, pipeline: CheckpointedPipeline, decision: RestoreDecision
) -> frozenset[StageUid]:
    """Return the sources that a stream does not read again."""

    def metadata_of(entry: CompletedRecord) -> CheckpointMetadata:
        storage = setup.open_storage(entry.location.base_uri)
        return read_metadata(storage, entry.location.folder, recorded=entry.metadata_checksum)

    record = RecordStore(setup.store).record(setup.pipeline.name) or CoordinatorRecord(
        pipeline=setup.pipeline.name
    )
    return bounded_among(pipeline, finished_stages(decision, record, metadata_of))


def _check_files(setup: PipelineSetup, decision: RestoreDecision) -> None:
    if isinstance(decision, Restore) and not setup.restore.allow_missing_files:
        snapshot = stored_in(setup.open_storage, decision)
        record = RecordStore(setup.store).record(PipelineId(decision.metadata.pipeline))
        refuse_gone_files(snapshot, record, setup.open_storage)


def _check_beginning(setup: PipelineSetup, tables: PipelineSinks, decision: RestoreDecision) -> None:
    at_start = SinksAtStart(
        sinks=tables,
        reporter=setup.reporter,
        before=_shown_before(setup),
        keep_rows_of=setup.restore.keep_rows_of,
    )
    at_start.refusals.refuse_unknown()
    if isinstance(decision, Fresh) and setup.restore.roll_back_tables:
        at_start.refuse_beginning()
