"""Positions in topics, judged by what the topics still hold."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.restore.horizon import (
    DAY,
    Bounds,
    TopicClock,
    horizon_of,
    lags,
    lost_positions,
    merged,
    topic_pins,
    topic_positions,
    unread,
)

AT = {"orders": {0: 5, 1: 7}}


def ends(**partitions: tuple[int, int]) -> dict[str, dict[int, Bounds]]:
    found = {int(name[1:]): Bounds(earliest=a, latest=b) for name, (a, b) in partitions.items()}
    return {"orders": found}


@pytest.mark.parametrize(
    ("offset", "positions"),
    [
        ('{"orders":{"0":5,"1":7}}', AT),
        ('{"logOffset":3}', None),
        ('{"sourceVersion":1,"reservoirId":"a","reservoirVersion":3,"index":-1}', None),
        ('{"offset":20}', None),
        ('{"a":{"b":1}}', None),
        ('{"orders":{"0":true}}', None),
        ('{"orders":{}}', None),
        ("{}", None),
        ("[1]", None),
        ("no json", None),
    ],
)
def test_only_offsets_of_topics_are_taken_for_positions(offset: str, positions: object) -> None:
    assert topic_positions(offset) == positions


def test_of_two_sources_of_one_topic_the_earlier_position_counts() -> None:
    assert merged([{"a": {0: 5, 1: 2}}, {"a": {0: 3}, "b": {0: 1}}]) == {"a": {0: 3, 1: 2}, "b": {0: 1}}


@pytest.mark.parametrize(
    ("bounds", "what"),
    [
        (ends(p0=(5, 9), p1=(7, 7)), []),
        (ends(p0=(5, 9), p1=(0, 9), p2=(0, 4)), []),
        (ends(p0=(6, 9), p1=(0, 7)), ["offset 5 of partition 0 of topic orders (the earliest there is 6)"]),
        (
            ends(p0=(0, 4), p1=(0, 7)),
            ["offset 5 of partition 0 of topic orders (the topic was made again: it ends at 4)"],
        ),
        (ends(p0=(0, 5)), ["partition 1 of topic orders"]),
        ({}, ["topic orders"]),
    ],
)
def test_what_cannot_be_read_on_from_is_named(bounds: dict[str, dict[int, Bounds]], what: list[str]) -> None:
    assert [pin.what for pin in lost_positions(AT, bounds)] == what


def test_the_first_record_that_retention_takes_says_for_how_long() -> None:
    clocks = {"orders": TopicClock(retention=7 * DAY, times={0: 4 * DAY, 1: 2 * DAY})}
    found = horizon_of("savepoint-000007", topic_pins(AT, clocks), now=6 * DAY)
    assert found.days == 3.0
    assert found.sentence() == (
        "savepoint-000007 can be restored for 3.0 days: then offset 7 of partition 1 of topic orders may go. "
        "Raise retention.ms of topic orders before that, or take a newer savepoint"
    )


def test_what_is_read_to_the_end_or_kept_for_ever_has_no_clock() -> None:
    assert unread(AT, ends(p0=(0, 5), p1=(0, 7))) == {}
    assert unread(AT, ends(p0=(0, 6), p1=(0, 7))) == {"orders": {0: 5}}
    for clocks in ({}, {"orders": TopicClock(retention=None)}, {"orders": TopicClock(retention=DAY)}):
        assert horizon_of("chk-1", topic_pins(AT, clocks), now=0.0).days is None


def test_the_lag_of_a_partition_is_what_lies_after_its_position() -> None:
    assert [one.lag for one in lags(AT)] == [None, None]
    found = lags({"orders": {0: 5, 1: 7, 2: 1}}, ends(p0=(0, 9), p1=(0, 7)))
    assert [(one.partition, one.offset, one.latest, one.lag) for one in found] == [
        (0, 5, 9, 4),
        (1, 7, 7, 0),
        (2, 1, None, None),
    ]
