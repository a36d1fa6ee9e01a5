"""The barrier loop over graphs that the test moves: consistent cuts in every mode, whatever the order of events."""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import BatchId, CheckpointId, StageUid
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.spark.channel.entries import MIN_EMPTY_ENTRIES_PER_BATCH, CancelEntry
from dagster_ckpt.spark.streaming.background import MIN_ENTRIES_TO_TRUNCATE, cut_logs
from dagster_ckpt.spark.streaming.gate import Hold, InducedBarriers
from dagster_ckpt.spark.streaming.loop import IsAborted
from tests.properties import examples
from tests.spark.streaming.played_stages import DIAMOND, ONE_ENDS, TWO_SOURCES, Graph, Play, rows_between
from tests.sweeps import third

MODES: dict[str, dict[str, Any]] = {
    "aligned": {},
    "unaligned": {"unaligned": True},
    "aligned_with_timeout": {"unaligned": True, "aligned_checkpoint_timeout": 0.05},
    "at_least_once": {"mode": "at_least_once"},
    "instant": {"instant_cuts": True},
    "instant_unaligned": {"instant_cuts": True, "unaligned": True},
}
ALIGNED_MODES = ("aligned", "aligned_with_timeout")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def play(folder: Path, mode: str, graph: Graph = DIAMOND, **more: Any) -> Play:
    return Play(folder, graph, CheckpointConfig.of(**{"instant_cuts": False, **MODES[mode], **more}))


@pytest.mark.parametrize("graph", [DIAMOND, TWO_SOURCES], ids=["diamond", "two_sources"])
@pytest.mark.parametrize("mode", MODES)
def test_checkpoints_complete_one_after_the_other_while_rows_flow(
    folder: Path, mode: str, graph: Graph
) -> None:
    stage = play(folder, mode, graph)
    for _ in range(3):
        stage.emit(5)
        stage.trigger()
        stage.run_down()
    assert stage.completed() == [1, 2, 3]
    for number in stage.completed():
        stage.check_cut(number)
    stage.check_everything_arrived()


@pytest.mark.parametrize("mode", MODES)
def test_idle_sources_pass_barriers_too(folder: Path, mode: str) -> None:
    stage = play(folder, mode)
    stage.trigger()
    stage.run_down()
    assert stage.completed() == [1]
    assert all(cut.batch_id is None for (uid, _), cut in stage.cuts.items() if uid == "source")


@pytest.mark.parametrize("mode", MODES)
def test_the_part_of_a_bounded_source_is_finished_behind_its_last_batch(folder: Path, mode: str) -> None:
    stage = play(folder, mode)
    stage.emit(3)
    stage.run_down()
    stage.trigger()
    stage.run_down()
    assert not any(cut.finished for cut in stage.cuts.values()), "more may come"
    stage.loop.workers[StageUid("source")].is_ended = True
    stage.trigger()
    stage.run_down()
    assert stage.completed() == [1, 2]
    assert [key for key, cut in stage.cuts.items() if cut.finished] == [("source", 2)]
    stage.check_everything_arrived()


@pytest.mark.parametrize("mode", MODES)
def test_a_finished_part_has_every_row_and_only_finished_parts_feed_it(folder: Path, mode: str) -> None:
    """A restore refuses a finished stage behind a running one: the source ends between its own cut and its reader's."""
    stage = play(folder, mode, ONE_ENDS)
    stage.emit(2)
    for move in (*["ends"] * 3, "trigger", "loop", "end", *["follows"] * 3, "end", "loop"):
        _move(stage, move)
    stage.run_down()
    for _ in range(2):
        stage.emit(4)
        stage.run_down()
        stage.end_what_can()
        stage.trigger()
        stage.run_down()
    assert not stage.errors
    assert stage.completed() == [1, 2, 3]
    for number in stage.completed():
        stage.check_cut(number)
        stage.check_finished(number)
    assert {uid for uid in stage.queries if stage.cuts[uid, CheckpointId(3)].finished} == {"ends", "follows"}


@pytest.mark.slow
@pytest.mark.parametrize("mode", third(MODES))
def test_a_graph_at_rest_takes_checkpoints_almost_without_batches_and_its_logs_stay_short(
    folder: Path, mode: str
) -> None:
    stage = play(folder, mode)
    stage.emit(4)
    stage.run_down()
    before = {uid: query.batch for uid, query in stage.queries.items()}
    stage.trigger()
    stage.run_down()
    assert {uid: query.batch for uid, query in stage.queries.items()} == before
    many = 4 * MIN_EMPTY_ENTRIES_PER_BATCH
    for _ in range(many):
        stage.trigger()
        stage.run_down()
        cut_logs(stage.loop.workers, [])
    assert stage.completed() == list(range(1, many + 2))
    for number in (1, MIN_EMPTY_ENTRIES_PER_BATCH, many + 1):
        stage.check_cut(number)
    moved = {uid: query.batch - before[uid] for uid, query in stage.queries.items()}
    assert max(moved.values()) <= many / MIN_EMPTY_ENTRIES_PER_BATCH
    # A query that is started again may look at its last batch: entries of two empty batches are kept.
    longest = max(query.log.end - query.log.start for query in stage.queries.values())
    assert longest < 2 * (MIN_EMPTY_ENTRIES_PER_BATCH + MIN_ENTRIES_TO_TRUNCATE)
    stage.emit(4)
    stage.run_down()
    sink = stage.queries[StageUid("sink")].log
    assert Counter(rows_between(sink, sink.start, sink.end)) >= Counter(dict.fromkeys(range(4, 8), 2))


@pytest.mark.parametrize("mode", MODES)
@settings(
    max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_order_of_events_gives_consistent_cuts_and_loses_nothing(mode: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as made:
        stage = play(Path(made), mode)
        moves = [*DIAMOND, "emit", "trigger", "loop", "loop", "jobs", "abort", "time"]
        for move in data.draw(st.lists(st.sampled_from(moves), min_size=20, max_size=100)):
            _move(stage, move)
        stage.run_down()
        assert not stage.errors
        for number in stage.completed():
            stage.check_cut(number)
        last = stage.trigger()
        stage.run_down()
        assert last in stage.completed(), "a checkpoint that nothing disturbs completes"
        stage.check_cut(last)
        stage.check_everything_arrived()


def _move(stage: Play, move: str) -> None:
    match move:
        case "emit":
            stage.emit(2)
        case "trigger":
            if not stage.pending:
                stage.trigger()
        case "loop":
            stage.loop.step()
        case "jobs":
            stage.finish_jobs()
        case "abort":
            if stage.pending:
                stage.abort(max(stage.pending))
        case "end":
            stage.end_what_can()
        case "time":
            stage.clock.advance(0.03)
        case _:
            stage.queries[StageUid(move)].step()


def test_an_aligned_checkpoint_holds_the_input_that_came_first_until_the_other_has_come(folder: Path) -> None:
    stage = play(folder, "aligned")
    stage.emit(6)
    for _ in range(8):
        stage.queries[StageUid("source")].step()
    stage.trigger()
    stage.loop.step()
    for _ in range(8):
        stage.queries[StageUid("left")].step()
        stage.queries[StageUid("met")].step()
        stage.loop.step()
    met = stage.loop.workers[StageUid("met")]
    assert set(met.blocked_since) == {"left"}
    assert (StageUid("met"), CheckpointId(1)) not in stage.jobs
    stage.run_down()
    assert not met.blocked_since
    assert stage.completed() == [1]


def test_an_unaligned_barrier_overtakes_rows_and_they_are_stored_with_the_checkpoint(folder: Path) -> None:
    stage = play(folder, "unaligned")
    stage.emit(12)
    source, left = stage.queries[StageUid("source")], stage.queries[StageUid("left")]
    for _ in range(12):
        source.step()
    for _ in range(3):
        left.step()
    stage.trigger()
    for _ in range(6):
        stage.loop.step()
        stage.finish_jobs()
    assert stage.completed() == [1], "no stage has read a row since the trigger"
    stage.check_cut(CheckpointId(1))
    assert stage.cuts[StageUid("right"), CheckpointId(1)].persisted_in_flight > 0
    stage.run_down()
    stage.check_everything_arrived()


def test_an_aligned_checkpoint_turns_unaligned_when_its_time_is_over(folder: Path) -> None:
    stage = play(folder, "aligned_with_timeout")
    stage.emit(12)
    for _ in range(12):
        stage.queries[StageUid("source")].step()
    stage.trigger()
    stage.loop.step()
    stage.finish_jobs()
    assert (StageUid("right"), CheckpointId(1)) not in stage.cuts, "it is still aligned"
    stage.clock.advance(0.06)
    for _ in range(6):
        stage.loop.step()
        stage.finish_jobs()
    assert stage.completed() == [1]
    assert stage.cuts[StageUid("right"), CheckpointId(1)].unaligned
    stage.check_cut(CheckpointId(1))


@pytest.mark.parametrize("mode", ALIGNED_MODES)
def test_an_abort_releases_whoever_waits_and_marks_the_logs(folder: Path, mode: str) -> None:
    stage = play(folder, mode)
    stage.emit(6)
    for _ in range(8):
        stage.queries[StageUid("source")].step()
    number = stage.trigger()
    stage.loop.step()
    for _ in range(8):
        stage.queries[StageUid("left")].step()
        stage.queries[StageUid("met")].step()
        stage.loop.step()
    stage.abort(number)
    stage.run_down()
    stage.check_everything_arrived()
    met = stage.queries[StageUid("met")].log
    assert any(isinstance(entry, CancelEntry) for _, entry in met.entries(met.start))
    following = stage.trigger()
    stage.run_down()
    assert stage.completed() == [following]


def test_a_savepoint_that_ends_the_run_holds_every_stage_exactly_at_its_barrier(folder: Path) -> None:
    stage = play(folder, "aligned")
    stage.emit(5)
    stage.run_down()
    number = stage.trigger(CheckpointKind.SYNC_SAVEPOINT_SUSPEND)
    stage.emit(5)
    stage.run_down()
    assert stage.completed() == [number]
    assert sorted(stage.finished) == sorted(DIAMOND)
    for uid, query in stage.queries.items():
        assert query.log.find_barrier(number) == query.log.end - 1, f"{uid} went on after the savepoint"


def test_when_that_savepoint_fails_the_stages_go_on_where_they_stood(folder: Path) -> None:
    stage = play(folder, "aligned")
    stage.emit(5)
    stage.run_down()
    number = stage.trigger(CheckpointKind.SYNC_SAVEPOINT_TERMINATE)
    stage.emit(5)
    for _ in range(6):
        stage.loop.step()
        for query in stage.queries.values():
            query.step()
    stage.abort(number)
    stage.run_down()
    assert not stage.finished
    stage.check_everything_arrived()
    following = stage.trigger()
    stage.run_down()
    assert stage.completed() == [following]


def test_a_savepoint_that_ends_the_run_falls_where_the_source_wants_it(folder: Path) -> None:
    """SourceOperatorStreamTaskTest#testExternallyInducedSource, of stop-with-savepoint: the source decides too."""
    stage = play(folder, "aligned")
    source = StageUid("source")
    induce(stage, source, lambda batch: batch == 2)
    stage.emit(3)
    stage.run_down()
    number = stage.trigger(CheckpointKind.SYNC_SAVEPOINT_SUSPEND)
    stage.emit(15)
    stage.run_down()
    assert stage.completed() == [number]
    assert sorted(stage.finished) == sorted(DIAMOND)
    assert stage.cuts[source, number].batch_id == 2
    assert stage.queries[source].log.find_barrier(number) == stage.queries[source].log.end - 1


def test_a_source_goes_on_when_that_savepoint_is_over_before_its_place_came(folder: Path) -> None:
    stage = play(folder, "aligned")
    source = StageUid("source")
    induce(stage, source, lambda batch: batch == 20)
    stage.emit(3)
    stage.run_down()
    number = stage.trigger(CheckpointKind.SYNC_SAVEPOINT_SUSPEND)
    stage.emit(6)
    stage.run_down()
    assert (stage.completed(), stage.queries[source].log.find_barrier(number)) == ([], None)
    stage.abort(number)
    stage.emit(60)
    stage.run_down()
    assert not stage.finished
    stage.check_everything_arrived()
    assert not stage.queries[source].gate.is_held


def induce(stage: Play, source: StageUid, is_boundary: Callable[[BatchId], bool]) -> None:
    """Let a source decide where its barriers fall."""
    query = stage.queries[source]
    stage.loop.workers[source].induced = InducedBarriers(
        gate=query.gate, is_boundary=is_boundary, last_batch=query.log.last_batch
    )


def test_a_stage_confirms_an_abort_when_its_snapshot_has_ended_and_not_before(folder: Path) -> None:
    stage = play(folder, "aligned")
    number = stage.trigger()
    stage.loop.step()
    source = StageUid("source")
    assert (source, number) in stage.jobs
    stage.abort(number)
    stage.loop.step()
    assert (source, number) not in stage.confirmed, "it may still write files"
    stage.finish_jobs()
    stage.loop.step()
    assert stage.confirmed.count((source, number)) == 1


def test_a_completion_whose_notice_was_lost_is_made_up_for_with_the_next_abort(folder: Path) -> None:
    stage = play(folder, "aligned")
    source = stage.loop.workers[StageUid("source")]
    source.gate.hold(Hold.FIRST_CHECKPOINT)
    stage.loop.post(IsAborted(CheckpointId(2), latest_completed=CheckpointId(1)))
    stage.loop.step()
    assert not source.gate.is_held_for(Hold.FIRST_CHECKPOINT)


def test_the_log_follows_a_barrier_through_a_stage(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "dagster_ckpt.stage")
    stage = play(folder, "aligned")
    stage.emit(5)
    stage.trigger()
    stage.run_down()
    lines = [line for line in caplog.messages if line.startswith("met: ")]
    assert sorted(lines[:2]) == [
        "met: Received barrier from channel left @ 1.",
        "met: Received barrier from channel right @ 1.",
    ]
    assert lines[2:4] == [
        "met: Triggering checkpoint 1 as all the channels are aligned.",
        "met: Starting checkpoint 1 behind batch None.",
    ]
    assert lines[-1] == "met: Notify checkpoint 1 complete."
