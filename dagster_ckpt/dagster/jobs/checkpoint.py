"""The job that takes a checkpoint at once (Flink: ``flink checkpoint``).

Annotations are evaluated: Dagster reads the config class from them.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.request import CheckpointRequest, SnapshotScope
from dagster_ckpt.dagster.jobs.build import one_op_job
from dagster_ckpt.dagster.jobs.take import take_snapshot
from dagster_ckpt.dagster.names import CHECKPOINT_OP, SPARK_KEY, checkpoint_job_name
from dagster_ckpt.errors import InvalidRequest


class TakeCheckpointConfig(dg.Config):
    """Config of the checkpoint job: how much it uploads, how long it waits."""

    scope: str = "configured"
    """``configured``: as the setting ``incremental`` says; ``full``: everything, so that it builds on no other
    checkpoint; ``incremental``: only what is new."""
    wait_for_run: float = 0.0
    """Seconds to wait for the end of a run that is alive and does not stream; 0: fail at once."""
    set_aside: list[str] = []  # noqa: RUF012 - Dagster copies defaults of config
    """Sinks whose waiting rows are not to be shown: they are written to files beside the tables first, and the
    checkpoint goes on without them (``dagster-ckpt set-aside`` shows which)."""

    def request(self, request_id: str) -> CheckpointRequest:
        """Return the request for it. Raises InvalidRequest."""
        if self.scope not in tuple(SnapshotScope):
            known = ", ".join(SnapshotScope)
            raise InvalidRequest(
                f"Run config of op {CHECKPOINT_OP!r}: scope must be one of {known}, got {self.scope!r}"
            )
        return CheckpointRequest(scope=SnapshotScope(self.scope), request_id=request_id)


def build_checkpoint_job(pipeline: CheckpointedPipeline, *, resources: Mapping[str, Any]) -> dg.JobDefinition:
    """Return the job that takes a checkpoint: of the run that streams the pipeline, or of the idle pipeline."""

    def checkpoint(context: dg.OpExecutionContext, config: TakeCheckpointConfig) -> None:
        request = config.request(f"checkpoint-{context.run_id}")
        chosen = [StageUid(uid) for uid in config.set_aside]
        take_snapshot(context, pipeline, request, wait_for_run=config.wait_for_run, set_aside=chosen)

    return one_op_job(
        pipeline,
        checkpoint,
        resources=resources,
        name=checkpoint_job_name(pipeline.name),
        op=CHECKPOINT_OP,
        description=f"Take a checkpoint of pipeline `{pipeline.name}` now: as configured, full or incremental.",
        resource_keys={SPARK_KEY, *pipeline.hook_resource_keys},
    )
