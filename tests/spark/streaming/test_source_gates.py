"""Sources that are held between two batches: until a barrier's place, or until there is a checkpoint.

A source decides where barriers fall: SourceExternalCheckpointTriggerTest.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt import SourceBatch, spark_stage
from dagster_ckpt.core.ids import BatchId, CheckpointId
from dagster_ckpt.core.messages import BarrierOptions
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.streaming.gate import BatchGate, InducedBarriers, StoppedAtBatchBoundary, Trigger
from tests.lab.lab import Lab
from tests.lab.pipelines import sink, source, wired
from tests.lab.streams import until
from tests.spark.streaming.pipelines import Numbers, read_numbers, read_rows, straight

FILES_PER_DAY = 3


class Writer:
    """Writes batch after batch through a gate, in a thread, as Spark does."""

    def __init__(self, gate: BatchGate) -> None:
        self.last: BatchId | None = None
        self._gate = gate
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        write = self._gate.guard(self._write)
        try:
            for batch in range(1_000_000):
                write(None, batch)  # type: ignore[arg-type]
        except StoppedAtBatchBoundary:
            return

    def _write(self, _: Any, batch: int) -> None:
        time.sleep(0.0002)
        self.last = BatchId(batch)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._gate.stop()
        self._thread.join()


def trigger(number: int) -> Trigger:
    return CheckpointId(number), 0.0, BarrierOptions()


def test_a_barrier_waits_for_a_boundary_and_no_batch_slips_past_it() -> None:
    gate = BatchGate()
    with Writer(gate) as writer:
        induced = InducedBarriers(
            gate=gate, is_boundary=lambda batch: batch % 7 == 6, last_batch=lambda: writer.last
        )
        for number in range(1, 21):
            induced.add(trigger(number))
            taken: list[Trigger] = []
            until(lambda taken=taken: bool(taken.extend(induced.take()) or taken))  # type: ignore[misc]
            assert taken == [trigger(number)]
            at = writer.last
            assert at is not None
            assert at % 7 == 6
            time.sleep(0.002)
            assert writer.last == at, "the query waits at the gate until the barrier is in the log"
            induced.resume()
            until(lambda at=at: writer.last != at)  # type: ignore[misc]


def test_a_source_that_has_read_nothing_stands_at_a_boundary() -> None:
    induced = InducedBarriers(gate=BatchGate(), is_boundary=lambda _: False, last_batch=lambda: None)
    induced.add(trigger(1))
    assert induced.take() == [trigger(1)]


def test_a_checkpoint_that_is_over_no_longer_stops_the_query() -> None:
    gate = BatchGate()
    with Writer(gate) as writer:
        induced = InducedBarriers(gate=gate, is_boundary=lambda _: False, last_batch=lambda: writer.last)
        induced.add(trigger(1))
        induced.drop(CheckpointId(1))
        assert induced.take() == []
        seen = writer.last
        until(lambda: writer.last != seen)


def test_only_a_source_decides_where_barriers_fall() -> None:
    with pytest.raises(InvalidRequest, match="is no source"):

        @spark_stage(barrier_after=lambda batch: True)
        def middle(numbers: Any) -> Any:
            return numbers


def end_of_day(batch: SourceBatch) -> bool:
    """Files are numbered from 1; every third is the last of its day."""
    return any(int(Path(path).stem) % FILES_PER_DAY == 0 for path in batch.files)


def test_every_checkpoint_of_a_stream_holds_whole_days(lab: Lab, tmp_path: Path) -> None:
    numbers = Numbers(tmp_path / "numbers")

    pipeline = wired(
        "days",
        source("source", lambda spark: read_numbers(spark, numbers.folder), barrier_after=end_of_day),
        sink("rows", lambda source: source.selectExpr("n", "'fast' AS path")),
    )
    for _ in range(FILES_PER_DAY + 1):
        numbers.put(2)
    running = lab.start(pipeline, timeout=600.0)
    until(lambda: _files_read(running) == FILES_PER_DAY + 1, running)
    waiting = running.trigger()
    numbers.put(2)
    until(lambda: _files_read(running) == FILES_PER_DAY + 2, running)
    assert running.coordinator.is_pending(waiting), "the day is not over"
    numbers.put(2)
    numbers.put(2)
    done = running.outcome(waiting)
    part = done.metadata.stage("source")  # type: ignore[union-attr]
    assert json.loads(part.offsets["0"])["logOffset"] == 2 * FILES_PER_DAY - 1
    until(lambda: len(read_rows(lab.tables)) == 2 * 2 * FILES_PER_DAY, running)

    late = running.trigger()
    until(lambda: _files_read(running) == 2 * FILES_PER_DAY + 1, running)
    running.stop()
    assert [event.checkpoint_id for event in running.failed()] == [late], (
        "no barrier was put in the middle of a day"
    )


def test_a_paused_source_writes_nothing_before_the_first_checkpoint_is_complete(
    lab: Lab, tmp_path: Path
) -> None:
    numbers = Numbers(tmp_path / "numbers")
    numbers.put(5)
    running = lab.start(straight(numbers.folder), pause_sources_until_first_checkpoint=True)
    source = running.service.current.stages["numbers"]  # type: ignore[union-attr,index]
    until((source.stage_query.directory.query / "offsets" / "0").exists, running)
    first = running.checkpoint()
    assert [stage.batch_id for stage in first.metadata.stages] == [None, None]
    until(lambda: running.checkpoint() is not None and len(read_rows(lab.tables)) == 5, running)
    running.stop()


def _files_read(running: Any) -> int:
    current = running.service.current
    batch = None if current is None else current.stages["source"].worker.log.last_batch()
    return 0 if batch is None else int(batch) + 1
