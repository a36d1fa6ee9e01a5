"""Names of a pipeline's jobs and ops, of tags and of resources in Dagster.

They are stable: people launch jobs by them, and run configs, links and schedules spell them. No Dagster is imported
here: the command line reads them too.
"""

from __future__ import annotations

from collections.abc import Mapping

from dagster_ckpt.core.ids import PipelineId

COORDINATOR_KEY = "checkpoint_coordinator"
SPARK_KEY = "spark"


def own_resource_key(pipeline: PipelineId, key: str) -> str:
    """Return the key of a pipeline's resource where the resources of several pipelines meet."""
    return f"{pipeline}__{key}"


# --- ops, as run configs name them ------------------------------------------------------------------------------

RESTORE_OP = "restore"
COMPLETE_OP = "complete"
STREAM_OP = "stream"
LAUNCH_OP = "launch"
STOP_OP = "stop"
SAVEPOINT_OP = "savepoint"
CHECKPOINT_OP = "checkpoint"
PREVIEW_OP = "preview"
GATED = "gated_restore"
"""``JOB_TAG`` of the job that previews a restore, and makes it once that is approved."""
DISPOSE_OP = "dispose"
MAINTAIN_OP = "maintain"
TABLES_OP = "tables"
COMPARE_OP = "compare"
SWAP_OP = "swap"
REPLAY_OP = "replay"


def op_name(pipeline: PipelineId, op: str) -> str:
    """Return the name of an op's definition: unique in a code location, while its node is called ``op``."""
    return f"{pipeline}__{op}"


# --- jobs -------------------------------------------------------------------------------------------------------


def epoch_job_name(pipeline: PipelineId) -> str:
    """Return the name of the job that runs one epoch."""
    return str(pipeline)


def streaming_job_name(pipeline: PipelineId) -> str:
    """Return the name of the job that runs a pipeline as a stream."""
    return f"{pipeline}_streaming"


def stop_job_name(pipeline: PipelineId) -> str:
    """Return the name of the job that stops a stream with a savepoint."""
    return f"{pipeline}_stop"


def savepoint_job_name(pipeline: PipelineId) -> str:
    """Return the name of the job that takes a savepoint."""
    return f"{pipeline}_savepoint"


def checkpoint_job_name(pipeline: PipelineId) -> str:
    """Return the name of the job that takes a checkpoint."""
    return f"{pipeline}_checkpoint"


def restore_job_name(pipeline: PipelineId) -> str:
    """Return the name of the job that runs one epoch from a chosen snapshot."""
    return f"{pipeline}_restore"


def gated_restore_job_name(pipeline: PipelineId) -> str:
    """Return the name of the job that previews a restore, and makes it once that is approved."""
    return f"{pipeline}_gated_restore"


def preview_job_name(pipeline: PipelineId) -> str:
    """Return the name of the job that previews a restore."""
    return f"{pipeline}_preview"


def dispose_job_name(pipeline: PipelineId) -> str:
    """Return the name of the job that disposes of a savepoint."""
    return f"{pipeline}_dispose"


def maintain_job_name(pipeline: PipelineId) -> str:
    """Return the name of the job that maintains a pipeline's tables."""
    return f"{pipeline}_maintain"


def compare_job_name(pipeline: PipelineId) -> str:
    """Return the name of the job that compares a fork with what readers find."""
    return f"{pipeline}_compare"


def swap_job_name(pipeline: PipelineId) -> str:
    """Return the name of the job that swaps readers to a fork, and back."""
    return f"{pipeline}_swap"


def replay_job_name(pipeline: PipelineId) -> str:
    """Return the name of the job that runs a fork from the nearest snapshot before a moment."""
    return f"{pipeline}_replay"


# --- tags -------------------------------------------------------------------------------------------------------


def verify_job_name(pipeline: str) -> str:
    """Return the name of the job that reads snapshots back."""
    return f"{pipeline}_verify"


def dry_run_job_name(pipeline: str) -> str:
    """Return the name of the job that tries restores."""
    return f"{pipeline}_dry_run"


PIPELINE_TAG = "dagster_ckpt/pipeline"
JOB_TAG = "dagster_ckpt/job"
"""Of jobs and their runs, what lists are filtered by: ``epoch``, ``stream``, ``restore``, ``savepoint`` …"""
RESTORE_TAG = "dagster_ckpt/restore_from"
RESTARTS_TAG = "dagster_ckpt/restarts"
RESTART_OF_TAG = "dagster_ckpt/restart_of"
CONCURRENCY_TAG = "dagster_ckpt/concurrency_key"
"""Of runs that run a pipeline's stages, with its name: what limits of Dagster's queue are set on."""
SKIPPED_TAG = "dagster_ckpt/skipped"
"""Of a run that did nothing, because another one was alive."""
STARTED_BY_TAG = "dagster_ckpt/started_by"

USER_TAG = "dagster_ckpt/user"
"""Who launched the run from the command line."""

# Dagster's own
DAGSTER_USER_TAG = "user"
SCHEDULE_TAG = "dagster/schedule_name"
SENSOR_TAG = "dagster/sensor_name"
COMPUTE_KIND_TAG = "dagster/compute_kind"
BACKFILL_TAG = "dagster/backfill"
LOCATION_TAG = "dagster/code_location"
RETRY_STRATEGY_TAG = "dagster/retry_strategy"
ROOT_RUN_TAG = "dagster/root_run_id"
WILL_RETRY_TAG = "dagster/will_retry"


def who_of(tags: Mapping[str, str]) -> str:
    """Return who launched a run: the user that Dagster+ or the command line names, a schedule, a sensor; else empty."""
    for tag in (DAGSTER_USER_TAG, USER_TAG):
        if tags.get(tag):
            return tags[tag]
    for tag, kind in ((SCHEDULE_TAG, "schedule"), (SENSOR_TAG, "sensor")):
        if tags.get(tag):
            return f"{kind} {tags[tag]}"
    return ""
