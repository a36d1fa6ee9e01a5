"""Sources of other kinds need nothing of us; bounded ones end, alone or all together; what is seen of a run."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from dagster_ckpt import CheckpointedPipeline, spark_source, spark_stage
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import Completed, RunStatus
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.streaming.progress import PROGRESS_FILE, look
from dagster_ckpt.spark.streaming.run import EndOfData, StoppedWithSavepoint, StreamingRun
from tests.lab.lab import Lab
from tests.lab.pipelines import sink, source, stage, wired
from tests.lab.streams import Running, until
from tests.spark.streaming.pipelines import (
    SCHEMA,
    Numbers,
    diamond,
    expected_rows,
    expected_totals,
    read_rows,
    read_totals,
)
from tests.spark.streaming.replayable_source import ReplayableLog
from tests.spark.streaming.test_crash_at_every_barrier import die_at


def test_a_source_that_replays_by_offset_is_exact_across_a_crash(lab: Lab, tmp_path: Path) -> None:
    end = tmp_path / "end"

    def grow(to: int) -> None:
        temporary = tmp_path / ".end"
        temporary.write_text(str(to))
        os.replace(temporary, end)

    @spark_source
    def numbers(spark):  # type: ignore[no-untyped-def]
        spark.dataSource.register(ReplayableLog)
        return spark.readStream.format("replayable_log").option("path", str(end)).load()

    pipeline = wired(
        "replayed", numbers, sink("rows", lambda numbers: numbers.selectExpr("n", "'fast' AS path"))
    )

    grow(20)
    running = lab.start(pipeline)
    until(lambda: running.checkpoint() is not None and len(read_rows(lab.tables)) == 20, running)
    done = running.checkpoint()
    source = done.metadata.stage("numbers")
    assert source is not None
    assert json.loads(source.offsets["0"]) == {"offset": 20}, "a savepoint holds the source's own offset"
    grow(35)
    until(lambda: batch_of(running, "numbers") > 0, running)
    running.crash()
    running.join()
    grow(50)
    again = lab.start(pipeline)
    until(lambda: again.checkpoint() is not None and len(read_rows(lab.tables)) == 50, again)
    assert set(read_rows(lab.tables).values()) == {1}
    again.stop()


def batch_of(running, uid: str) -> int:  # type: ignore[no-untyped-def]
    batch = running.service.current.stages[StageUid(uid)].worker.batches.look().batch
    return -1 if batch is None else int(batch)


def test_a_run_of_bounded_sources_ends_by_itself_with_everything_published(lab: Lab, tmp_path: Path) -> None:
    numbers = Numbers(tmp_path / "numbers")
    pipeline = diamond(numbers.folder, boundedness="bounded")
    for _ in range(3):
        numbers.put(5)
    running = lab.start(pipeline, interval=1.0)
    assert isinstance(running.join(), EndOfData)
    assert lab.record(pipeline).status is RunStatus.FINISHED
    assert read_rows(lab.tables) == expected_rows(15)
    assert read_totals(lab.tables) == expected_totals(15)


def test_a_bounded_source_and_what_follows_it_alone_finish_while_another_goes_on(
    lab: Lab, tmp_path: Path
) -> None:
    few, many, pipeline = some_that_end(tmp_path)
    running = lab.start(pipeline)
    until(lambda: finished_in(running.checkpoint()) == {"slow", "copied"}, running)
    until(lambda: finished_now(running) == {"slow", "copied"}, running)
    for count in (8, 12):
        many.put(4)
        until(
            lambda c=count: (
                running.checkpoint() is not None  # type: ignore[misc]
                and sum(read_rows(lab.tables).values()) == 4 + c
            ),
            running,
        )
    found = running.checkpoint()
    check_finished(running, found)
    running.crash()
    running.join()
    few.put(4)
    many.put(4)
    again = lab.start(pipeline)
    assert any("source slow has FINISHED in an earlier run" in line for line in again.reporter.said)
    until(lambda: again.checkpoint() is not None and sum(read_rows(lab.tables).values()) == 20, again)
    after = again.checkpoint()
    assert finished_now(again) == {"slow", "copied"}
    check_finished(again, after)
    assert position_of(after) == position_of(found), "what has come to it since is not read"
    again.stop()

    adopted = lab.start(pipeline)
    many.put(4)
    until(lambda: adopted.checkpoint() is not None and sum(read_rows(lab.tables).values()) == 24, adopted)
    assert position_of(adopted.checkpoint()) == position_of(found)
    assert set(read_rows(lab.tables).values()) == {1}
    assert isinstance(
        adopted.stop_with_savepoint(CheckpointKind.SYNC_SAVEPOINT_SUSPEND), StoppedWithSavepoint
    )


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [CheckpointKind.SYNC_SAVEPOINT_SUSPEND, CheckpointKind.SAVEPOINT])
def test_an_end_that_a_savepoint_alone_has_is_one(lab: Lab, tmp_path: Path, kind: CheckpointKind) -> None:
    few, many, pipeline = some_that_end(tmp_path)
    running = lab.start(pipeline)
    running.wait_until_running()
    stages = running.service.current.stages
    until(lambda: stages[StageUid("copied")].worker.is_ended, running)
    if kind is CheckpointKind.SAVEPOINT:
        assert finished_in(running.checkpoint(kind=kind)) == {"slow", "copied"}
        running.stop()
    else:
        assert isinstance(running.stop_with_savepoint(kind), StoppedWithSavepoint)
    few.put(4)
    many.put(4)
    again = lab.start(pipeline)
    assert any("source slow has FINISHED in an earlier run" in line for line in again.reporter.said)
    until(lambda: again.checkpoint() is not None and sum(read_rows(lab.tables).values()) == 12, again)
    assert finished_in(again.checkpoint()) == {"slow", "copied"}
    again.stop()


@pytest.mark.parametrize(
    "point",
    [
        "slow",
        *(pytest.param(one, marks=pytest.mark.nightly) for one in ("copied", "fast", "met", "rows", "told")),
    ],
)
def test_wherever_a_run_dies_around_an_end_rows_are_exact(
    lab: Lab, tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the checkpoint with the end is complete the source has not finished, and reads on; afterwards it has."""
    few, many, pipeline = some_that_end(tmp_path)
    running = lab.start(pipeline)
    running.wait_until_running()
    stages = running.service.current.stages
    until(lambda: stages[StageUid("copied")].worker.is_ended, running)
    if point == "told":
        with monkeypatch.context() as deaf:
            deaf.setattr(StreamingRun, "_look_at_ends", lambda self: None)
            assert finished_in(running.checkpoint()) == {"slow", "copied"}
            running.crash()
            running.join()
    else:
        die_at(running, point)
    few.put(4)
    many.put(4)
    again = lab.start(pipeline)
    rows = 12 if point == "told" else 16
    until(lambda: again.checkpoint() is not None and sum(read_rows(lab.tables).values()) == rows, again)
    until(lambda: finished_in(again.checkpoint()) == {"slow", "copied"}, again)
    assert sum(read_rows(lab.tables).values()) == rows
    assert set(read_rows(lab.tables).values()) == {1}
    again.stop()


def some_that_end(folder: Path) -> tuple[Numbers, Numbers, CheckpointedPipeline]:
    """Return the rows of a bounded and of an unbounded source, four each, and their pipeline."""
    few, many = Numbers(folder / "few"), Numbers(folder / "many")
    few.put(4)
    many.put(4)
    return few, many, one_that_ends(few.folder, many.folder)


def one_that_ends(few: Path, many: Path) -> CheckpointedPipeline:
    """A bounded source, a stage that follows it alone, and an unbounded source; they meet in one table."""

    def read(spark, folder: Path):  # type: ignore[no-untyped-def]
        return spark.readStream.schema(SCHEMA).option("maxFileAge", "9999d").json(str(folder))

    return wired(
        "two",
        source(
            "slow", lambda spark: read(spark, few).selectExpr("n", "'slow' AS path"), boundedness="bounded"
        ),
        stage("copied", lambda slow: slow),
        source("fast", lambda spark: read(spark, many).selectExpr("n", "'fast' AS path")),
        stage("met", lambda copied, fast: fast.unionByName(copied)),
        sink("rows", lambda met: met),
    )


def finished_in(found: Completed) -> set[str]:
    return {stage.uid for stage in found.metadata.stages if stage.finished}


def finished_now(running: Running) -> set[str]:
    current = running.service.current
    return (
        {stage.uid for stage in look(current, seconds=1.0).stages if stage.status == "finished"}
        if current
        else set()
    )


def check_finished(running: Running, found: Completed) -> None:
    """Snapshot and statistics say FINISHED; the statistics have its subtasks as acknowledged at the trigger."""
    assert finished_in(found) == {"slow", "copied"}
    assert all(stage.offsets for stage in found.metadata.stages), "an epoch goes on from its position"
    numbers = running.coordinator.statistics().checkpoint(CheckpointId(found.metadata.checkpoint_id))
    assert numbers is not None
    ended = [stage for stage in numbers.stages if stage.finished]
    assert {stage.uid for stage in ended} == {"slow", "copied"}
    assert {stage.latest_ack_at for stage in ended} == {numbers.triggered_at}


def position_of(found: Completed) -> dict[str, str]:
    source = found.metadata.stage("slow")
    assert source is not None
    return source.offsets


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (CheckpointKind.SYNC_SAVEPOINT_SUSPEND, RunStatus.SUSPENDED),
        (CheckpointKind.SYNC_SAVEPOINT_TERMINATE, RunStatus.SUSPENDED),
    ],
)
def test_stop_with_savepoint_ends_exactly_at_it_and_the_savepoint_restores(
    lab: Lab, tmp_path: Path, kind: CheckpointKind, status: RunStatus
) -> None:
    numbers = Numbers(tmp_path / "numbers")
    pipeline = diamond(numbers.folder)
    running = lab.start(pipeline)
    for _ in range(3):
        numbers.put(5)
    end = running.stop_with_savepoint(kind)
    assert isinstance(end, StoppedWithSavepoint)
    record = lab.record(pipeline)
    assert (record.status, record.clean) == (status, True)
    seen = read_rows(lab.tables)
    assert not seen - expected_rows(15)
    numbers.put(5)
    again = lab.start(pipeline)
    until(lambda: again.checkpoint() is not None and read_rows(lab.tables) == expected_rows(20), again)
    again.stop()


def test_who_has_acknowledged_who_is_blocked_and_how_each_stage_is_going_can_be_seen(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = Numbers(tmp_path / "numbers")
    pipeline = diamond(numbers.folder)
    running = lab.start(pipeline)
    numbers.put(5)
    current = running.current
    batches = current.stages[StageUid("numbers")].worker.batches
    until(lambda: batches.look().batch is not None, running)
    running.checkpoint()
    seen = look(current, seconds=1.0)
    assert [stage.uid for stage in seen.stages] == ["numbers", "fast", "slow", "met", "rows", "totals"]
    assert seen.completed >= 1
    assert "| numbers | 0 |" in seen.table()
    until((current.attempt.root / PROGRESS_FILE).exists, running)
    written = json.loads((current.attempt.root / PROGRESS_FILE).read_text())
    assert {stage["status"] for stage in written["stages"]} == {"running"}

    def full(coordinator: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dagster_ckpt.spark.streaming.service.mark_ended", full)
    running.stop()
    record = lab.record(pipeline)
    assert record.lease_until is None, "its end cannot be marked: others need not wait for it all the same"
    assert not record.clean


@pytest.mark.parametrize(
    "settings",
    [
        {"unaligned": True, "mode": "at_least_once"},
        {"unaligned": True, "max_concurrent_checkpoints": 2},
        {"interval": 0.001},
    ],
)
def test_impossible_combinations_are_refused_when_the_pipeline_is_defined(tmp_path: Path, settings) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidRequest):
        diamond(tmp_path, **settings)


def test_only_a_source_can_be_bounded() -> None:
    with pytest.raises(InvalidRequest, match="only sources are bounded"):

        @spark_stage(boundedness="bounded")
        def stage(numbers):  # type: ignore[no-untyped-def]
            return numbers
