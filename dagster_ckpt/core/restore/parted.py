"""Snapshots as if they had been taken of the queries of now: parts of a query, and sinks joined with their judges."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dagster_ckpt.core.chains import JUDGES, QueryPart, judges_of, parts_of
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.model import CheckpointMetadata, StageSnapshot
from dagster_ckpt.errors import InvalidRequest

BARRIER_AT = 0
"""Position of the restored barrier in the log of a new channel, where its reader stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedSink:
    """A sink that judges its rows no more, and is one query again with the stage that did."""

    judge: StageSnapshot
    sink: StageSnapshot

    def snapshot(self) -> StageSnapshot:
        """Return the snapshot of both: the judge's query goes on, with the sink's rows. Raises InvalidRequest."""
        judge, sink = self.judge, self.sink
        if sink.metrics.persisted_in_flight:
            raise InvalidRequest(
                f"rows lie between {judge.uid!r} and sink {sink.uid!r} at this restore point: give the sink its "
                "conditions back, and take them away behind a checkpoint with barriers (a savepoint is one)"
            )
        if (sink.batch_id or 0) > (judge.batch_id or 0) and not judge.stateless:
            raise InvalidRequest(
                f"sink {sink.uid!r} has had more batches than its rows were made in, and state counts batches: keep "
                f"its function in a stage {judge.uid!r} of its own, which the sink reads, and it goes on as it is"
            )
        changes = {
            "uid": sink.uid,
            "table": sink.table,
            "own_sink": sink.own_sink,
            "output_position": sink.output_position,
            "batch_id": judge.batch_id if sink.batch_id is None else max(judge.batch_id or 0, sink.batch_id),
        }
        return judge.model_copy(update=changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfNow:
    """A snapshot as if it had been taken of the queries of now."""

    metadata: CheckpointMetadata
    parts: Mapping[str, QueryPart]
    """Its stages that are parts of a saved query."""
    joined: Mapping[str, JoinedSink]
    """Its sinks that are one query again with the stage that judged their rows."""


def of_now(graph: PipelineGraph, metadata: CheckpointMetadata) -> OfNow:
    """Return a snapshot as if it had been taken of the queries of now.

    All parts count their batches on from the saved query's: a sink shows no batch of a number that it has seen. Raises
    InvalidRequest as ``parts_of``.
    """
    chains = {chain.uid: chain for chain in metadata.chains}
    known = {*(stage.uid for stage in metadata.stages), *(one for c in metadata.chains for one in c.stages)}
    found: dict[str, QueryPart] = {}
    stages: list[StageSnapshot] = []
    joined = {one.judge.uid: one for one in _joined(graph.authored, metadata)}
    sinks = {one.sink.uid for one in joined.values()}
    for taken in (one for one in metadata.stages if one.uid not in sinks):
        saved = joined[taken.uid].snapshot() if taken.uid in joined else taken
        parts = parts_of(graph, chains.get(taken.uid, StageUid(taken.uid)), known)
        made = [_Parted(graph=graph, saved=saved, part=part, parts=parts).snapshot() for part in parts]
        found |= dict(zip((one.uid for one in made), parts, strict=True))
        stages += made or [saved]
    return OfNow(
        metadata=metadata.model_copy(update={"stages": tuple(stages)}),
        parts=found,
        joined={one.sink.uid: one for one in joined.values()},
    )


def _joined(graph: PipelineGraph, metadata: CheckpointMetadata) -> Iterator[JoinedSink]:
    named = {name for stage in graph.stages for name in (stage.uid, *stage.previous_uids)}
    for stage in graph.stages:
        for judge in (saved for name in judges_of(stage) if (saved := metadata.stage(name))):
            sink = metadata.stage(judge.uid.removesuffix(JUDGES))
            is_it = sink is not None and sink.stateless and set(sink.input_positions) == {judge.uid}
            if sink is not None and is_it and judge.uid not in named:
                yield JoinedSink(judge=judge, sink=sink)


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
