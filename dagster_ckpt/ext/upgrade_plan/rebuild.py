"""A stage rebuilt from its kept input beside its pipeline, which it joins in one checkpoint.

The branch runs epochs as a pipeline of its own, with its own tables. Then, in the pipeline's turn, a savepoint is put
together: the branch's state in place of the old one's, its rows as one batch that waits for the old table, all other
stages as the pipeline's newest checkpoint has them. The pipeline's next epoch begins with it. The old rows are served
until that restore shows the new ones in one commit; whatever is killed, one of the two snapshots is complete.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.config import ClaimMode, RestoreOptions
from dagster_ckpt.core.ids import CoordinatorEpoch, PipelineId, StageUid
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.paths import CheckpointPaths
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.core.restore_point import At
from dagster_ckpt.dagster.runs.turn import request_from_running_stream
from dagster_ckpt.errors import Declined, InvalidRequest
from dagster_ckpt.ext.upgrade_plan.branch import Branch, StartMode, branch_of, refuse_ahead
from dagster_ckpt.ext.upgrade_plan.joined import JoinedSavepoint
from dagster_ckpt.operations.deployment import Deployment, load_record
from dagster_ckpt.operations.readers.open_sink import open_sink
from dagster_ckpt.operations.snapshots.catalog import find_snapshot
from dagster_ckpt.operations.snapshots.export import free_savepoint_folder
from dagster_ckpt.operations.snapshots.registration import reserve_id
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.programs import EpochEnd, host_epoch, hosted, run_epoch, turn_of
from dagster_ckpt.running import Host, stage_arguments
from dagster_ckpt.runtime.attempt_setup import Admit, Occupied, Ownership
from dagster_ckpt.spark.attempt.own_objects import StageArguments
from dagster_ckpt.spark.epoch.attempt import EpochAttempt
from dagster_ckpt.spark.exchange.options import is_in_object_store
from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.spark.sink import opening
from dagster_ckpt.spark.sink.port import AttemptId, Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
    from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource

_PLACES = ("store_url", "checkpoint_dir", "savepoint_dir", "work_dir", "table_dir")
_SAVEPOINT = "savepoint"
"""File of a branch that names the savepoint which is put together."""
CATCH_UPS = 2
"""Epochs of a branch: the second reads what has come during the first, and taking over reads the rest."""


@dataclass(frozen=True, kw_only=True)
class Rebuilding:
    """Rebuilding of one sink of a pipeline, and of what leads to it alone."""

    pipeline: CheckpointedPipeline
    """As its code is now."""
    branch: Branch
    coordinator: CheckpointCoordinatorResource
    spark: SparkSession
    given: Mapping[str, Any] = field(default_factory=dict)
    """``settings``, ``stages``, ``resources`` as ``run_epoch`` takes them."""
    allow_non_restored_state: bool = False
    stops_stream: bool = False
    """A stream that runs the pipeline is stopped with a savepoint when the branch has caught up."""
    step: Callable[[str], None] = lambda name: None
    """Told of each step before it is done."""

    @classmethod
    def of(
        cls,
        pipeline: CheckpointedPipeline,
        uid: str,
        *,
        coordinator: CheckpointCoordinatorResource,
        start_mode: str = "",
        **more: Any,
    ) -> Rebuilding:
        """Return the rebuilding of a sink. Raises NotFound, InvalidRequest where it cannot be rebuilt alone.

        ``start_mode``: ``from-beginning``, ``from-now`` or a moment; empty: its sources begin as their code says.
        """
        branch = branch_of(pipeline, uid, coordinator.resolved_table_dir(pipeline), StartMode.of(start_mode))
        made = cls(pipeline=pipeline, branch=branch, coordinator=coordinator, **more)
        made._refuse_to_exchange()
        if is_in_object_store(coordinator.work_dir):
            raise InvalidRequest(
                "a branch is rebuilt on a disk that all machines see, and work_dir is in an object store: fork the "
                "pipeline, compare, and swap readers"
            )
        find_snapshot(made._deployment, "latest", pipeline.name)  # says that there is nothing to keep
        return made

    def _refuse_to_exchange(self) -> None:
        """Raise InvalidRequest where the rows that the sink shows must not give way to others."""
        sink = self._sink()
        if why := sink.never_rolls_back or sink.why_not_exchanged():
            raise InvalidRequest(
                f"the rows of sink {self.branch.uid!r} cannot be exchanged: {why}. Give it a new uid and another place"
            )

    def carry_out(self, *, again: bool = False) -> EpochEnd:
        """Rebuild the branch, and let it take over in the pipeline's next epoch, which is run; return its end.

        A try that was killed is gone on with; ``again``: it begins empty. Raises as ``run_epoch`` does.
        """
        self.catch_up(again=again)
        end = self.take_over()
        if end.checkpoint is None:
            why = f" ({end.skipped})" if end.skipped else ""
            raise Declined(
                f"{self.branch.uid!r} has taken over, and no checkpoint of it is complete{why}: run the pipeline"
            )
        self.step("removing the branch")
        folder = self.branch.folder.parent  # it would say that a rebuilding is gone on with
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # others are being rebuilt
            folder.parent.rmdir()
        return end

    def catch_up(self, *, again: bool = False) -> None:
        """Run the branch until it has read what there was, beside whatever runs the pipeline."""
        branch = self.branch
        if again or not branch.folder.exists():
            shutil.rmtree(branch.folder.parent, ignore_errors=True)
        if not branch.folder.exists():
            self.step("looking at its input")
            refuse_ahead(branch, self._sink(), self.spark, self._arguments)
        for number in range(CATCH_UPS):
            self.step(f"epoch {number + 1} of the branch")
            given = {**self.given, "stages": self._configured}
            run_epoch(branch.pipeline, coordinator=self._own, spark=self.spark, **given)

    def take_over(self) -> EpochEnd:
        """Run the pipeline's next epoch, in its turn, from its newest checkpoint with the branch's state in it."""
        if self.stops_stream:
            self.step("stopping the stream")
            stop, there = CheckpointRequest(kind=CheckpointKind.SYNC_SAVEPOINT_SUSPEND), self._deployment
            request_from_running_stream(
                there.store, self.pipeline.name, stop, open_storage=there.open_storage
            )
        self.step("waiting for the pipeline's turn")
        with hosted(self.pipeline, coordinator=self.coordinator, spark=self.spark, **self.given) as host:
            same = {one.name: getattr(host, one.name) for one in fields(Host)}
            turn = replace(turn_of(host), say=self.step)
            return host_epoch(_TakingOver(**same, rebuilding=self), turn)

    @property
    def _deployment(self) -> Deployment:
        return self.coordinator.deployment(self.pipeline)

    @cached_property
    def _own(self) -> CheckpointCoordinatorResource:
        """Places of the branch: all in its folder, so that nobody else knows of it, and nothing of it is left."""
        places = dict.fromkeys(_PLACES, "") | {"base_dir": str(self.branch.folder)}
        given = {name: getattr(self.coordinator, name) for name in self.coordinator.model_fields_set}
        return type(self.coordinator)(**{**given, **places})

    @property
    def _configured(self) -> dict[str, Any]:
        """Config of the branch's stages."""
        return {uid: said for uid, said in self.given.get("stages", {}).items() if uid in self.branch.members}

    def _arguments(self, uid: StageUid) -> StageArguments:
        found = SimpleNamespace(**self.given.get("resources", {}))
        return stage_arguments(self.branch.pipeline, self._configured, found)[uid]

    def _sink(self, **of_stage: Any) -> Sink:
        """Return the sink that is rebuilt, opened as the pipeline's newest attempt has it but for ``of_stage``."""
        record = load_record(self._deployment.store, self.pipeline.name)
        return opening.open_sink(
            replace(self.pipeline.stages[self.branch.uid], **of_stage),
            self.pipeline.name,
            previous_pipelines=self.pipeline.previous_names,
            table_dir=self.coordinator.resolved_table_dir(self.pipeline),
            work_dir=self.coordinator.resolved_work_dir,
            attempt=lambda: AttemptId(record.lineage, CoordinatorEpoch(record.epoch)),
        )

    def put_together(self) -> JoinedSavepoint:
        """Write the savepoint in which the branch has taken over; nobody else runs the pipeline meanwhile.

        Raises InvalidRequest where the sink's table cannot show the rebuilt rows.
        """
        self._refuse_to_exchange()
        deployment = self._deployment
        old = find_snapshot(deployment, "latest", self.pipeline.name).stored
        storage, note = deployment.savepoint_storage(), self.branch.folder / _SAVEPOINT
        name, record = self.branch.pipeline.name, load_record(deployment.store, self.pipeline.name)
        base = () if record.line is None or record.line.base is None else (record.line.base,)
        known = {one.location.folder for one in (*record.completed, *record.savepoints, *base)}
        forget_savepoint(note, storage, name, known=known)
        folder = free_savepoint_folder(storage, name)
        replace_whole(note, folder.encode())
        number = reserve_id(deployment, self.pipeline.name)
        self.step("staging the rebuilt rows")
        with self._own.held(), tempfile.TemporaryDirectory(prefix="dagster-ckpt-rebuilt-") as scratch:
            new = find_snapshot(self._own.deployment(self.branch.pipeline), "latest", name).stored
            made = JoinedSavepoint(
                pipeline=self.pipeline,
                branch=self.branch,
                sink=self._sink(output_mode="complete"),
                own=open_sink(self.branch.pipeline, self.branch.uid, self._own),
                spark=self.spark,
                opened=lambda uid: open_sink(self.pipeline.authored, uid, self.coordinator),
                step=self.step,
                old=old,
                new=new,
                number=number,
                folder=folder,
                target=storage,
            )
            made.write(Path(scratch))
        return made


def forget_savepoint(
    note: Path, storage: CheckpointStorage, branch: PipelineId, *, known: Collection[str]
) -> None:
    """Remove the savepoint of a try that was killed before the pipeline knew it, as ``note`` names it.

    A folder of another name is another's savepoint, and one without a name would be all of them.
    """
    folder = note.read_text() if note.exists() else ""
    if folder.startswith(CheckpointPaths(branch).savepoint("")) and folder not in known:
        storage.delete([found.key for found in storage.list(folder)])


@dataclass(frozen=True, kw_only=True)
class _TakingOver(Host):
    """Host of the epoch that begins with the savepoint that is put together in its turn."""

    rebuilding: Rebuilding

    def epoch(self, admit: Admit, *, ownership: Ownership = Ownership.NEW_ATTEMPT) -> EpochAttempt:
        made = self.rebuilding.put_together()
        self.rebuilding.step("beginning with it")
        options = RestoreOptions(
            restore_from=At(made.uri),
            claim_mode=ClaimMode.CLAIM,
            allow_non_restored_state=self.rebuilding.allow_non_restored_state,
        )
        try:
            return Host.epoch(replace(self, restore=options), admit, ownership=ownership)
        except Occupied:  # another run was faster, and its checkpoint is newer than what was put together
            made.remove()
            raise
