"""Positions of a snapshot's sources, with the origins that stages declare, and beside the ends of their topics."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from dagster_ckpt.authoring.stages import StageRole
from dagster_ckpt.authoring.targets import SourceOrigin
from dagster_ckpt.core.coordinator.effects import CheckpointCompleted, CoordinatorEvent
from dagster_ckpt.core.ids import BatchId, StageUid
from dagster_ckpt.core.model import Chain, CheckpointMetadata
from dagster_ckpt.core.restore.horizon import (
    PartitionLag,
    Positions,
    TopicBounds,
    TopicClock,
    lags,
    merged,
    topic_positions,
)
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.snapshot.capture import note_topic_ids, read_offsets
from dagster_ckpt.spark.stage_report import Reporter

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
        for stage in pipeline.authored.stages.values()
        if stage.role is StageRole.SOURCE
        for name in stage.names
    }


class TopicLog(Protocol):
    """Topics that can be asked. Raises Unavailable where nobody answers, InvalidRequest where the answer is refused."""

    place: str
    """For people: ``kafka://broker:9092``."""

    def bounds(self, topics: Collection[str]) -> TopicBounds:
        """Return the ends of every partition of these topics; a topic that is not there is left out."""
        ...

    def ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return each topic's id, which tells it from later topics of its name; a topic without an id is left out."""
        ...

    def clocks(self, positions: Positions) -> Mapping[str, TopicClock]:
        """Return how long each topic keeps records, and of when the first record from each position on is."""
        ...

    def commit(self, group: str, positions: Positions) -> None:
        """Tell a consumer group these positions. Told again, or older ones, they count as the newest."""
        ...


log = logging.getLogger("dagster_ckpt.stage")


def note_topics(
    pipeline: CheckpointedPipeline, uid: StageUid, directory: StageDirectory, batch: BatchId
) -> None:
    """Write down which topics a batch of a stage reads, for its snapshots; without an answer nothing is.

    Spark has planned the batch, and not read a row of it for anybody yet.
    """
    members = pipeline.members(uid)
    if all(pipeline.authored.stages[one].reads is None for one in members):
        return
    ids: dict[str, str] = {}
    try:
        for at in positions_at({uid: read_offsets(directory.query, batch)}, pipeline.chains, pipeline):
            if at.origin is not None:
                topics: TopicLog = at.origin.open()
                ids |= topics.ids(list(at.positions))
    except CheckpointError as error:
        log.warning("whether topics of %s are made again will not be told: %s", uid, error)
        return
    note_topic_ids(directory, ids)


QUIET = 60.0
"""Seconds in which a log that did not answer is not asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLag:
    """One source at a snapshot: its position in each partition, and how far behind their ends that is."""

    stage: str
    place: str
    """Empty: the source does not say where it reads."""
    partitions: tuple[PartitionLag, ...]
    problem: str = ""
    """Why the ends are not known."""


def total_lag(sources: Sequence[SourceLag]) -> int | None:
    """Return the offsets that all partitions are behind; None where that of no partition is known."""
    known = [one.lag for source in sources for one in source.partitions if one.lag is not None]
    return sum(known) if known else None


@dataclass(slots=True, kw_only=True)
class LagReader:
    """Asks again and again, for snapshots as they complete; a log that does not answer has its peace for a while."""

    pipeline: CheckpointedPipeline | None
    clock: Callable[[], float] = time.monotonic
    _silent: dict[int, tuple[float, str]] = field(default_factory=dict)

    def read(self, metadata: CheckpointMetadata) -> tuple[SourceLag, ...]:
        """Return the positions of a snapshot's sources in topics, with where they end now; of a finished one not."""
        over = {stage.uid for stage in metadata.stages if stage.finished}
        return tuple(self._of(at, at.stage in over) for at in source_positions(metadata, self.pipeline))

    def _of(self, at: SourcePosition, is_over: bool) -> SourceLag:
        if at.origin is None or is_over:
            return SourceLag(stage=at.source, place="", partitions=lags(at.positions))
        since, problem = self._silent.get(id(at.origin), (0.0, ""))
        place = ""
        if not problem or self.clock() - since > QUIET:
            try:
                log: TopicLog = at.origin.open()
                place = log.place
                bounds = log.bounds(list(at.positions))
                return SourceLag(stage=at.source, place=place, partitions=lags(at.positions, bounds))
            except CheckpointError as error:
                problem = str(error)
                self._silent[id(at.origin)] = (self.clock(), problem)
        return SourceLag(stage=at.source, place=place, partitions=lags(at.positions), problem=problem)


class GroupOffsets:
    """A listener that tells groups in a thread of its own: a broker that is slow holds up no checkpoint.

    Of checkpoints that complete meanwhile the newest is told. The thread lives no longer than it has something to tell,
    and the process ends after it, so that the last checkpoint of a run is told.
    """

    def __init__(self, pipeline: CheckpointedPipeline, reporter: Reporter) -> None:
        self._pipeline, self._reporter = pipeline, reporter
        self._lock = threading.Lock()
        self._next: CheckpointMetadata | None = None
        self.thread: threading.Thread | None = None

    @staticmethod
    def wanted(pipeline: CheckpointedPipeline) -> bool:
        """Return True where a source names a group."""
        return any(_group(stage.reads) for stage in pipeline.authored.stages.values())

    def __call__(self, event: CoordinatorEvent) -> None:
        """Hear one event of the coordinator."""
        if not isinstance(event, CheckpointCompleted):
            return
        with self._lock:
            self._next = event.metadata
            if self.thread is None:
                self.thread = threading.Thread(target=self._tell_all, name="group-offsets", daemon=False)
                self.thread.start()

    def _tell_all(self) -> None:
        while True:
            with self._lock:
                metadata, self._next = self._next, None
                if metadata is None:
                    self.thread = None
                    return
            self._tell(metadata)

    def _tell(self, metadata: CheckpointMetadata) -> None:
        for at in source_positions(metadata, self._pipeline):
            group = _group(at.origin)
            if at.origin is None or not group:
                continue
            try:
                _commit(at.origin, group, at.positions)
            except CheckpointError as error:
                self._reporter.warn(
                    f"group {group!r} was not told the offsets of checkpoint {metadata.checkpoint_id}: {error}"
                )


def _commit(origin: SourceOrigin, group: str, positions: Positions) -> None:
    log: TopicLog = origin.open()
    log.commit(group, positions)


def _group(origin: object) -> str:
    return origin.group_told() if isinstance(origin, SourceOrigin) else ""
