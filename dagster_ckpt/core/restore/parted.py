"""Snapshots of queries whose stages no longer run as one: a part for each query that they are now."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from dagster_ckpt.core.chains import QueryPart, parts_of
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.model import CheckpointMetadata, StageSnapshot

BARRIER_AT = 0
"""Position of the restored barrier in the log of a new channel, where its reader stands."""


def parted(
    graph: PipelineGraph, metadata: CheckpointMetadata
) -> tuple[CheckpointMetadata, Mapping[str, QueryPart]]:
    """Return a snapshot as if it had been taken of the queries of now, and which of its stages are parts.

    All parts count their batches on from the saved query's: a sink shows no batch of a number that it has seen. Raises
    InvalidRequest as ``parts_of``.
    """
    chains = {chain.uid: chain for chain in metadata.chains}
    known = {*(stage.uid for stage in metadata.stages), *(one for c in metadata.chains for one in c.stages)}
    found: dict[str, QueryPart] = {}
    stages: list[StageSnapshot] = []
    for saved in metadata.stages:
        parts = parts_of(graph, chains.get(saved.uid, StageUid(saved.uid)), known)
        made = [_Parted(graph=graph, saved=saved, part=part, parts=parts).snapshot() for part in parts]
        found |= dict(zip((one.uid for one in made), parts, strict=True))
        stages += made or [saved]
    return metadata.model_copy(update={"stages": tuple(stages)}), found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parted:
    graph: PipelineGraph
    saved: StageSnapshot
    part: QueryPart
    parts: tuple[QueryPart, ...]

    def snapshot(self) -> StageSnapshot:
        """Return the part's snapshot; files are those of the whole query, of which a restore keeps its own."""
        saved, part = self.saved, self.part
        new = {
            str(at): json.dumps({"channel": uid, "pos": BARRIER_AT})
            for at, uid in enumerate(part.channels, start=len(saved.offsets))
        }
        offsets = {**saved.offsets} if part.begins else {}
        changes: dict[str, object] = {
            "offsets": offsets if saved.batch_id is None else offsets | new,
            "topic_ids": saved.topic_ids if part.begins else {},
            "input_positions": self._kept_inputs() | {str(one): BARRIER_AT for one in part.channels},
        }
        if not part.has_sink:
            changes |= {"uid": str(part.uid), "output_position": BARRIER_AT, "table": None, "own_sink": ""}
        if not part.has_state:
            changes |= {
                "parallelism": 1,
                "max_parallelism": None,
                "state_formats": {},
                "stateless": True,
                "watermark_ms": None,
                "subtask_handles": None,
                "coordinator_state": None,
            }
        return saved.model_copy(update=changes)

    def _kept_inputs(self) -> dict[str, int]:
        """Return the saved inputs that this part reads; those that nobody reads now are the first one's."""
        readers = {name: self._reader_of(name) for name in self.saved.input_positions}
        return {
            name: at
            for name, at in self.saved.input_positions.items()
            if (readers[name] or next(one.uid for one in self.parts if one.begins)) == self.part.uid
        }

    def _reader_of(self, name: str) -> StageUid | None:
        named = {stage.uid for stage in self.graph.stages if name == stage.uid or name in stage.previous_uids}
        mine = {part.uid for part in self.parts}
        return next(
            (
                edge.downstream
                for edge in self.graph.edges
                if edge.upstream in named and edge.downstream in mine
            ),
            None,
        )
