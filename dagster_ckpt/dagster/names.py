"""Names of a pipeline's jobs and ops, of tags and of resources in Dagster.

They are stable: people launch jobs by them, and run configs, links and schedules spell them. No Dagster is imported
here: the command line reads them too.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

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
SAVEPOINT_OP = "savepoint"
CARE_OP = "care"
TABLES_OP = "tables"


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


def savepoint_job_name(pipeline: PipelineId) -> str:
    """Return the name of the job that takes snapshots and removes savepoints."""
    return f"{pipeline}_savepoint"


def restore_job_name(pipeline: PipelineId) -> str:
    """Return the name of the job that runs one epoch from a chosen snapshot, or says what that would do."""
    return f"{pipeline}_restore"


def care_job_name(pipeline: PipelineId) -> str:
    """Return the name of the job that looks after tables and snapshots, and after a fork."""
    return f"{pipeline}_care"


def how_to_stop(pipeline: PipelineId) -> str:
    """Return how a stream is ended, for people."""
    return (
        f"stop it with job {savepoint_job_name(pipeline)} and action: {SavepointAction.STOP}, or terminate it"
    )


# --- what a job does, as its config says --------------------------------------------------------------------------


class SavepointAction(StrEnum):
    """Actions of the savepoint job."""

    SAVEPOINT = "savepoint"
    CHECKPOINT = "checkpoint"
    STOP = "stop"
    DISPOSE = "dispose"


class RestoreMode(StrEnum):
    """Modes of a run that starts from a snapshot: it restores, or only says what that would do."""

    RESTORE = "restore"
    PREVIEW = "preview"
    GATE = "gate"
    """A preview that is tried and can be approved; launched again with its approval, the restore."""
    DRY_RUN = "dry_run"


class CareAction(StrEnum):
    """Actions of the care job; the last three: of a fork."""

    MAINTAIN = "maintain"
    VERIFY = "verify"
    REQUEUE = "requeue"
    COMPARE = "compare"
    SWAP = "swap"
    REPLAY = "replay"


# --- tags -------------------------------------------------------------------------------------------------------


PIPELINE_TAG = "dagster_ckpt/pipeline"
JOB_TAG = "dagster_ckpt/job"
"""Of jobs and their runs, what lists are filtered by: ``epoch``, ``stream``, ``restore``, ``savepoint``, ``care``."""
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
