"""Whether a launched run went well: the coordinator's record says so, not the program's exit nor its messages."""

from __future__ import annotations

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.properties import RunStatus
from dagster_ckpt.dagster.launched.messages import Ended

_STOPPED = (
    "the program was stopped from outside (SIGTERM or SIGINT), and this run was not terminated: the next run goes on "
    "from the latest checkpoint"
)
_NOT_ENDED = (
    "the program ended, but its run did not: it was stopped from outside, or the client returned while it still runs; "
    "the next run goes on from the latest checkpoint"
)


def why_not(record: CoordinatorRecord | None, ended: Ended | None, *, run_id: str, pipeline: str) -> str:
    """Return why a run whose program has ended without an error must fail; empty: it went well."""
    if ended is not None and ended.skipped:
        return ""
    if ended is not None and ended.interrupted:
        return _STOPPED
    if record is not None and record.owner == run_id:
        return _why_not_ended(record, is_told=ended is not None)
    if ended is not None and record is not None and _is_earlier(ended, record):
        return ""  # it said how it ended, in this store; another run has taken its turn since
    found = (
        "the store of this code location has no run of the pipeline"
        if record is None
        else f"in the store of this code location the newest run of the pipeline is {record.owner or 'none'}"
    )
    if ended is None:
        return (
            f"the program ended, but {found}, not this one ({run_id}): does it call run_launched({pipeline}, ...), and "
            "is its coordinator's store_url that of the code location?"
        )
    return (
        f"the program ran the pipeline, but in another store: {found}. Give its coordinator the store_url of the code "
        "location"
    )


def _is_earlier(ended: Ended, record: CoordinatorRecord) -> bool:
    return bool(ended.lineage) and ended.lineage == record.lineage and 0 < ended.epoch < record.epoch


def _why_not_ended(record: CoordinatorRecord, *, is_told: bool) -> str:
    if (
        record.status_epoch != record.epoch
    ):  # claimed and never started: the status is that of the attempt before
        return _NOT_ENDED
    match record.status:
        case RunStatus.SUSPENDED if _is_between_attempts(record, is_told=is_told):
            return _NOT_ENDED
        case RunStatus.SUSPENDED | RunStatus.FINISHED:
            return ""
        case RunStatus.RUNNING:
            return _NOT_ENDED
        case RunStatus.CANCELED:
            return _STOPPED
        case RunStatus.FAILED:
            why = f": {record.job_failure}" if record.job_failure else ", as its log says"
            return f"the run failed in the program{why}"


def _is_between_attempts(record: CoordinatorRecord, *, is_told: bool) -> bool:
    """Return True where a stream's attempt has failed and the next one is to follow: it never is left clean."""
    return record.lease_until is not None or not (record.clean or is_told)
