"""Topics in memory: an origin for ``@spark_source(reads=...)`` and its log in one; numbers are kept, no records."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dagster_ckpt.authoring.targets import SourceOrigin
from dagster_ckpt.core.restore.horizon import Bounds, Positions, TopicBounds, TopicClock
from dagster_ckpt.errors import Unavailable


class MemoryTopics(SourceOrigin):
    """Topics whose records a test adds and expires; it passes the contract suite of the real ones."""

    def __init__(self) -> None:
        self.place = "memory://topics"
        self.groups: dict[str, Positions] = {}
        """What consumer groups were told."""
        self.is_down = False
        """True: nobody answers."""
        self._made: dict[str, int] = {}
        self._retention: dict[str, float | None] = {}
        self._times: dict[str, list[list[float]]] = {}
        self._earliest: dict[tuple[str, int], int] = {}

    def open(self) -> MemoryTopics:
        """Return itself."""
        return self

    def create(self, topic: str, partitions: int = 1, *, retention: float | None = None) -> None:
        """Make a topic, or make it again without its records."""
        self._made[topic] = self._made.get(topic, 0) + 1
        self._retention[topic] = retention
        self._times[topic] = [[] for _ in range(partitions)]
        for partition in range(partitions):
            self._earliest.pop((topic, partition), None)

    def delete(self, topic: str) -> None:
        """Remove a topic."""
        del self._times[topic], self._retention[topic]

    def append(self, topic: str, partition: int, records: int, *, at: float = 0.0) -> None:
        """Add records of one time."""
        self._times[topic][partition] += [at] * records

    def expire(self, topic: str, partition: int, before: int) -> None:
        """Remove the records with lower offsets."""
        self._earliest[topic, partition] = before

    def bounds(self, topics: Collection[str]) -> TopicBounds:
        """Return the ends of every partition of these topics."""
        self._answer()
        return {
            topic: {
                partition: Bounds(earliest=self._earliest.get((topic, partition), 0), latest=len(times))
                for partition, times in enumerate(self._times[topic])
            }
            for topic in topics
            if topic in self._times
        }

    def ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return which of the topics of its name each is."""
        self._answer()
        return {topic: f"{topic} {self._made[topic]}" for topic in topics if topic in self._times}

    def clocks(self, positions: Positions) -> Mapping[str, TopicClock]:
        """Return how long records are kept, and of when those are that would be read next."""
        self._answer()
        found = {}
        for topic, partitions in positions.items():
            retention = self._retention[topic]
            times = {
                partition: self._times[topic][partition][at]
                for partition, at in partitions.items()
                if retention is not None and at < len(self._times[topic][partition])
            }
            found[topic] = TopicClock(retention=retention, times=times)
        return found

    def commit(self, group: str, positions: Positions) -> None:
        """Note what a group was told."""
        self._answer()
        self.groups[group] = positions

    def _answer(self) -> None:
        if self.is_down:
            raise Unavailable(f"{self.place} did not answer: ask again")
