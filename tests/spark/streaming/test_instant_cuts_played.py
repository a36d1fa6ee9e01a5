"""Instant cuts over graphs that the test moves: consistent, at once, nothing in flight where there is one reader."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import BatchId, CheckpointId, LogPosition, StageUid
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.errors import Unavailable
from dagster_ckpt.spark.channel.entries import BarrierEntry
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.streaming import background
from dagster_ckpt.spark.streaming.background import cut_logs
from dagster_ckpt.spark.streaming.gate import InducedBarriers
from dagster_ckpt.spark.streaming.instant_cut import NotAtOnce, batch_before
from tests.properties import examples
from tests.spark.streaming.played_stages import DIAMOND, LINE, TWO_SOURCES, Graph, Play

SOURCE, LEFT, RIGHT, SINK = (StageUid(uid) for uid in ("source", "left", "right", "sink"))


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def play(folder: Path, graph: Graph = LINE, **more: Any) -> Play:
    return Play(folder, graph, CheckpointConfig.of(**{"instant_cuts": True, **more}))


def steps(stage: Play, uid: StageUid, count: int) -> None:
    for _ in range(count):
        stage.queries[uid].step()


def look(stage: Play) -> None:
    """Let the loop and the snapshots run, and no stage."""
    for _ in range(4):
        stage.loop.step()
        stage.finish_jobs()


def barriers_in(log: ChannelLog) -> list[int]:
    return [entry.checkpoint_id for _, entry in log.entries(log.start) if isinstance(entry, BarrierEntry)]


def behind_each_other(stage: Play) -> None:
    """Let every stage be some batches ahead of the next one."""
    stage.emit(30)
    steps(stage, SOURCE, 24)
    steps(stage, LEFT, 3)
    steps(stage, SOURCE, 3)
    steps(stage, LEFT, 3)
    steps(stage, RIGHT, 3)
    steps(stage, SINK, 3)
    steps(stage, SOURCE, 3)
    steps(stage, RIGHT, 6)
    steps(stage, LEFT, 2)


def test_a_checkpoint_completes_without_a_batch_or_a_barrier_and_nothing_is_in_flight(folder: Path) -> None:
    stage = play(folder)
    behind_each_other(stage)
    number = stage.trigger()
    look(stage)
    assert stage.completed() == [number]
    stage.check_cut(number)
    assert not any(cut.unaligned or cut.extra_files for cut in stage.cuts.values())
    assert stage.cuts[SINK, number].batch_id == 0
    assert barriers_in(stage.queries[SINK].log) == [number], "tables are published up to its batch"
    assert not any(barriers_in(stage.queries[uid].log) for uid in (SOURCE, LEFT, RIGHT))
    stage.run_down()
    stage.check_everything_arrived(paths=1)


def test_a_stage_whose_rows_were_read_before_it_committed_them_is_waited_for(folder: Path) -> None:
    stage = play(folder)
    stage.emit(3)
    steps(stage, SOURCE, 2)  # planned and written, not committed
    steps(stage, LEFT, 3)
    steps(stage, RIGHT, 3)
    steps(stage, SINK, 3)
    number = stage.trigger()
    look(stage)
    assert stage.completed() == []
    assert {uid for uid, _ in stage.cuts} == {LEFT, RIGHT, SINK}, "whoever is killed now has no checkpoint"
    assert (SOURCE, number) in stage.jobs
    steps(stage, SOURCE, 1)
    look(stage)
    assert stage.completed() == [number]
    stage.check_cut(number)
    assert stage.cuts[SOURCE, number].batch_id == 0


def test_batches_without_rows_do_not_hold_a_stage_back(folder: Path) -> None:
    """Else a stage that filters everything would never get on."""
    stage = play(folder)
    stage.emit(3)
    stage.run_down()
    for batch in range(1, 80):
        folder_of = stage.queries[LEFT].root / "query"
        (folder_of / "offsets" / str(batch)).write_text((folder_of / "offsets/0").read_text())
        (folder_of / "commits" / str(batch)).write_text("v1\n{}")
        stage.queries[LEFT].log.append_data(BatchId(batch), ())
    stage.queries[LEFT].batch = 80
    number = stage.trigger()
    look(stage)
    assert stage.completed() == [number]
    assert stage.cuts[LEFT, number].batch_id == 79
    stage.check_cut(number)


@pytest.mark.parametrize("unaligned", [False, True])
def test_readers_at_different_places_take_barriers_or_have_rows_stored(folder: Path, unaligned: bool) -> None:
    stage = play(folder, DIAMOND, unaligned=unaligned)
    stage.emit(12)
    steps(stage, SOURCE, 12)
    for uid in (LEFT, StageUid("met"), SINK):
        steps(stage, uid, 3)
    number = stage.trigger()
    look(stage)
    assert (stage.completed() == [number]) is unaligned
    assert bool(barriers_in(stage.queries[SOURCE].log)) is not unaligned
    stage.run_down()
    assert stage.completed() == [number]
    stage.check_cut(number)
    assert stage.cuts[RIGHT, number].unaligned is unaligned
    stage.check_everything_arrived()


def test_parts_of_a_graph_that_no_channel_joins_are_cut_each_in_its_way(folder: Path) -> None:
    stage = play(folder, {**LINE, "other": (), "end": ("other",)})
    other = StageUid("other")
    stage.loop.workers[other].induced = InducedBarriers(
        gate=stage.queries[other].gate,
        is_boundary=lambda _: True,
        last_batch=stage.queries[other].log.last_batch,
    )
    behind_each_other(stage)
    number = stage.trigger()
    look(stage)
    assert {uid for uid, _ in stage.cuts} >= {SOURCE, LEFT, RIGHT, SINK}
    stage.run_down()
    assert stage.completed() == [number]
    assert barriers_in(stage.queries[other].log) == [number]
    assert not barriers_in(stage.queries[SOURCE].log)
    stage.check_cut(number)


def test_savepoints_and_what_is_triggered_behind_one_take_barriers(folder: Path) -> None:
    stage = play(folder, max_concurrent_checkpoints=2)
    behind_each_other(stage)
    savepoint = stage.trigger(CheckpointKind.SAVEPOINT)
    stage.loop.step()
    following = stage.trigger()
    stage.loop.step()
    assert barriers_in(stage.queries[SOURCE].log) == [savepoint, following], "none overtakes another"
    stage.run_down()
    assert stage.completed() == [savepoint, following]
    after = stage.trigger()
    look(stage)
    assert after in stage.completed()
    assert after not in barriers_in(stage.queries[SOURCE].log)


def keeping(stage: Play, batches: int) -> Play:
    """Say that Spark keeps so many batches of each query."""
    for worker in stage.loop.workers.values():
        worker.batches_kept = batches
    return stage


@pytest.mark.parametrize(("kept", "is_at_once"), [(1, False), (2, False), (20, True), (100, True)])
def test_how_far_behind_a_stage_is_cut_follows_what_spark_keeps(
    folder: Path, kept: int, is_at_once: bool
) -> None:
    stage = keeping(play(folder), kept)
    behind_each_other(stage)
    number = stage.trigger()
    look(stage)
    assert (stage.completed() == [number]) is is_at_once


def test_a_stage_too_far_ahead_of_its_reader_takes_barriers(folder: Path) -> None:
    stage = keeping(play(folder), 6)
    stage.emit(30)
    steps(stage, SOURCE, 24)
    number = stage.trigger()
    look(stage)
    assert stage.completed() == []
    assert barriers_in(stage.queries[SOURCE].log) == [number]
    stage.run_down()
    assert stage.completed() == [number]
    stage.check_cut(number)


@pytest.mark.parametrize("unaligned", [False, True])
def test_rows_that_a_restore_put_back_are_never_cut_in_two(folder: Path, unaligned: bool) -> None:
    """Their batch was over before the attempt: the stage that wrote them cannot be cut before them."""
    stage = play(folder, unaligned=unaligned)
    stage.emit(30)
    steps(stage, SOURCE, 12)
    for uid in (LEFT, RIGHT, SINK):
        steps(stage, uid, 3)
    steps(stage, SOURCE, 6)
    source = stage.loop.workers[SOURCE]
    source.begins_at = source.log.end
    number = stage.trigger()
    look(stage)
    assert (stage.completed() == [number]) is unaligned
    stage.run_down()
    assert stage.completed() == [number]
    stage.check_cut(number)
    assert stage.cuts[SOURCE, number].batch_id == 5 if unaligned else barriers_in(source.log) == [number]
    stage.check_everything_arrived(paths=1)


def test_a_disk_that_is_full_fails_the_checkpoint_and_not_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = play(folder)
    behind_each_other(stage)

    def full(*_: object, **__: object) -> None:
        raise Unavailable("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ChannelLog, "append_barrier", full)
        number = stage.trigger()
        look(stage)
    assert {declined for _, declined in stage.declined} == {number}
    stage.abort(number)
    stage.run_down()
    assert not stage.errors
    following = stage.trigger()
    stage.run_down()
    assert stage.completed() == [following]


def test_a_stage_that_reads_an_input_twice_is_cut_where_the_faster_reader_stands(folder: Path) -> None:
    """A self-join has two positions in one channel, and a restored log goes on behind its cut with other rows."""
    stage = play(folder, {"source": (), "sink": ("source",)})
    stage.emit(9)
    steps(stage, SOURCE, 9)
    query = stage.queries[SINK].root / "query"
    lines = ["v1", "{}", *(json.dumps({"channel": "source", "pos": at}) for at in (2, 3))]
    (query / "offsets" / "0").write_text("\n".join(lines))
    stage.queries[SINK].log.append_data(BatchId(0), ())
    (query / "commits" / "0").write_text("v1\n{}")
    worker = stage.loop.workers[SINK]
    assert (worker.batches.positions_at(BatchId(0)), worker.batches.furthest_at(BatchId(0))) == (
        {SOURCE: 2},
        {SOURCE: 3},
    )
    number = stage.trigger()
    stage.loop.step()
    assert barriers_in(stage.queries[SOURCE].log) == [number], (
        "a row that one of them has not read is in flight"
    )


def test_an_aborted_checkpoint_leaves_nothing_behind(folder: Path) -> None:
    stage = play(folder)
    behind_each_other(stage)
    number = stage.trigger()
    stage.loop.step()
    stage.abort(number)
    stage.run_down()
    assert stage.completed() == []
    stage.check_everything_arrived(paths=1)
    following = stage.trigger()
    stage.run_down()
    assert stage.completed() == [following]
    stage.check_cut(following)


@pytest.mark.parametrize("graph", [LINE, TWO_SOURCES], ids=["line", "two sources"])
@settings(
    max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_whatever_the_stages_are_doing_a_checkpoint_needs_no_more_than_commits(
    graph: Graph, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as made:
        stage = play(Path(made), graph)
        stage.emit(1)
        stage.run_down()
        for move in data.draw(st.lists(st.sampled_from([*graph, "emit"]), max_size=120)):
            stage.emit(2) if move == "emit" else steps(stage, StageUid(move), 1)
        number = stage.trigger()
        for query in stage.queries.values():
            if query.written:
                query.step()
        look(stage)
        assert stage.completed() == [number]
        stage.check_cut(number)
        assert not any(cut.extra_files for cut in stage.cuts.values())
        stage.run_down()
        assert not stage.errors
        stage.check_everything_arrived(paths=2 if graph is TWO_SOURCES else 1)


@pytest.mark.parametrize("lag", [1, 3, 10, 40])
def test_a_stage_cut_far_back_needs_of_its_input_what_the_newest_batch_does_not(
    folder: Path, lag: int
) -> None:
    """Back pressure two stages further on: entries behind the middle stage's newest batch are still the cut's."""
    stage = play(folder)
    stage.emit(600)
    for _ in range(130):
        for uid in (SOURCE, LEFT):
            steps(stage, uid, 3)
        stage.loop.step()
        cut_logs(stage.loop.workers, [])
        if len(stage.queries[LEFT].passed_on) > lag:
            for uid in (RIGHT, SINK):
                steps(stage, uid, 3)
    source = stage.queries[SOURCE].log
    assert source.start > 0, "what no cut can need is removed"
    number = stage.trigger()
    look(stage)
    assert stage.completed() == [number]
    assert barriers_in(source) == []
    stage.check_batches(number)


def test_a_cut_whose_entries_are_removed_takes_barriers(folder: Path) -> None:
    stage = play(folder)
    behind_each_other(stage)
    source = stage.queries[SOURCE].log
    source.truncate_before(LogPosition(source.end - 1))
    number = stage.trigger()
    look(stage)
    assert stage.completed() == []
    assert barriers_in(source) == [number]
    stage.run_down()
    assert stage.completed() == [number]
    stage.check_batches(number)


def test_a_source_that_has_begun_is_not_cut_before_its_first_batch(folder: Path) -> None:
    """Where it begins would be chosen again after a restore."""
    stage = play(folder)
    stage.emit(3)
    steps(stage, SOURCE, 3)
    number = stage.trigger()
    look(stage)
    assert stage.completed() == []
    stage.run_down()
    assert stage.completed() == [number]
    assert stage.cuts[SOURCE, number].batch_id == 0


def test_checkpoints_behind_a_savepoint_whose_completion_nobody_is_told_are_cut_at_once_again(
    folder: Path,
) -> None:
    stage = play(folder)
    stage.complete = stage.pending.discard  # type: ignore[method-assign]
    stage.emit(9)
    savepoint = stage.trigger(CheckpointKind.SAVEPOINT)
    stage.run_down()
    assert stage.completed() == [savepoint]
    stage.emit(9)
    number = stage.trigger()
    look(stage)
    assert stage.completed() == [savepoint, number]
    assert barriers_in(stage.queries[SOURCE].log) == [savepoint]
    stage.check_batches(number)


MOVES = st.sampled_from(["trigger", "savepoint", "clean", "look", "emit"])


@pytest.mark.parametrize("graph", [LINE, DIAMOND, TWO_SOURCES])
@pytest.mark.parametrize("unaligned", [False, True])
@settings(
    max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_every_checkpoint_restores_exactly_while_logs_are_cleaned(
    graph: Graph, unaligned: bool, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(background, "MIN_ENTRIES_TO_TRUNCATE", 1)
        stage = keeping(play(Path(made), graph, unaligned=unaligned), 8)
        batches = st.tuples(st.sampled_from(sorted(graph)), st.integers(1, 12))
        for move in data.draw(st.lists(st.one_of(batches, MOVES), max_size=60)):
            match move:
                case (uid, count):
                    steps(stage, StageUid(uid), count)
                case "emit":
                    stage.emit(12)
                case "clean":
                    cut_logs(stage.loop.workers, sorted(stage.pending))
                case "look":
                    look(stage)
                case kind:
                    kinds = {"trigger": CheckpointKind.CHECKPOINT, "savepoint": CheckpointKind.SAVEPOINT}
                    stage.trigger(kinds[kind])
        stage.run_down()
        assert not stage.errors
        for number in stage.completed():
            stage.check_batches(number)


@settings(max_examples=examples(40), deadline=None)
@given(
    entries=st.lists(st.sampled_from(["data", "barrier", "cancel"]), min_size=1, max_size=30),
    cut=st.integers(0, 30),
)
def test_the_batch_before_a_place_is_known_also_where_its_entry_is_gone(entries: list[str], cut: int) -> None:
    with tempfile.TemporaryDirectory() as made:
        log = ChannelLog.create(Path(made) / "log")
        batch: int | None = None
        before: list[int | None] = [None]
        for number, kind in enumerate(entries, start=1):
            match kind:
                case "data":
                    batch = 0 if batch is None else batch + 1
                    log.append_data(BatchId(batch), ())
                case "barrier":
                    log.append_barrier(CheckpointId(number), timestamp=0.0)
                case _:
                    log.append_cancel(CheckpointId(number))
            before.append(batch)
        log.truncate_before(LogPosition(cut))
        for position in range(log.start, len(before)):
            assert batch_before(log, LogPosition(position)) == before[position]
        if log.start:
            with pytest.raises(NotAtOnce, match="is removed already"):
                batch_before(log, LogPosition(log.start - 1))
