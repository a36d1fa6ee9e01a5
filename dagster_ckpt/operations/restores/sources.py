"""Sources and hooks in a preview: how far behind sources would be, whether they could read on; states of hooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.restore.matching import (
    MatchedStages,
    NonRestoredState,
    StageMatch,
    match_hooks,
    non_restored_state,
    staying_finished,
)
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.operations.deployment import Deployment
from dagster_ckpt.runtime.record_store import RecordStore
from dagster_ckpt.spark.attempt.restore import bounded_among, not_read_again, partial_inputs
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot
from dagster_ckpt.spark.source.pins import refuse_gone_files, refuse_lost
from dagster_ckpt.spark.source.positions import LagReader, SourceLag, source_positions

if TYPE_CHECKING:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePreview:
    """Sources of a restore; without the pipeline's code no log is asked."""

    lags: tuple[SourceLag, ...] = ()
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class _Heard:
    """Keeps what a restore would say."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def info(self, message: str) -> None:
        """Nothing is kept of this."""

    def warn(self, message: str) -> None:
        """Keep it."""
        self.warnings.append(message)


def preview_sources(
    deployment: Deployment,
    snapshot: StoredSnapshot,
    pipeline: CheckpointedPipeline | None,
    options: RestoreOptions,
    matches: Sequence[StageMatch],
) -> SourcePreview:
    """Return a restore's decision about a snapshot's positions and files, and how far behind they are.

    Whether an epoch or a stream is to be restored is not known: what refuses only the one is a warning.
    """
    metadata, heard, refusals = snapshot.metadata, _Heard(), []
    over = _not_read_by_streams(pipeline, matches)
    positions = source_positions(metadata, pipeline)
    try:
        refuse_lost([at for at in positions if at.stage in over], heard)
    except InvalidRequest as error:
        heard.warn(
            f"as a stream it goes on, which does not read again what had finished; as an epoch: {error}"
        )
    try:
        refuse_lost([at for at in positions if at.stage not in over], heard)
        if not options.allow_missing_files:
            record = RecordStore(deployment.store).record(PipelineId(metadata.pipeline))
            refuse_gone_files(snapshot, record, deployment.open_storage)
    except InvalidRequest as error:
        refusals.append(str(error))
    lags = LagReader(pipeline=pipeline).read(metadata)
    return SourcePreview(lags=lags, refusals=tuple(refusals), warnings=tuple(heard.warnings))


def _not_read_by_streams(
    pipeline: CheckpointedPipeline | None, matches: Sequence[StageMatch]
) -> frozenset[StageUid]:
    if pipeline is None:
        return frozenset()
    ended = staying_finished({match.uid: match.finished_on_restore for match in matches})
    return not_read_again(matches, bounded_among(pipeline, ended))


def late_readers(
    graph: PipelineGraph, matched: MatchedStages | None, code: CheckpointedPipeline | None
) -> Iterator[str]:
    """Yield why new stages would miss rows that were read before."""
    if matched is None or code is None:
        return
    yield from partial_inputs(
        code.stages,
        {uid: [edge.upstream for edge in graph.inputs[uid]] for uid in matched.new},
        begun={match.uid for match in matched.matches if match.snapshot.batch_id is not None},
        new=matched.new,
    )


class HookFate(StrEnum):
    """Fate of a hook's state in a restore."""

    RESTORED = "restored"
    NEW = "new"
    """It begins without state."""
    DROPPED = "dropped"
    """Its state was saved, and the pipeline no longer has the hook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookPreview:
    """One hook."""

    uid: str
    fate: HookFate


def preview_hooks(
    hooks: Sequence[str] | None, metadata: CheckpointMetadata, options: RestoreOptions
) -> tuple[tuple[HookPreview, ...], list[str]]:
    """Return each hook's fate, and the refusal where a state would be lost."""
    if hooks is None:
        return (), []
    states, refusals = metadata.master_states, []
    try:
        match_hooks(hooks, states, non_restored=non_restored_state(options))
    except InvalidRequest as error:
        refusals = [str(error)]
    matched = match_hooks(hooks, states, non_restored=NonRestoredState.SKIP)
    fates = (
        (HookFate.RESTORED, matched.restored),
        (HookFate.NEW, matched.new),
        (HookFate.DROPPED, matched.dropped),
    )
    return tuple(HookPreview(uid=uid, fate=fate) for fate, uids in fates for uid in uids), refusals
