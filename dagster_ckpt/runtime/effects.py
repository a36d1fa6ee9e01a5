"""Performs effects: everything the coordinator does outside its own state. Each may be done twice without harm.

Logger ``dagster_ckpt.coordinator``. Source: flink-runtime CheckpointCoordinator's own lines.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import assert_never

from dagster_ckpt.core import paths
from dagster_ckpt.core.coordinator import effects as e
from dagster_ckpt.core.coordinator import inputs as i
from dagster_ckpt.core.coordinator.effects import (
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
from dagster_ckpt.core.ids import CheckpointId, PipelineId
from dagster_ckpt.core.messages import CheckpointFailureReason, CommitPermit, NotifyComplete
from dagster_ckpt.core.metadata_text import encode_metadata
from dagster_ckpt.core.model import CheckpointMetadata, ObjectRef
from dagster_ckpt.core.paths import AlreadyExists, SnapshotLocation
from dagster_ckpt.core.units import duration
from dagster_ckpt.errors import (
    Corrupt,
    Declined,
    Fenced,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    causes,
)
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.runtime.attempt_setup import AttemptSetup
from dagster_ckpt.runtime.driver.hooks import (
    HearsAcknowledgements,
    HearsEnds,
    MasterHook,
    ResultPending,
    serialized,
)
from dagster_ckpt.runtime.engine import AttemptEngine
from dagster_ckpt.runtime.files import write_subtask_handles
from dagster_ckpt.runtime.stored import read_stored_metadata

log = logging.getLogger("dagster_ckpt.coordinator")


def log_event(pipeline: PipelineId, event: CoordinatorEvent) -> None:
    """Log what listeners hear."""
    match event:
        case CheckpointTriggered(checkpoint_id=number, kind=kind, triggered_at=at):
            log.info(
                "Triggering checkpoint %d (type=%s) @ %d for pipeline %s.",
                number,
                kind.name,
                at * 1e3,
                pipeline,
            )
        case CheckpointRejected(reason=reason, message=message):
            log.info("Checkpoint request of pipeline %s rejected (%s): %s", pipeline, reason.name, message)
        case StageAcknowledged(checkpoint_id=number, uid=uid, acknowledged=acknowledged, expected=expected):
            line = "Received acknowledge message for checkpoint %d from stage %s of pipeline %s (%d of %d)."
            log.debug(line, number, uid, pipeline, acknowledged, expected)
        case CheckpointCompleted():
            _log_completed(pipeline, event)
        case CheckpointFailed(checkpoint_id=number, reason=reason, message=message):
            log.warning(
                "Checkpoint %d of pipeline %s failed (%s): %s", number, pipeline, reason.name, message
            )
        case CheckpointSubsumed(checkpoint_id=number):
            log.debug("Checkpoint %d of pipeline %s is subsumed.", number, pipeline)
        case CheckpointDiscarded(checkpoint_id=number):
            log.debug("Checkpoint %d of pipeline %s is discarded: its files are deleted.", number, pipeline)
        case JobFailed(cause=cause):
            log.error("Failing the run of pipeline %s: %s", pipeline, cause)
        case StopEnded(checkpoint_id=number):
            log.info("Stop-with-savepoint of pipeline %s ended (checkpoint %s).", pipeline, number)
        case _:
            assert_never(event)


def _log_completed(pipeline: PipelineId, event: CheckpointCompleted) -> None:
    numbers = event.statistics
    ended = numbers.ended_at or numbers.triggered_at
    log.info(
        "Completed checkpoint %d for pipeline %s (%d bytes, checkpointDuration=%.0f ms, finalizationTime=%.0f ms).",
        event.checkpoint_id,
        pipeline,
        numbers.bytes_full,
        (ended - numbers.triggered_at) * 1e3,
        (ended - (numbers.latest_ack_at or ended)) * 1e3,
    )


SAVEPOINT_TRIES = 10
RETRY_PAUSE = 0.2
"""Seconds before the first retry of a step of the trigger; doubles."""
_SUFFIX = "0123456789abcdefghijklmnopqrstuvwxyz"


class EffectRunner:
    """Performs effects; ``perform`` answers with the inputs that follow."""

    def __init__(
        self,
        setup: AttemptSetup,
        *,
        permit: Callable[[CheckpointId], CommitPermit],
        check_owner: Callable[[], None],
        discard: Callable[[str, Sequence[str]], None],
    ) -> None:
        self._setup = setup
        self._pipeline = setup.graph.pipeline
        self._permit = permit
        self._check_owner = check_owner
        self._discard = discard

    def perform(self, effect: e.Effect) -> Iterator[i.Input]:
        """Do one effect; yield what it led to. Raises Fenced only."""
        match effect:
            case e.MakeLocation():
                yield from self._guarded(effect.checkpoint_id, lambda: self._location_made(effect))
            case e.AskCoordinators():
                yield from self._guarded(effect.checkpoint_id, lambda: self._ask(effect))
            case e.CallHooks():
                yield from self._guarded(effect.checkpoint_id, lambda: self._call_hooks(effect))
            case e.SendTrigger(message):
                yield from self._guarded(message.checkpoint_id, lambda: self._trigger(effect))
            case e.WriteMetadata():
                yield self._write_metadata(effect)
            case _:
                self._announce(effect)

    def _announce(
        self,
        effect: e.SendComplete
        | e.SendAborted
        | e.CompleteCoordinators
        | e.AbortCoordinators
        | e.ReleaseFinished
        | e.CompleteHooks
        | e.ReleaseHooks
        | e.AbortHooks
        | e.DiscardFiles
        | e.Tell,
    ) -> None:
        """Do what nobody waits for: a failure is logged."""
        match effect:
            case e.SendComplete():
                self._quietly("notify complete", lambda: self._notify_complete(effect))
            case e.SendAborted(message):
                self._quietly("notify aborted", lambda: self._setup.gateway.notify_aborted(message))
            case e.CompleteCoordinators(number):
                for one in self._setup.coordinators.values():
                    self._quietly("coordinator", partial(one.checkpoint_complete, number))
            case e.AbortCoordinators(number):
                for one in self._setup.coordinators.values():
                    self._quietly("coordinator", partial(one.checkpoint_aborted, number))
            case e.ReleaseFinished(number, attempts):
                for attempt in attempts:
                    driver = self._setup.coordinators.get(attempt.stage)
                    if isinstance(driver, HearsAcknowledgements):
                        told = partial(driver.subtask_acknowledged, number, attempt.subtask)
                        self._quietly("coordinator", told)
            case e.CompleteHooks() | e.ReleaseHooks() | e.AbortHooks():
                self._tell_hooks(effect)
            case e.DiscardFiles(base_uri, keys):
                self._discard(base_uri, keys)
            case e.Tell(event):
                log_event(self._pipeline, event)
                for listener in self._setup.listeners:
                    self._quietly("listener", partial(listener, event))
            case _:
                assert_never(effect)

    def _tell_hooks(self, effect: e.CompleteHooks | e.ReleaseHooks | e.AbortHooks) -> None:
        for hook in self._setup.hooks.values():
            if not isinstance(hook, HearsEnds):
                continue
            if isinstance(effect, e.AbortHooks):
                self._quietly("hook", partial(hook.aborted, effect.checkpoint_id))
                continue
            if isinstance(effect, e.CompleteHooks):
                self._quietly("hook", partial(hook.complete, effect.checkpoint_id))
            if effect.subsumed is not None:
                self._quietly("hook", partial(hook.subsumed, effect.subsumed))

    def _quietly(self, what: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Fenced:
            raise
        except Exception as error:  # the receiver's failure is its own; the decision stands
            log.warning("pipeline %s: %s failed: %s", self._pipeline, what, error, exc_info=True)

    # --- trigger --------------------------------------------------------------------------------------------

    def _guarded(self, number: CheckpointId, step: Callable[[], Sequence[i.Input]]) -> Sequence[i.Input]:
        """Do a step of the trigger; its failure breaks the checkpoint."""
        try:
            return step()
        except Fenced:
            raise
        except (
            Exception
        ) as error:  # whatever a hook, a storage or the gateway raises fails this checkpoint only
            return [i.CheckpointBroken(number, trigger_failure(error), _sentence(error))]

    def _location_made(self, effect: e.MakeLocation) -> list[i.Input]:
        """Make the location, again where storage was unavailable for a moment: only a stage's own op is retried."""
        for number in range(self._setup.storage_retries):
            try:
                return self._make_location(effect)
            except Unavailable as error:
                pause = RETRY_PAUSE * 2**number
                log.warning("pipeline %s: %s; asked again in %s", self._pipeline, error, duration(pause))
                time.sleep(pause)
        return self._make_location(effect)

    def _make_location(self, effect: e.MakeLocation) -> list[i.Input]:
        if effect.target:
            location = self._free_savepoint(effect.target)
        else:
            folder = paths.CheckpointPaths(self._pipeline).checkpoint(effect.checkpoint_id)
            location = SnapshotLocation(base_uri=self._setup.storage.base_uri, folder=folder)
            if any(True for _ in self._setup.storage.list(folder)):
                raise OSError(f"{location.uri} already holds files of another attempt")
        return [i.LocationMade(effect.checkpoint_id, location)]

    def _free_savepoint(self, target: str) -> SnapshotLocation:
        storage = self._setup.storage_at(target)
        for _ in range(SAVEPOINT_TRIES):
            suffix = "".join(self._setup.random.choice(_SUFFIX) for _ in range(6))
            folder = paths.CheckpointPaths(self._pipeline).savepoint(suffix)
            if not any(True for _ in storage.list(folder)):
                return SnapshotLocation(base_uri=storage.base_uri, folder=folder)
        raise OSError(f"no free savepoint folder was found below {target} in {SAVEPOINT_TRIES} tries")

    def _ask(self, effect: e.AskCoordinators) -> list[i.Input]:
        _each(partial(self._setup.coordinators[uid].checkpoint, effect.checkpoint_id) for uid in effect.uids)
        return []

    def _call_hooks(self, effect: e.CallHooks) -> list[i.Input]:
        acked: list[i.Input] = []

        def call(name: str, hook: MasterHook) -> None:
            result = hook.trigger(effect.checkpoint_id, effect.timestamp)
            if not isinstance(result, ResultPending):
                acked.append(i.HookAcked(effect.checkpoint_id, name, serialized(hook, result)))

        _each(partial(call, name, hook) for name, hook in self._setup.hooks.items())
        return [*acked, i.HooksCalled(effect.checkpoint_id)]

    def _trigger(self, effect: e.SendTrigger) -> list[i.Input]:
        self._setup.gateway.trigger(effect.message)
        return [i.TasksTriggered(effect.message.checkpoint_id)]

    # --- completion -----------------------------------------------------------------------------------------

    def _write_metadata(self, effect: e.WriteMetadata) -> i.Input:
        """Write the lists of stages acknowledged per subtask, then ``_metadata``; both write-once."""
        number = CheckpointId(effect.metadata.checkpoint_id)
        try:
            self._check_owner()
            storage = self._setup.storage_at(effect.location.base_uri)
            metadata = self._with_lists(storage, effect)
            return self._create_metadata(storage, effect.location.folder, metadata)
        except Fenced:
            raise
        except Exception as error:  # storage or listing failed: the checkpoint fails, the pipeline goes on
            reason = CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE
            return i.CheckpointBroken(
                number, reason, f"The metadata could not be written: {_sentence(error)}"
            )

    def _with_lists(self, storage: CheckpointStorage, effect: e.WriteMetadata) -> CheckpointMetadata:
        if not effect.subtask_handles:
            return effect.metadata
        refs: dict[str, ObjectRef] = {}
        for uid, handles in effect.subtask_handles.items():
            made = write_subtask_handles(storage, effect.location.folder, uid, handles)
            if effect.metadata.kind.is_savepoint:
                made = made.model_copy(update={"key": made.key.removeprefix(f"{effect.location.folder}/")})
            refs[uid] = made
        stages = tuple(
            s.model_copy(update={"subtask_handles": refs[s.uid]}) if s.uid in refs else s
            for s in effect.metadata.stages
        )
        return effect.metadata.model_copy(update={"stages": stages})

    def _create_metadata(
        self, storage: CheckpointStorage, folder: str, metadata: CheckpointMetadata
    ) -> i.Input:
        key = paths.metadata(folder)
        content = encode_metadata(metadata)
        try:
            made = storage.create(key, content)
        except OutcomeUnknown:
            made = AlreadyExists(key)  # read back below: it is there, or it is not
        if not isinstance(made, AlreadyExists):
            return i.MetadataWritten(metadata, made.size, made.checksum)
        try:
            read = read_stored_metadata(storage, folder)
        except NotFound as error:
            raise OSError(f"{key} was not written") from error
        found = read.metadata
        if found.model_copy(update={"completed_at": metadata.completed_at}) != metadata:
            raise Corrupt(f"{storage.base_uri}/{key} is another checkpoint's metadata: it is not overwritten")
        return i.MetadataWritten(found, len(content), read.checksum)

    def _notify_complete(self, effect: e.SendComplete) -> None:
        self._setup.gateway.notify_complete(
            NotifyComplete(
                checkpoint_id=effect.checkpoint_id,
                timestamp=effect.timestamp,
                permit=self._permit(effect.checkpoint_id),
                subsumed=effect.subsumed,
                attempts=effect.attempts,
            )
        )


def _each(calls: Iterable[Callable[[], None]]) -> None:
    """Do every call, though one of them fails: all who are called hear how it ends. Raises the first failure.

    Source: CheckpointCoordinator#snapshotMasterState, OperatorCoordinatorCheckpoints#triggerAllCoordinatorCheckpoints.
    """
    failures: list[Exception] = []
    for call in calls:
        try:
            call()
        except Fenced:
            raise
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]


def trigger_failure(error: BaseException) -> CheckpointFailureReason:
    """Return the reason for a failed step of the trigger.

    An I/O error anywhere in the chain counts as one; else the reason that a ``Declined`` in it brings is kept.
    """
    chain = [*causes(error)]
    if any(isinstance(cause, OSError) for cause in chain):
        return CheckpointFailureReason.IO_EXCEPTION
    given = (cause.reason for cause in chain if isinstance(cause, Declined))
    known = (reason for reason in given if isinstance(reason, CheckpointFailureReason))
    return next(known, CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE)


def _sentence(error: Exception) -> str:
    return str(error) or type(error).__name__


_PROOF = object()


def make_permit(engine: AttemptEngine, checkpoint_id: CheckpointId) -> CommitPermit:
    """Return the permit to publish what belongs to a completed checkpoint.

    The record is read again first. Raises Fenced when a newer attempt owns the pipeline, InvalidRequest when the
    checkpoint is not complete.
    """
    with suppress(Unavailable):  # the record this process stored or loaded last still proves the completion
        engine.refresh()
    record = engine.stored
    is_complete = record.completed_of(checkpoint_id) is not None or checkpoint_id == record.latest_completed
    if not is_complete:
        raise InvalidRequest(f"checkpoint {checkpoint_id} is not complete: nothing of it may be published")
    return CommitPermit(
        engine.pipeline, engine.state.epoch, checkpoint_id, _PROOF, engine.state.record.lineage
    )
