"""Taking of a snapshot by a job: of the running stream, or of the idle pipeline."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.core.supervision.concurrent_runs import ConcurrentRuns
from dagster_ckpt.dagster.attempt import PipelineAttempt
from dagster_ckpt.dagster.lease import request_from_running_stream
from dagster_ckpt.dagster.operator import who_of
from dagster_ckpt.dagster.pipeline_resources import coordinator_of
from dagster_ckpt.dagster.turn import Skipped, Turn
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.runtime.audit import NOBODY, Operator
from dagster_ckpt.spark.sink.waiting.aside import FOLDER


def take_snapshot(
    context: dg.OpExecutionContext,
    pipeline: CheckpointedPipeline,
    request: CheckpointRequest,
    *,
    wait_for_run: float,
    set_aside: Sequence[StageUid] = (),
) -> None:
    """Let the run that is alive take it if it streams; else wait for its end, and take it of the idle pipeline.

    ``set_aside``: sinks whose waiting rows go to files first; of an idle pipeline only.

    Raises Failure when a run that does not answer is still alive after ``wait_for_run`` seconds; Declined when the
    snapshot failed; InvalidRequest for a sink that is none.
    """
    what = request.kind.noun
    resource = coordinator_of(context, pipeline.name)
    if set_aside:
        _refuse_unknown(pipeline, set_aside)
        of_stream = None
    else:
        of_stream = request_from_running_stream(
            resource.store(), pipeline, request, open_storage=resource.open_storage
        )
    if of_stream is not None:
        place = of_stream.uri or "a newer checkpoint has taken its place"
        context.log.info(f"{what} {of_stream.checkpoint_id}, taken by run {of_stream.run_id}: {place}")
        return
    turn = Turn.of(context, pipeline, ConcurrentRuns.QUEUE, patience=wait_for_run)
    operator = _who_sets_aside(context, pipeline) if set_aside else NOBODY
    attempt = turn.take(
        lambda admit: PipelineAttempt.of(
            context, pipeline, admit=admit, operator=operator, set_aside=set_aside
        )
    )
    assert not isinstance(attempt, Skipped), "who queues is not skipped"
    taken = attempt.take_snapshot(request)
    context.log.info(f"{what} {taken.metadata.checkpoint_id}: {taken.location.uri}")


def _refuse_unknown(pipeline: CheckpointedPipeline, set_aside: Sequence[StageUid]) -> None:
    sinks = [uid for uid, stage in pipeline.stages.items() if stage.table is not None]
    unknown = [uid for uid in set_aside if uid not in sinks]
    if unknown:
        raise InvalidRequest(
            f"pipeline {pipeline.name!r} has no sink {unknown[0]!r} to set rows aside of: it has {', '.join(sinks)}"
        )


def _who_sets_aside(context: dg.OpExecutionContext, pipeline: CheckpointedPipeline) -> Operator:
    table_dir = coordinator_of(context, pipeline.name).resolved_table_dir(pipeline)
    return Operator(who=who_of(context.run.tags), sets_aside=str(table_dir / FOLDER / pipeline.name))
