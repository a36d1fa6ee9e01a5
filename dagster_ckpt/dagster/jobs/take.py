"""Taking of a snapshot by a job: of the running stream, or of the idle pipeline."""

from __future__ import annotations

import time

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.dagster.attempt import PipelineAttempt
from dagster_ckpt.dagster.lease import Alive, owner_of, request_from_running_stream
from dagster_ckpt.dagster.resources import coordinator_of
from dagster_ckpt.runtime.record_store import RecordStore

_POLL_SECONDS = 5.0


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
    of_stream = request_from_running_stream(coordinator_of(context).store(), pipeline, request)
    if of_stream is not None:
        place = of_stream.uri or "a newer checkpoint has taken its place"
        context.log.info(f"{what} {of_stream.checkpoint_id}, taken by run {of_stream.run_id}: {place}")
        return
    _wait_while_running(context, pipeline, wait_for_run)
    taken = PipelineAttempt.of(context, pipeline).take_snapshot(request)
    context.log.info(f"{what} {taken.metadata.checkpoint_id}: {taken.location.uri}")


def _wait_while_running(
    context: dg.OpExecutionContext, pipeline: CheckpointedPipeline, seconds: float
) -> None:
    """Return when no other run of the pipeline is alive; raise Failure when one still is after ``seconds``."""
    records = RecordStore(coordinator_of(context).store())
    until = time.monotonic() + seconds
    while True:
        owner = owner_of(records.record(pipeline.name), context.instance, now=time.time())
        if not isinstance(owner, Alive) or owner.run_id == context.run_id:
            return
        why = (
            f"run {owner.run_id} of pipeline {pipeline.name!r} is alive: wait for its end, or terminate it, "
            "and launch this job again"
        )
        if time.monotonic() >= until:
            raise dg.Failure(description=why, allow_retries=False)
        context.log.info(f"waiting: {why}")
        time.sleep(min(_POLL_SECONDS, max(0.1, until - time.monotonic())))
