"""Stop-with-savepoint: two facts may arrive in either order, three endings follow from them.

Source: flink-runtime StopWithSavepointTerminationHandlerImpl and …Manager (their tests are named in ours).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dagster_ckpt.core.checkpoint.tasks import StageStatus
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.reasons import CheckpointFailureReason
from dagster_ckpt.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class SavepointCreated:
    """The savepoint is complete; ``uri`` is its folder."""

    checkpoint_id: CheckpointId
    uri: str


@dataclass(frozen=True, slots=True)
class SavepointFailed:
    """There is no savepoint."""

    reason: CheckpointFailureReason
    message: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """Ending 1: the savepoint is complete and every stage finished."""

    uri: str


@dataclass(frozen=True, slots=True)
class NotStopped:
    """Ending 2: no savepoint; the pipeline runs on, periodic checkpoints are taken again."""

    reason: CheckpointFailureReason
    message: str


@dataclass(frozen=True, slots=True)
class StoppedBadly:
    """Ending 3: the savepoint is complete and kept, but stages ended otherwise: the run fails over, or has ended."""

    uri: str
    message: str


StopOutcome = Stopped | NotStopped | StoppedBadly


@dataclass(frozen=True, slots=True, kw_only=True)
class StopWithSavepoint:
    """State of a stop-with-savepoint; ``outcome`` follows from it and is None while it is open.

    The savepoint is judged before the end of the stages, whichever came first. After a failed savepoint it does
    not matter how the stages end.
    """

    checkpoint_id: CheckpointId | None = None
    savepoint: SavepointCreated | SavepointFailed | None = None
    terminal: Mapping[StageUid, StageStatus] | None = None
    """How each stage ended (the worst of its subtasks), once all have ended."""
    ended_badly: Mapping[StageUid, StageStatus] = field(default_factory=dict)
    """Stages that failed or were canceled since it began: how they end when they run again says nothing."""

    def with_savepoint(self, result: SavepointCreated | SavepointFailed) -> StopWithSavepoint:
        """Return the stop with its savepoint's result. Raises InvalidRequest when there already is a result."""
        if self.savepoint is not None:
            raise InvalidRequest(f"the result of this savepoint was given before ({self.savepoint})")
        return replace(self, savepoint=result)

    def with_bad_end(self, uid: StageUid, status: StageStatus) -> StopWithSavepoint:
        """Return the stop after a stage ended otherwise than by finishing; the first such end counts."""
        return replace(self, ended_badly={uid: status, **self.ended_badly})

    def with_terminal(self, statuses: Mapping[StageUid, StageStatus]) -> StopWithSavepoint:
        """Return the stop with how the stages ended. Raises InvalidRequest for a stage that has not."""
        alive = sorted(uid for uid, status in statuses.items() if not status.is_over)
        if alive:
            raise InvalidRequest(f"stage {alive[0]!r} has not ended: it is {statuses[alive[0]]}")
        return replace(self, terminal=dict(statuses))

    @property
    def outcome(self) -> StopOutcome | None:
        """The ending, or None while something is missing."""
        match self.savepoint:
            case None:
                return None
            case SavepointFailed(reason, message):
                return NotStopped(reason, message)
            case SavepointCreated(_, uri):
                return self._ending(uri)

    def _ending(self, uri: str) -> StopOutcome | None:
        if self.terminal is None:
            return None
        odd = {uid: s for uid, s in sorted(self.terminal.items()) if s is not StageStatus.FINISHED}
        if not odd:
            return Stopped(uri)
        listed = ", ".join(f"{uid} {status}" for uid, status in odd.items())
        return StoppedBadly(
            uri,
            f"The savepoint {uri} is complete and is kept, but not every stage finished ({listed}). "
            f"Restore from the savepoint to continue exactly where it stopped.",
        )
