"""The turn of a Dagster run: what Dagster saw of other runs counts beside their leases.

Dagster's own limits hold runs back in its queue, before they have a process (``tag_concurrency_limits`` on the tag
``dagster_ckpt/concurrency_key``). Many runs know no queue (``dagster job execute``, ``execute_in_process``): here the
lease in the coordinator's record decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.supervision.ownership import ConcurrentRuns
from dagster_ckpt.dagster.console import failure
from dagster_ckpt.dagster.names import ROOT_RUN_TAG, SKIPPED_TAG, how_to_stop
from dagster_ckpt.dagster.reports.op_log import without_locks
from dagster_ckpt.dagster.resources.folders import gone_with_container
from dagster_ckpt.dagster.resources.pipeline import coordinator_of
from dagster_ckpt.dagster.resources.spark import SparkSessionResource
from dagster_ckpt.dagster.runs.lease import owner_state
from dagster_ckpt.dagster.start import refuse_impossible
from dagster_ckpt.runtime import turn
from dagster_ckpt.runtime.attempt_setup import Admit
from dagster_ckpt.runtime.record_store import RecordStore
from dagster_ckpt.runtime.turn import Skipped, StillAlive

T = TypeVar("T")

__all__ = ["OpTurn", "Skipped"]


@dataclass(frozen=True, slots=True)
class OpTurn:
    """Turn of the run an op belongs to; Dagster interrupts the wait when the run is terminated."""

    turn: turn.RunTurn
    instance: dg.DagsterInstance

    @classmethod
    def of(
        cls,
        context: dg.OpExecutionContext,
        pipeline: CheckpointedPipeline,
        choice: ConcurrentRuns,
        *,
        patience: float | None = None,
        spark: SparkSessionResource | None = None,
    ) -> OpTurn:
        """Return the turn of the run an op belongs to, unless it cannot start; ``patience`` in seconds, None: for ever.

        ``spark``: how the op starts a session; None: it starts none.
        """
        without_locks(context.log)
        resource = coordinator_of(context, pipeline.name)
        refuse_impossible(resource, pipeline, spark)
        return cls.of_run(
            context.instance,
            pipeline,
            run_id=context.run_id,
            records=RecordStore(resource.store()),
            root=context.run.tags.get(ROOT_RUN_TAG, context.run_id),
            say=context.log.info,
            choice=choice,
            patience=patience,
        )

    @classmethod
    def of_run(
        cls, instance: dg.DagsterInstance, pipeline: CheckpointedPipeline, *, run_id: str, **more: Any
    ) -> OpTurn:
        """Return the turn of a run; ``more`` as ``runtime.turn.RunTurn`` has it."""
        found = turn.RunTurn(
            pipeline=pipeline.name,
            run_id=run_id,
            how_to_stop="terminate it" if pipeline.program else how_to_stop(pipeline.name),
            state_of=partial(owner_state, instance),
            refuse_if_over=partial(_refuse_if_over, instance, run_id),
            **more,
        )
        return cls(found, instance)

    @classmethod
    def chosen(
        cls,
        context: dg.OpExecutionContext,
        pipeline: CheckpointedPipeline,
        *more: str,
        spark: SparkSessionResource | None = None,
    ) -> OpTurn:
        """Return the turn as the resource's ``concurrent_runs`` says, or the last of ``more`` that says anything."""
        resource = coordinator_of(context, pipeline.name)
        if lost := gone_with_container(resource, pipeline):
            context.log.warning(lost)
        layers = (resource.concurrent_runs, *more)
        return cls.of(context, pipeline, ConcurrentRuns.of(*layers), spark=spark)

    def take(self, begin: Callable[[Admit], T]) -> T | Skipped:
        """Wait for the turn, then ``begin``, which claims the pipeline; again where another run was faster.

        Raises Failure when patience is over, or when Dagster says that this run has ended.
        """
        try:
            found = self.turn.take(begin)
        except StillAlive as error:
            raise failure(str(error), error, allow_retries=False) from error
        if isinstance(found, Skipped):
            self.instance.add_run_tags(self.turn.run_id, {SKIPPED_TAG: "true"})
        return found


def _refuse_if_over(instance: dg.DagsterInstance, run_id: str) -> None:
    run = instance.get_run_by_id(run_id)
    if run is not None and run.is_finished:
        raise failure(
            f"this run was marked {run.status.value} while it waited: it ends, nothing was done",
            allow_retries=False,
        )
