"""Turns what the coordinator tells into Dagster events: materializations, partitions, checks, log lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import dagster as dg

from dagster_ckpt.asset_events import (
    completed_event,
    failed_events,
    failure_sentence,
    succeeded_evaluation,
)
from dagster_ckpt.assets import checkpoints_partitions, partition_key, restore_link
from dagster_ckpt.core.events import (
    CheckpointCompleted,
    CheckpointDiscarded,
    CheckpointFailed,
    CheckpointRejected,
    CheckpointSubsumed,
    CheckpointTriggered,
    CoordinatorEvent,
    JobFailed,
    StageAcknowledged,
    StopEnded,
)
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.paths import checkpoint_key

if TYPE_CHECKING:
    from dagster_ckpt.core.ids import CheckpointId
    from dagster_ckpt.core.reasons import CheckpointFailureReason

LOCATION_TAG = "dagster/code_location"


class DagsterEvents:
    """A listener and reporter that writes to whichever op is running now.

    Events that arrive while no op runs (teardown) go to the run's last op context.
    """

    def __init__(
        self, pipeline: PipelineId, *, job_name: str, restore_op: str, ui_base_url: str = ""
    ) -> None:
        self._pipeline = pipeline
        self._job_name = job_name
        self._restore_op = restore_op
        self._ui_base_url = ui_base_url
        self._context: dg.OpExecutionContext | None = None

    def attach(self, context: dg.OpExecutionContext) -> None:
        """Write to this op from now on."""
        self._context = context

    def info(self, message: str) -> None:
        """Say something an operator may want to read."""
        if self._context is not None:
            self._context.log.info(message)

    def warn(self, message: str) -> None:
        """Say something an operator should read."""
        if self._context is not None:
            self._context.log.warning(message)

    def __call__(self, event: CoordinatorEvent) -> None:
        """Hear one event of the coordinator."""
        match event:
            case CheckpointTriggered():
                self.info(f"{event.kind.value} {event.checkpoint_id} triggered")
            case StageAcknowledged():
                self.info(
                    f"checkpoint {event.checkpoint_id}: {event.uid} acknowledged "
                    f"({event.acknowledged}/{event.expected})"
                )
            case CheckpointCompleted():
                self._completed(event)
            case CheckpointFailed():
                self._failed(event)
            case CheckpointRejected():
                self._rejected(event.reason, event.message)
            case CheckpointDiscarded():
                self._discarded(event.checkpoint_id)
            case CheckpointSubsumed():
                self.info(f"checkpoint {event.checkpoint_id} is subsumed by a newer one")
            case JobFailed():
                self.warn(event.cause)
            case StopEnded():
                self.info("stop-with-savepoint is over")
            case _:
                assert_never(event)

    # --- what each becomes -------------------------------------------------------------------------------------

    def _completed(self, event: CheckpointCompleted) -> None:
        context = self._context
        if context is None:
            return
        key = partition_key(event.metadata)
        context.instance.add_dynamic_partitions(checkpoints_partitions(self._pipeline).name or "", [key])
        link = self._link(context, key)
        context.log_event(completed_event(self._pipeline, event.metadata, uri=event.uri, link=link))
        self._check(
            context, passed=True, metadata={"checkpoint": int(event.checkpoint_id), "consecutive_failures": 0}
        )

    def _failed(self, event: CheckpointFailed) -> None:
        self.warn(failure_sentence(event))
        if self._context is not None:
            for reported in failed_events(self._pipeline, event):
                _log(self._context, reported)

    def _rejected(self, reason: CheckpointFailureReason, message: str) -> None:
        self.warn(f"no checkpoint: {message or reason.text} ({reason.name})")
        if self._context is not None and reason.counted:
            self._check(self._context, passed=False, metadata={"reason": reason.name, "message": message})

    def _discarded(self, number: CheckpointId) -> None:
        context = self._context
        key = checkpoint_key(number)
        self.info(f"{key} is no longer retained: its files are deleted")
        if context is not None:
            context.instance.delete_dynamic_partition(checkpoints_partitions(self._pipeline).name or "", key)

    def _check(self, context: dg.OpExecutionContext, *, passed: bool, metadata: dict[str, str | int]) -> None:
        _log(context, succeeded_evaluation(self._pipeline, passed=passed, metadata=metadata))

    def _link(self, context: dg.OpExecutionContext, key: str) -> str | None:
        location = context.run.tags.get(LOCATION_TAG)
        if not location:
            return None
        return restore_link(
            job_name=self._job_name,
            location=location,
            restore_op=self._restore_op,
            restore_from=key,
            ui_base_url=self._ui_base_url,
        )


def _log(context: dg.OpExecutionContext, event: dg.AssetObservation | dg.AssetCheckEvaluation) -> None:
    # Dagster takes check evaluations here too; its annotation does not say so.
    context.log_event(event)  # type: ignore[arg-type]
