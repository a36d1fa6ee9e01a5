"""Taking of a snapshot by a job: of the running stream, or of the idle pipeline."""

from __future__ import annotations

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.core.supervision.concurrent_runs import ConcurrentRuns
from dagster_ckpt.dagster.attempt import PipelineAttempt
from dagster_ckpt.dagster.lease import request_from_running_stream
from dagster_ckpt.dagster.pipeline_resources import coordinator_of
from dagster_ckpt.dagster.turn import Skipped, Turn


def take_snapshot(
    context: dg.OpExecutionContext,
    pipeline: CheckpointedPipeline,
    request: CheckpointRequest,
    *,
    wait_for_run: float,
) -> None:
    """Let the run that is alive take it if it streams; else wait for its end, and take it of the idle pipeline.

    Raises Failure when a run that does not stream is still alive after ``wait_for_run`` seconds; Declined when the
    snapshot failed.
    """
    what = request.kind.noun
    resource = coordinator_of(context, pipeline.name)
    of_stream = request_from_running_stream(
        resource.store(), pipeline, request, open_storage=resource.open_storage
    )
    if of_stream is not None:
        place = of_stream.uri or "a newer checkpoint has taken its place"
        context.log.info(f"{what} {of_stream.checkpoint_id}, taken by run {of_stream.run_id}: {place}")
        return
    turn = Turn.of(context, pipeline, ConcurrentRuns.QUEUE, patience=wait_for_run)
    attempt = turn.take(lambda admit: PipelineAttempt.of(context, pipeline, admit=admit))
    assert not isinstance(attempt, Skipped), "who queues is not skipped"
    taken = attempt.take_snapshot(request)
    context.log.info(f"{what} {taken.metadata.checkpoint_id}: {taken.location.uri}")
