"""Port of the logs that sources read: topics with partitions whose records have numbers and are removed one day."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from dagster_ckpt.core.restore.positions import Positions, TopicBounds, TopicClock


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
