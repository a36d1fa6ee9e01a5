"""Tables that commit more slowly than rows come: the sources wait, nothing is lost, and it is said."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.spark.streaming import gate
from dagster_ckpt.spark.streaming.gate import BatchGate, CommitBackpressure, Hold, longest_commit
from dagster_ckpt.testing.memory import ManualClock
from tests.lab.lab import Lab
from tests.lab.lines import Lines
from tests.lab.streams import commits_that_wait, until
from tests.spark.streaming.pipelines import Numbers, read_rows, straight


@pytest.mark.parametrize(
    ("settings", "longest"),
    [
        ({}, None),
        ({"interval": 0.5}, 60.0),
        ({"interval": 6.0}, 60.0),
        ({"interval": 30.0}, 300.0),
        ({"interval": 10.0, "min_pause": 20.0}, 200.0),
        ({"interval": 10.0, "interval_during_backlog": 300.0}, 3000.0),
        ({"interval": 10.0, "interval_during_backlog": 0.0}, 100.0),
    ],
)
def test_a_commit_may_take_a_minute_or_ten_intervals(
    settings: dict[str, float], longest: float | None
) -> None:
    assert longest_commit(CheckpointConfig.of(**settings)) == longest


def test_sources_wait_for_the_oldest_commit_and_go_on_behind_it() -> None:
    clock, lines, gates = ManualClock(), Lines(), [BatchGate(), BatchGate()]
    pressure = CommitBackpressure(longest=60.0, reporter=lines, clock=clock)
    begun = clock.monotonic()

    def held_after(seconds: float, *publishing: tuple[int, float]) -> list[bool]:
        clock.advance(seconds)
        pressure.look(gates, {CheckpointId(number): since for number, since in publishing})
        return [gate.is_held_for(Hold.SLOW_COMMIT) for gate in gates]

    assert held_after(59.0, (7, begun)) == [False, False]
    assert held_after(1.0, (8, begun + 59.0), (7, begun)) == [True, True]
    assert held_after(30.0, (8, begun + 59.0), (7, begun)) == [True, True]
    [told] = lines.said
    assert told.startswith("WARN sources wait: the tables of checkpoint 7 have been published for 1 min")
    assert held_after(1.0, (8, begun + 59.0)) == [False, False], "8 has waited for half a minute only"
    assert lines.said[1].startswith("sources go on: they have waited 31 s")
    assert held_after(1.0) == [False, False]
    assert len(lines.said) == 2


def test_without_a_timer_no_commit_is_too_long() -> None:
    clock, gate = ManualClock(), BatchGate()
    pressure = CommitBackpressure(longest=None, reporter=Lines(), clock=clock)
    since = clock.monotonic()
    clock.advance(1e6)
    pressure.look([gate], {CheckpointId(1): since})
    assert not gate.is_held


def test_another_reason_to_hold_a_source_outlives_the_slow_commit() -> None:
    clock, gate = ManualClock(), BatchGate()
    pressure = CommitBackpressure(longest=1.0, reporter=Lines(), clock=clock)
    gate.hold(Hold.SAVEPOINT)
    since = clock.monotonic()
    clock.advance(2.0)
    pressure.look([gate], {CheckpointId(1): since})
    pressure.look([gate], {})
    assert gate.is_held
    assert not gate.is_held_for(Hold.SLOW_COMMIT)


@pytest.mark.nightly
def test_a_stream_whose_commit_hangs_reads_no_further_and_then_all_the_rest(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "LEAST", 0.3)
    monkeypatch.setattr(gate, "INTERVALS", 1)
    numbers, goes_on = Numbers(tmp_path / "numbers"), threading.Event()
    with commits_that_wait(goes_on):
        stream = lab.start(straight(numbers.folder), interval="50 ms")
        try:
            until(lambda: any("sources wait" in line for line in stream.reporter.said), stream)
            run = stream.current
            source = run.stages[StageUid("numbers")]
            stood = source.worker.log.last_batch()
            numbers.put(3)
            planned = source.stage_query.directory.query / "offsets" / str(0 if stood is None else stood + 1)
            until(planned.exists, stream)
            queued = stream.coordinator.queued_requests
            until(lambda: stream.coordinator.queued_requests >= queued + 8, stream)
            assert source.worker.log.last_batch() == stood, "the batch is planned and waits"
            assert source.gate.is_held_for(Hold.SLOW_COMMIT)
        finally:
            goes_on.set()
        numbers.put(3)
        until(lambda: read_rows(lab.tables) == Counter((n, "fast") for n in range(6)), stream)
    assert any(line.startswith("sources go on") for line in stream.reporter.said)
    assert stream.failed() == []
    stream.stop()
