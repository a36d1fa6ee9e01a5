"""One stage's part of a checkpoint: pin the cut, upload what is new, acknowledge; or let the failure manager decide."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from dagster_ckpt.authoring.stage_settings import StageParticipant
from dagster_ckpt.core.checkpoint.failures import FailureDecision
from dagster_ckpt.core.coordinator.state import AckDurability
from dagster_ckpt.core.ids import BatchId, CheckpointId, ExecutionAttempt, LogPosition, StageUid
from dagster_ckpt.core.messages import AcknowledgeResult, CheckpointFailureReason, StageAcknowledgement
from dagster_ckpt.core.model import FileEntry, ObjectRef, SnapshotMetrics, StageSnapshot, TableSnapshot
from dagster_ckpt.errors import (
    Corrupt,
    Declined,
    Fenced,
    OutcomeUnknown,
    Unavailable,
    in_words,
)
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.runtime.stored import CheckpointLocation
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.exchange.task_files import exchange_with_state
from dagster_ckpt.spark.snapshot.batch_notes import (
    RowCounts,
    captured,
    captured_states,
    noted_at,
    refuse_beyond,
    since,
)
from dagster_ckpt.spark.snapshot.capture import (
    CapturePlan,
    noted_topic_ids,
    pin_files,
    plan_beginning,
    plan_capture,
    release_pins,
    uploaded_already,
)
from dagster_ckpt.spark.snapshot.remote_state import RemoteState
from dagster_ckpt.spark.snapshot.restore import drop_local_copy, keep_local_copy
from dagster_ckpt.spark.snapshot.state_files import PlannedFile
from dagster_ckpt.spark.snapshot.stored import read_manifest
from dagster_ckpt.spark.snapshot.upload import INLINE_THRESHOLD, StageUpload, UploadMode, upload_stage

log = logging.getLogger("dagster_ckpt.stage")

FILE_LISTS_KEPT = 2
"""File lists a stage remembers, so that the next checkpoint need not read them from storage."""

SETTLED = 2 * 10**9
"""Nanoseconds after a change in which a file system may give another file the same time."""

RETRY_PAUSE = 0.2
"""Seconds before a snapshot is taken again for the first time."""
REPLANS = 3
"""How often a capture is planned again when a file vanished before it was pinned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Cut of a stage for one checkpoint."""

    checkpoint_id: CheckpointId
    batch_id: BatchId | None
    input_positions: Mapping[StageUid, LogPosition]
    output_position: LogPosition | None
    alignment_ms: float = 0.0
    start_delay_ms: float = 0.0
    table: TableSnapshot | None = None
    own_sink: str = ""
    """What a restore does to the rows of the sink that the query itself has."""
    extra_files: tuple[PlannedFile, ...] = ()
    """Committables of a two-phase sink, in-flight data of an unaligned checkpoint."""
    flush: Callable[[], None] = lambda: None
    """Brings what a sink has staged to where it lasts."""
    recording: frozenset[StageUid] = frozenset()
    """Inputs whose data up to their barrier belongs to the checkpoint."""
    persisted_in_flight: int = 0
    """Bytes of in-flight data among ``extra_files``."""
    finished: bool = False
    """It lies behind all rows of a bounded source: the position that a later run goes on from is all there is of it."""

    @property
    def unaligned(self) -> bool:
        """True where in-flight data belongs to the checkpoint."""
        return bool(self.recording)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOutcome:
    """Outcome of a stage's part of a checkpoint."""

    decision: FailureDecision | None
    """None: acknowledged, or no longer wanted; else what the failure manager decided."""
    text: str
    metrics: SnapshotMetrics = SnapshotMetrics()
    subtasks: int = 1


@dataclass(frozen=True, kw_only=True)
class StageSnapshotter:
    """Takes the parts of one stage for one attempt."""

    uid: StageUid
    directory: StageDirectory
    coordinator: CheckpointCoordinator
    local_copies: Path | None = None
    """Where a copy of what is uploaded is kept on this machine (``local_backup``); None: nowhere."""
    threads: int = 4
    participant: StageParticipant | None = None
    """Sets how many bad rows a checkpoint may have; None: any."""
    _stored: dict[ObjectRef, Sequence[FileEntry]] = field(default_factory=dict)
    """File lists of the latest checkpoints, by the manifest that holds them: the next one builds on one of these."""
    _stamps: dict[ObjectRef, Mapping[str, tuple[int, int] | None]] = field(default_factory=dict)
    """Of the same, the stamps of files as they were uploaded: what still has its own is not read again."""

    @property
    def attempt(self) -> ExecutionAttempt:
        """The identity the stage acknowledges with."""
        return self.coordinator.attempt_of(self.uid)

    def decline(
        self,
        checkpoint_id: CheckpointId,
        why: str,
        *,
        reason: CheckpointFailureReason = CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
        retries_left: int | None = None,
    ) -> SnapshotOutcome:
        """Take no part in a checkpoint; ``retries_left``: of a failure that may pass, None: it does not."""
        decision = self.coordinator.decline(
            checkpoint_id,
            self.attempt,
            reason,
            why,
            transient=retries_left is not None,
            retries_left=retries_left or 0,
        )
        return SnapshotOutcome(decision=decision, text=why)

    def take_retrying(
        self, cut: Callable[[], Cut], *, retries: int, wait: Callable[[float], object]
    ) -> SnapshotOutcome | None:
        """Take a cut, and again where the failure manager decides so, later each time. Raises Fenced.

        ``wait``: waits for some seconds; true from it: nobody wants the snapshot any more, and None is returned.
        """
        left = retries
        while (outcome := self.take(cut(), retries_left=left)).decision is FailureDecision.RETRY_OP:
            if wait(RETRY_PAUSE * 2 ** (retries - left)):
                return None
            left -= 1
        return outcome

    def take(self, cut: Cut, *, retries_left: int = 0) -> SnapshotOutcome:
        """Capture, upload and acknowledge ``cut``. Raises Fenced; every other failure is decided, not raised."""
        try:
            return self._taken(cut, retries_left)
        finally:  # behind the acknowledgement, which somebody waits for
            release_pins(self.directory.root, cut.checkpoint_id)
            remote = self._remote_state()
            if remote is not None:
                remote.forget(cut.checkpoint_id)

    def _taken(self, cut: Cut, retries_left: int) -> SnapshotOutcome:
        try:
            snapshot, upload = self._upload(cut)
        except Fenced:
            raise
        except Declined as error:
            return self._decline(cut, CheckpointFailureReason.CHECKPOINT_DECLINED, error, retries_left)
        except Exception as error:  # every cause of a failed snapshot is the failure manager's to judge
            return self._decline(cut, CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION, error, retries_left)
        result = self.coordinator.acknowledge_stage(
            StageAcknowledgement(
                checkpoint_id=cut.checkpoint_id,
                attempt=self.attempt,
                snapshot=snapshot,
                handles=upload.handles,
            )
        )
        if (
            result in (AcknowledgeResult.UNKNOWN, AcknowledgeResult.DISCARDED)
            and self.local_copies is not None
        ):
            drop_local_copy(self.local_copies, cut.checkpoint_id)
        text = "acknowledged" if result is AcknowledgeResult.SUCCESS else f"no longer wanted ({result.value})"
        return SnapshotOutcome(
            decision=None, text=text, metrics=snapshot.metrics, subtasks=snapshot.parallelism
        )

    def _upload(self, cut: Cut) -> tuple[StageSnapshot, StageUpload]:
        location = self.coordinator.location_of(cut.checkpoint_id)
        previous = self._previous(location)
        began, began_at = time.perf_counter(), time.time_ns()
        counts = self._row_counts(cut)
        plan, files = self._pin(cut, location, previous)
        sync_ms = (time.perf_counter() - began) * 1e3
        line = "%s: finished synchronous part of checkpoint %d. Alignment duration: %.0f ms, snapshot duration: %.1f ms"
        log.debug(line, self.uid, cut.checkpoint_id, cut.alignment_ms, sync_ms)
        self._refuse_too_large(location, files)
        cut.flush()  # behind the pins: in an object store it may take longer than Spark keeps a batch
        upload = upload_stage(
            files=files,
            stage_dir=self.directory.root,
            storage=location.storage,
            pipeline=self.coordinator.pipeline,
            uid=self.uid,
            checkpoint_id=cut.checkpoint_id,
            folder=location.folder,
            mode=_mode(location),
            previous=previous,
            inline_threshold=INLINE_THRESHOLD,
            parallelism=self.threads,
            canceled=lambda: not self.coordinator.is_pending(cut.checkpoint_id),
            manifest_aside=self._manifest_aside(cut),
        )
        self._remember(
            upload, {f.path: f.stamp for f in files if f.stamp and f.stamp[1] < began_at - SETTLED}
        )
        async_ms = (time.perf_counter() - began) * 1e3 - sync_ms
        line = "%s: finished asynchronous part of checkpoint %d. Asynchronous duration: %.0f ms"
        log.debug(line, self.uid, cut.checkpoint_id, async_ms)
        if not location.kind.is_savepoint or location.kind.is_synchronous:
            self._keep_local_copy(cut, files)
        return self._snapshot(cut, plan, upload, sync_ms, counts), upload

    def _row_counts(self, cut: Cut) -> RowCounts:
        """Return the counts of conditions since the last completed checkpoint. Raises Declined where one is beyond."""
        totals = noted_at(self.directory, cut.checkpoint_id, cut.batch_id)
        if totals is None:
            return RowCounts()
        known = self.coordinator.record.completed
        completed = max(
            (CheckpointId(one.checkpoint_id) for one in known if one.left_by is None), default=None
        )
        counts = since(self.directory, totals, completed)
        if self.participant is not None:
            refuse_beyond(self.uid, counts, self.participant)
        return counts

    def _refuse_too_large(self, location: CheckpointLocation, files: Sequence[PlannedFile]) -> None:
        """Raise Declined, before anything is uploaded, for state that the coordinator store is not to hold."""
        limits = self.coordinator.config.store_limits
        if limits is None or location.kind.is_savepoint:
            return
        pending = self.coordinator.record.pending_of(location.checkpoint_id)
        parts = pending.stages if pending is not None else ()
        others = sum(p.snapshot.metrics.bytes_full for p in parts if p.snapshot and p.uid != self.uid)
        refusal = limits.refusal([file.size for file in files], others=others)
        if refusal:
            raise Declined(f"stage {self.uid!r}: {refusal}")

    def _keep_local_copy(self, cut: Cut, files: Sequence[PlannedFile]) -> None:
        """Keep what was uploaded on this machine as well; failing to costs a faster restore, nothing else.

        Not for a plain savepoint: no stage hears that one is complete, so nothing would ever prune its copy.
        """
        if self.local_copies is not None and self.coordinator.config.local_backup:
            with suppress(OSError):
                keep_local_copy(
                    files,
                    stage_dir=self.directory.root,
                    directory=self.local_copies,
                    checkpoint_id=cut.checkpoint_id,
                )

    def _manifest_aside(self, cut: Cut) -> Path | None:
        """Return a file for the manifest where this process also writes the metadata, which brings both to disk."""
        if self.coordinator.acks is not AckDurability.AT_COMPLETION:
            return None
        return self.directory.pins(cut.checkpoint_id) / "manifest"

    def _remember(self, upload: StageUpload, stamps: Mapping[str, tuple[int, int] | None]) -> None:
        self._stored[upload.manifest], self._stamps[upload.manifest] = upload.entries, stamps
        for oldest in list(self._stored)[:-FILE_LISTS_KEPT]:
            self._stored.pop(oldest, None)
            self._stamps.pop(oldest, None)

    def _previous(self, location: CheckpointLocation) -> Sequence[FileEntry]:
        found = location.previous.get(self.uid)
        if found is None:
            return ()
        known = None if found.manifest is None else self._stored.get(found.manifest)
        if known is not None:
            return known
        try:
            return read_manifest(location.storage, found)
        except Corrupt as error:
            log.warning("stage %s uploads all its files again: %s", self.uid, error)
            return ()

    def _pin(
        self, cut: Cut, location: CheckpointLocation, previous: Sequence[FileEntry]
    ) -> tuple[CapturePlan, tuple[PlannedFile, ...]]:
        uploaded, found = uploaded_already(previous), location.previous.get(self.uid)
        manifest = None if found is None else found.manifest
        stamps = {} if manifest is None else self._stamps.get(manifest, {})
        for remaining in reversed(range(REPLANS)):
            plan = self._plan(cut, uploaded)
            try:
                files = pin_files(
                    (
                        *(_known(file, stamps) for file in plan.files),
                        *cut.extra_files,
                        *captured(self.directory, cut.checkpoint_id),
                        *captured_states(self.directory, cut.batch_id),
                    ),
                    stage_dir=self.directory.root,
                    checkpoint_id=cut.checkpoint_id,
                    uploaded=uploaded,
                )
            except Declined:
                if not remaining:
                    raise
                continue
            return plan, files
        raise AssertionError("unreachable: the last try raises")

    def _plan(self, cut: Cut, uploaded: Container[tuple[str, int]]) -> CapturePlan:
        if cut.batch_id is None:
            return plan_beginning(self.directory.query)
        remote = self._remote_state()
        if remote is not None:
            return remote.plan(cut.checkpoint_id, cut.batch_id, uploaded)
        return plan_capture(self.directory.query, cut.batch_id)

    def _remote_state(self) -> RemoteState | None:
        exchange = exchange_with_state(self.directory.root)
        return None if exchange is None else RemoteState(self.directory, exchange)

    def _snapshot(
        self, cut: Cut, plan: CapturePlan, upload: StageUpload, sync_ms: float, counts: RowCounts
    ) -> StageSnapshot:
        metrics = upload.metrics.model_copy(
            update={
                "sync_ms": sync_ms,
                "alignment_ms": cut.alignment_ms,
                "start_delay_ms": cut.start_delay_ms,
                "unaligned": cut.unaligned,
                "persisted_in_flight": cut.persisted_in_flight,
                "rows_judged": counts.rows,
                "rows_refused": counts.refused,
                "broken": counts.broken,
                "rows_late": counts.late,
                "rows_late_kept": counts.late_kept,
                "rows_read": counts.read,
                "rows_requeued": counts.requeued,
                "requeue_orders": counts.orders,
            }
        )
        return StageSnapshot(
            uid=self.uid,
            parallelism=plan.subtasks,
            manifest=upload.manifest,
            batch_id=cut.batch_id,
            query_id=plan.query_id,
            offsets=plan.offsets,
            topic_ids=noted_topic_ids(self.directory),
            watermark_ms=plan.watermark_ms,
            input_positions={str(uid): int(at) for uid, at in cut.input_positions.items()},
            output_position=cut.output_position,
            state_formats=plan.state_formats,
            table=cut.table,
            own_sink=cut.own_sink,
            finished=cut.finished,
            stateless=all(file.operator is None for file in plan.files),
            metrics=metrics,
        )

    def _decline(
        self, cut: Cut, reason: CheckpointFailureReason, error: Exception, retries_left: int
    ) -> SnapshotOutcome:
        # An upload of which nobody knows whether it arrived is made again, under other names.
        left = retries_left if isinstance(error, (Unavailable, OutcomeUnknown)) else None
        return self.decline(cut.checkpoint_id, in_words(error), reason=reason, retries_left=left)


def _known(file: PlannedFile, stamps: Mapping[str, tuple[int, int] | None]) -> PlannedFile:
    """Return a file whose content is known by its name, where nobody has replaced it since it was uploaded."""
    is_same = file.stamp is not None and stamps.get(file.path) == file.stamp
    return replace(file, content_named=True) if is_same and not file.content_named else file


def _mode(location: CheckpointLocation) -> UploadMode:
    if location.kind.is_savepoint:
        return UploadMode.SELF_CONTAINED
    return UploadMode.INCREMENTAL if location.previous else UploadMode.FULL
