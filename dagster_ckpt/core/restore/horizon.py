"""For how long a snapshot can still be restored: as long as everything is there that it is pinned to. Pure.

Positions in topics say what it reads next, and are judged by what the topics still hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.units import moment

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


DAY = 86_400.0
NEAR_DAYS = 3.0
"""Days before a snapshot may be lost from which people are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One thing outside checkpoint storage that a snapshot cannot be restored without."""

    what: str
    """``version 12 of table /lake/orders``."""
    is_there: bool
    until: float | None = None
    """Time (seconds since the epoch) after which others may remove it, as things are set; None: no clock does."""
    advice: str = ""
    """What brings it back, or keeps it."""
    unasked: str = ""
    """Why nobody could be asked whether it is there; empty: it was looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """Horizon of a snapshot: the pins that keep it restorable, judged at a moment."""

    key: str
    pins: tuple[Pin, ...]
    lost: tuple[Pin, ...]
    """What is gone: the snapshot cannot be restored with its tables as they were."""
    next: Pin | None
    """What may be gone first; None: no clock removes any of it."""
    days: float | None
    """Days until then, 0 where others may remove it at any time; None: no clock does."""
    lost_since: float | None = None
    """When it was first seen that something is gone (seconds since the epoch)."""

    @property
    def is_restorable(self) -> bool:
        """True while nothing is gone."""
        return not self.lost

    def is_near(self, days: float) -> bool:
        """True where it is gone, or may be within so many days."""
        return bool(self.lost) or (self.days is not None and self.days < days)

    @property
    def unasked(self) -> tuple[Pin, ...]:
        """Pins that could not be looked at."""
        return tuple(pin for pin in self.pins if pin.unasked)

    def sentence(self) -> str:
        """Return the horizon as a sentence for people."""
        if self.lost:
            first = self.lost[0]
            return f"{no_longer(self.key, first.what, self.lost_since)}. {first.advice}".strip()
        return self._while_there() + "".join(
            f". {pin.what} could not be looked at: {pin.unasked}" for pin in self.unasked
        )

    def brief(self) -> str:
        """Return the horizon in a word or two, for a column: ``gone``, ``5.2 days``, ``kept``, ``kept?``."""
        if self.lost:
            return "gone"
        left = "kept" if self.days is None else f"{self.days:.1f} days"
        return f"{left}?" if self.unasked else left

    def _while_there(self) -> str:
        if self.next is None or self.days is None:
            return f"{self.key} can be restored: nothing it needs is removed by a clock"
        left = f"{self.days:.1f} days" if self.days > 0 else "0 days (it may be removed at any time)"
        return (
            f"{self.key} can be restored for {left}: then {self.next.what} may go. {self.next.advice}".strip()
        )


def no_longer(key: str, what: str, since: float | None) -> str:
    """Return that a snapshot cannot be restored any more, why, and since when that is known; empty: it can be."""
    known = "" if since is None else f", as is known since {moment(since)}"
    return f"{key} can no longer be restored: {what} is gone{known}" if what else ""


def horizon_of(key: str, pins: Sequence[Pin], *, now: float) -> Horizon:
    """Return for how long everything is there that a snapshot is pinned to."""
    clocked = [pin for pin in pins if pin.is_there and pin.until is not None]
    first = min(clocked, key=lambda pin: pin.until or 0.0, default=None)
    left = None if first is None or first.until is None else max(first.until - now, 0.0) / DAY
    return Horizon(
        key=key, pins=tuple(pins), lost=tuple(pin for pin in pins if not pin.is_there), next=first, days=left
    )
