"""What sources, restarts, forks and a busy maintenance thread do to a capture; with real queries."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from dagster_ckpt.adapters.fsspec_storage import FsspecCheckpointStorage
from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.errors import Declined
from dagster_ckpt.operations.snapshots.contents import verify_snapshot
from dagster_ckpt.spark.snapshot.capture import latest_committed_batch, plan_capture
from dagster_ckpt.spark.snapshot.restore import build_stage_directory
from tests.spark.snapshot import capture_workloads as w
from tests.spark.snapshot.snapshot_help import Taken, take


def _numbers(recorded: w.Recorded, *, upto: int | None = None) -> list[int]:
    chosen = [rows for batch, rows in recorded.batches.items() if upto is None or batch <= upto]
    return sorted(row[0] for rows in chosen for row in rows)


def test_a_rate_source_continues_without_a_gap_or_a_repetition(spark: SparkSession, tmp_path: Path) -> None:
    def rate() -> DataFrame:
        return spark.readStream.format("rate").option("rowsPerSecond", 50).load().select("value")

    w.ROCKS2.apply(spark)
    storage = FsspecCheckpointStorage((tmp_path / "storage").as_uri())
    original = w.start(rate(), "append", tmp_path / "stage")
    original.wait_for(3)
    one = take(storage, tmp_path / "stage", 1, batch=2)
    original.query.stop()
    assert "query/sources/0/0" in {f.path for f in one.plan.files}, "the source's start time"

    build_stage_directory(one.stored, one.snapshot, target_dir=tmp_path / "restored")
    continued = w.start(rate(), "append", tmp_path / "restored")
    continued.wait_for(3)
    continued.query.stop()
    values = _numbers(original, upto=2) + _numbers(continued)
    assert values == list(range(len(values)))


def _python_source() -> Any:
    """Return a class that Spark's workers get by value: they cannot import tests."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class Counting(DataSource):
        @classmethod
        def name(cls) -> str:
            return "counting"

        def schema(self) -> str:
            return "n long"

        def streamReader(self, schema: Any) -> Any:  # noqa: N802
            class Reader(DataSourceStreamReader):
                at = 0

                def initialOffset(self) -> dict[str, int]:  # noqa: N802
                    return {"at": 0}

                def latestOffset(self) -> dict[str, int]:  # noqa: N802
                    self.at += 5
                    return {"at": self.at}

                def partitions(self, start: Any, end: Any) -> Any:
                    self.at = max(self.at, end["at"])
                    return [InputPartition((start["at"], end["at"]))]

                def read(self, partition: Any) -> Any:
                    return iter([(n,) for n in range(*partition.value)])

            return Reader()

    return Counting


def test_a_python_source_continues_at_its_offset(spark: SparkSession, tmp_path: Path) -> None:
    w.ROCKS2.apply(spark)
    spark.dataSource.register(_python_source())

    def counting() -> DataFrame:
        return spark.readStream.format("counting").load()

    storage = FsspecCheckpointStorage((tmp_path / "storage").as_uri())
    original = w.start(counting(), "append", tmp_path / "stage")
    original.wait_for(3)
    one = take(storage, tmp_path / "stage", 1, batch=2)
    original.query.stop()
    assert json.loads(one.plan.offsets["0"]) == {"at": 15}

    build_stage_directory(one.stored, one.snapshot, target_dir=tmp_path / "restored")
    continued = w.start(counting(), "append", tmp_path / "restored")
    continued.wait_for(3)
    continued.query.stop()
    assert continued.batches[3][0] == (15,)


def test_a_log_of_files_that_was_compacted_is_captured_up_to_its_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    w.ROCKS2.apply(spark)
    for number in range(13):
        w.write_input(tmp_path / "a", number)
    stage = tmp_path / "stage"
    original = w.start(w.STATELESS.build(spark, tmp_path), "append", stage).finish()
    storage = FsspecCheckpointStorage((tmp_path / "storage").as_uri())
    one = take(storage, stage, 1, batch=10)
    log = {f.path for f in one.plan.files if "/sources/" in f.path}
    assert log == {"query/sources/0/9.compact", "query/sources/0/10"}

    build_stage_directory(one.stored, one.snapshot, target_dir=tmp_path / "restored")
    continued = w.start(w.STATELESS.build(spark, tmp_path), "append", tmp_path / "restored").finish()
    assert continued.batches == original.after(10)


def test_a_log_of_files_is_compacted_as_often_after_every_restore(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark guesses the interval where it sees one compaction: twice restored, it asked for one it had not written."""
    w.ROCKS2.apply(spark)
    spark.conf.set("spark.sql.streaming.fileSource.log.compactInterval", "3")
    storage = FsspecCheckpointStorage((tmp_path / "storage").as_uri())
    stage, seen, arrived = tmp_path / "stage-0", [], 0
    for restored, batch in enumerate((6, 15, 20), start=1):
        while arrived <= batch:
            w.write_input(tmp_path / "a", arrived)
            arrived += 1
        ran = w.start(w.STATELESS.build(spark, tmp_path), "append", stage).finish()
        seen += [row for rows in ran.batches.values() for row in rows]
        taken = take(storage, stage, restored, batch=batch)
        stage = tmp_path / f"stage-{restored}"
        build_stage_directory(taken.stored, taken.snapshot, target_dir=stage)
    assert {f.path for f in taken.plan.files if f.path.endswith(".compact")} == {
        "query/sources/0/17.compact",
        "query/sources/0/20.compact",
    }
    w.write_input(tmp_path / "a", arrived)
    last = w.start(w.STATELESS.build(spark, tmp_path), "append", stage).finish()
    assert list(last.batches) == [21]
    seen += [row for rows in last.batches.values() for row in rows]
    times = Counter(row[1] for row in seen)
    assert list(times) == list(range(22))
    assert len(set(times.values())) == 1, "every file was read once"


def test_a_query_that_has_committed_nothing_is_captured_and_begins_at_the_beginning(
    spark: SparkSession, tmp_path: Path
) -> None:
    w.ROCKS2.apply(spark)
    stage = tmp_path / "stage"
    (tmp_path / "a").mkdir()
    waiting = w.start(w.AGGREGATION.build(spark, tmp_path), "update", stage)
    waiting.finish()
    storage = FsspecCheckpointStorage((tmp_path / "storage").as_uri())
    one = take(storage, stage, 1)
    assert one.plan.batch_id is None
    assert one.snapshot.batch_id is None

    build_stage_directory(one.stored, one.snapshot, target_dir=tmp_path / "restored")
    w.write_input(tmp_path / "a", 0)
    begun = w.start(w.AGGREGATION.build(spark, tmp_path), "update", tmp_path / "restored").finish()
    assert list(begun.batches) == [0]
    assert str(begun.query.id) == one.snapshot.query_id, "restored in place: the id is kept"


def test_a_query_that_was_never_started_gives_an_empty_directory(tmp_path: Path) -> None:
    storage = FsspecCheckpointStorage((tmp_path / "storage").as_uri())
    (tmp_path / "stage").mkdir()
    one = take(storage, tmp_path / "stage", 1)
    build_stage_directory(one.stored, one.snapshot, target_dir=tmp_path / "restored", new_query_id="unused")
    assert list((tmp_path / "restored").iterdir()) == []


def test_a_fork_runs_beside_the_original(spark: SparkSession, tmp_path: Path) -> None:
    """With the same query id Spark would stop the original without a word."""
    w.ROCKS2.apply(spark)
    for number in range(3):
        w.write_input(tmp_path / "a", number)
    stage = tmp_path / "stage"
    original = w.start(w.AGGREGATION.build(spark, tmp_path), "update", stage)
    original.query.processAllAvailable()
    storage = FsspecCheckpointStorage((tmp_path / "storage").as_uri())
    one = take(storage, stage, 1)
    fork_id = str(uuid.uuid4())
    build_stage_directory(one.stored, one.snapshot, target_dir=tmp_path / "fork", new_query_id=fork_id)
    fork = w.start(w.AGGREGATION.build(spark, tmp_path), "update", tmp_path / "fork")
    w.write_input(tmp_path / "a", 3)
    fork.query.processAllAvailable()
    original.query.processAllAvailable()
    try:
        assert original.query.isActive
        assert fork.query.isActive
        assert str(fork.query.id) == fork_id
        assert fork.batches[3] == original.batches[3]
    finally:
        fork.query.stop()
        original.query.stop()


@pytest.mark.nightly
def test_captures_stay_exact_while_maintenance_deletes_at_every_turn(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Two batches are kept, every second is a snapshot, maintenance runs twice a second; capture all along."""
    w.ROCKS2.apply(spark, **{"minBatchesToRetain": "2", "stateStore.minDeltasForSnapshot": "2"})
    stage = tmp_path / "stage"
    rows = [w.write_input(tmp_path / "a", number) for number in range(40)]
    storage = FsspecCheckpointStorage((tmp_path / "storage").as_uri())
    running = w.start(w.AGGREGATION.build(spark, tmp_path), "update", stage)
    running.wait_for(1)
    taken: dict[int, Taken] = {}
    captures = 0
    previous: tuple[Any, ...] = ()
    while 39 not in running.batches and running.query.isActive:
        try:
            one = take(storage, stage, captures + 1, previous=previous)
        except Declined:  # its batch was removed between plan and pins: whoever captures plans again
            continue
        captures, previous = captures + 1, one.upload.entries
        taken[one.batch] = one
        time.sleep(0.002)
    running.finish()
    assert captures > 50
    assert len(taken) > 10
    with pytest.raises(Declined):
        plan_capture(stage / "query", BatchId(3))

    batches = sorted(taken)
    for batch in batches:
        assert verify_snapshot(taken[batch].stored).is_intact
    for batch in (batches[0], batches[len(batches) // 2], batches[-1]):
        one, target = taken[batch], tmp_path / f"restored-{batch}"
        build_stage_directory(one.stored, one.snapshot, target_dir=target)
        flat = [row for file in rows[: batch + 1] for row in file]
        expected = {k: (sum(a == k for a, _ in flat), sum(v for a, v in flat if a == k)) for k, _ in flat}
        (found,) = w.state_rows(spark, target / "query", w.AGGREGATION)
        assert {row[0]["k"]: tuple(row[1]) for row in found} == expected
        assert latest_committed_batch(target / "query") == batch
