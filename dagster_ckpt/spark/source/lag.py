"""Positions of sources beside the ends of their topics: how far behind a snapshot is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.restore.horizon import PartitionLag, lags
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.source.positions import SourcePosition, TopicLog, source_positions

if TYPE_CHECKING:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline

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
        """Return the positions of a snapshot's sources in topics, with where these end now."""
        return tuple(self._of(at) for at in source_positions(metadata, self.pipeline))

    def _of(self, at: SourcePosition) -> SourceLag:
        if at.origin is None:
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
