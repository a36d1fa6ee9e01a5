"""Positions of a snapshot's sources, each with the origin that its stage declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from dagster_ckpt.authoring.origins import SourceOrigin
from dagster_ckpt.authoring.stages import StageRole
from dagster_ckpt.core.model import Chain, CheckpointMetadata
from dagster_ckpt.core.restore.positions import Positions, merged, topic_positions

if TYPE_CHECKING:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePosition:
    """One source stage at a snapshot: what it reads next, in topics."""

    stage: str
    """The stage of the snapshot; for a chain the one it is named after."""
    source: str
    """The stage that reads: another one only in a chain."""
    positions: Positions
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Which topics these were, where that is known."""
    origin: SourceOrigin | None
    """None: its stage does not say where it reads, or the sources of its chain read in several places."""


def source_positions(
    metadata: CheckpointMetadata, pipeline: CheckpointedPipeline | None
) -> tuple[SourcePosition, ...]:
    """Return the positions in topics that a snapshot holds; without the pipeline nobody's origin is known."""
    offsets = {stage.uid: stage.offsets for stage in metadata.stages}
    ids = {stage.uid: stage.topic_ids for stage in metadata.stages}
    return positions_at(offsets, metadata.chains, pipeline, ids)


def positions_at(
    offsets: Mapping[str, Mapping[str, str]],
    chains: Sequence[Chain],
    pipeline: CheckpointedPipeline | None,
    topic_ids: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> tuple[SourcePosition, ...]:
    """Return the same of offsets by stage and source, as Spark writes them."""
    sources = {} if pipeline is None else _sources(pipeline)
    found = []
    for uid, texts in offsets.items():
        several = [at for text in texts.values() if (at := topic_positions(text)) is not None]
        if not several:
            continue
        members = next((chain.stages for chain in chains if chain.uid == uid), (uid,))
        declared = [member for member in members if sources.get(member) is not None]
        found.append(
            SourcePosition(
                stage=uid,
                source=declared[0] if declared else members[0],
                positions=merged(several),
                topic_ids=topic_ids.get(uid, {}),
                origin=_one_origin([sources[one] for one in members if one in sources], len(several)),
            )
        )
    return tuple(found)


def _one_origin(declared: Sequence[SourceOrigin | None], logs: int) -> SourceOrigin | None:
    """Return the origin of all logs of a query: its sources are numbered, and a number does not say whose it is."""
    known = [origin for origin in declared if origin is not None]
    if not known or any(origin != known[0] for origin in known):
        return None
    others_may_read_logs = len(known) < len(declared) and len(known) < logs
    return None if others_may_read_logs else known[0]


def _sources(pipeline: CheckpointedPipeline) -> Mapping[str, SourceOrigin | None]:
    """Return the sources' origins as declared, by the uids they have and had."""
    return {
        name: stage.reads
        for uid, stage in pipeline.authored.stages.items()
        if stage.role is StageRole.SOURCE
        for name in (uid, *stage.previous_uids)
    }
