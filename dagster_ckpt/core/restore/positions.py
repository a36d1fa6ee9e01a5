"""Positions in topics: what a snapshot reads next, judged by what the topics still hold. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.restore.horizon import Pin

Positions = Mapping[str, Mapping[int, int]]
"""Topic → partition → the offset that is read next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Ends of one partition."""

    earliest: int
    """First offset that can be read."""
    latest: int
    """Offset of the record that comes next."""


TopicBounds = Mapping[str, Mapping[int, Bounds]]
"""Topic → partition → its ends; a topic or partition that is not there is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicClock:
    """When a topic's records go."""

    retention: float | None
    """Seconds a record is kept; None: no clock removes it."""
    times: Mapping[int, float] = field(default_factory=dict)
    """Partition → time (seconds since the epoch) of the first record from the asked offset on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """One partition, and how far behind its end a position is."""

    topic: str
    partition: int
    offset: int
    """Read next."""
    latest: int | None = None
    """Where the partition ends; None: nobody was asked, or it is not there."""

    @property
    def lag(self) -> int | None:
        """Offsets between the two; None where the end is not known."""
        return None if self.latest is None else max(self.latest - self.offset, 0)


def topic_positions(offset: str) -> Positions | None:
    """Return the positions in Spark's offset of a Kafka source; None for the offset of another kind of source."""
    try:
        value = parse_json(offset)
    except ValueError:
        return None
    if not isinstance(value, dict) or not value:
        return None
    found: dict[str, dict[int, int]] = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, dict) or not partitions:
            return None
        if not all(name.isdecimal() and type(at) is int for name, at in partitions.items()):
            return None
        found[topic] = {int(name): at for name, at in partitions.items()}
    return found


def merged(several: list[Positions]) -> Positions:
    """Return positions of several sources as one; of two in one partition the earlier counts."""
    found: dict[str, dict[int, int]] = {}
    for positions in several:
        for topic, partitions in positions.items():
            there = found.setdefault(topic, {})
            for partition, at in partitions.items():
                there[partition] = min(at, there.get(partition, at))
    return found


def lags(positions: Positions, bounds: TopicBounds | None = None) -> tuple[PartitionLag, ...]:
    """Return each partition's position, with where it ends."""
    ends = bounds or {}
    return tuple(
        PartitionLag(
            topic=topic,
            partition=partition,
            offset=at,
            latest=ends[topic][partition].latest if partition in ends.get(topic, {}) else None,
        )
        for topic in sorted(positions)
        for partition, at in sorted(positions[topic].items())
    )


def lost_positions(positions: Positions, bounds: TopicBounds) -> Iterator[Pin]:
    """Yield a pin for each position whose records are gone."""
    for topic, partitions in sorted(positions.items()):
        if topic not in bounds:
            yield Pin(what=f"topic {topic}", is_there=False, advice=_GONE)
            continue
        for partition, at in sorted(partitions.items()):
            found = bounds[topic].get(partition)
            name = f"partition {partition} of topic {topic}"
            if found is None:
                yield Pin(what=name, is_there=False, advice=_GONE)
            elif at < found.earliest:
                what = f"offset {at} of {name} (the earliest there is {found.earliest})"
                yield Pin(what=what, is_there=False, advice=_EXPIRED)
            elif at > found.latest:
                what = f"offset {at} of {name} (the topic was made again: it ends at {found.latest})"
                yield Pin(what=what, is_there=False, advice=_GONE)


def made_again(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Pin]:
    """Yield the topics that are others than those positions are in, by their ids: their offsets mean other records."""
    for topic in sorted(before.keys() & now.keys()):
        if before[topic] != now[topic]:
            what = f"topic {topic} (it was made again: its id was {before[topic]} and is {now[topic]} now)"
            yield Pin(what=what, is_there=False, advice=_COPIED)


def unread(positions: Positions, bounds: TopicBounds) -> Positions:
    """Return the positions that have records to read after them: only these can be lost."""
    found = {
        topic: {n: at for n, at in partitions.items() if at < bounds[topic][n].latest}
        for topic, partitions in positions.items()
    }
    return {topic: partitions for topic, partitions in found.items() if partitions}


def topic_pins(positions: Positions, clocks: Mapping[str, TopicClock]) -> tuple[Pin, ...]:
    """Return the pins of positions whose records are all there, and until when they are kept."""
    return tuple(_pin(topic, positions[topic], clocks.get(topic)) for topic in sorted(positions))


def _pin(topic: str, partitions: Mapping[int, int], clock: TopicClock | None) -> Pin:
    what = f"records of topic {topic}"
    if clock is None or clock.retention is None or not clock.times:
        return Pin(what=what, is_there=True)
    first = min(clock.times, key=lambda partition: (clock.times[partition], partition))
    return Pin(
        what=f"offset {partitions[first]} of partition {first} of topic {topic}",
        is_there=True,
        until=clock.times[first] + clock.retention,
        advice=f"Raise retention.ms of topic {topic} before that, or take a newer savepoint",
    )


_EXPIRED = (
    "Restore a newer snapshot; to read on with what is there, and without what is gone, set fail_on_data_loss=False in "
    "the source's KafkaTopics, and its option failOnDataLoss to false"
)
_GONE = "Restore a snapshot that was taken of this topic as it is now, or bring the topic back"
_COPIED = (
    f"{_GONE}; a copy whose records have the same offsets is read on in with fail_on_data_loss=False in the source's "
    "KafkaTopics, for one run"
)
