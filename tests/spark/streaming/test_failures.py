"""What a running stream survives: storage that refuses or hangs, a query that dies, another run that takes over."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.messages import CheckpointFailureReason
from dagster_ckpt.core.paths import AlreadyExists, Digest, StoredObject
from dagster_ckpt.core.request import Completed, Failed, RunStatus
from dagster_ckpt.errors import NotFound, Unavailable
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.runtime.record_store import LoadedRecord, RecordChange, RecordStore
from dagster_ckpt.spark.streaming.restart import FixedDelay, NoRestart
from dagster_ckpt.spark.streaming.run import StreamingRun, TakenOver
from dagster_ckpt.spark.streaming.service import GaveUp
from tests.lab.lab import Lab
from tests.lab.streams import Running, until
from tests.spark.streaming.pipelines import (
    Numbers,
    diamond,
    expected_rows,
    expected_totals,
    read_rows,
    read_totals,
    straight,
)


@dataclass
class Flaky:
    """A storage whose writes refuse or hang while the test says so."""

    inner: CheckpointStorage
    is_full: bool = False
    hangs: threading.Event = field(default_factory=threading.Event)
    hanging: int = 0

    def __post_init__(self) -> None:
        self.base_uri = self.inner.base_uri
        self.hangs.set()

    def create(self, key: str, source: bytes | Path) -> Digest | AlreadyExists:
        if not self.hangs.is_set():
            self.hanging += 1
            self.hangs.wait()
        if self.is_full:
            raise Unavailable(f"{key}: no space left on device")
        return self.inner.create(key, source)

    def read(self, key: str) -> bytes:
        return self.inner.read(key)

    def fetch(self, key: str, target: Path, expected: Digest) -> None:
        self.inner.fetch(key, target, expected)

    def list(self, prefix: str) -> Iterable[StoredObject]:
        return self.inner.list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        self.inner.delete(keys)


def flaky(lab: Lab) -> list[Flaky]:
    """Wrap the lab's storage; the list has the newest run's at its end."""
    made: list[Flaky] = []

    def wrap(storage: CheckpointStorage) -> CheckpointStorage:
        made.append(Flaky(storage))
        return made[-1]

    lab.wrap_storage = wrap
    return made


def all_published(lab: Lab, running: Running, count: int) -> None:
    def holds() -> bool:
        running.checkpoint()
        return read_rows(lab.tables) == expected_rows(count) and read_totals(lab.tables) == expected_totals(
            count
        )

    until(holds, running)


def batch_of(running: Running, uid: str) -> int:
    current = running.current
    return int(current.stages[StageUid(uid)].worker.batches.look().batch or 0)


def test_a_snapshot_that_cannot_be_stored_fails_its_checkpoint_and_the_queries_go_on(
    lab: Lab, tmp_path: Path
) -> None:
    numbers, storages = Numbers(tmp_path / "numbers"), flaky(lab)
    pipeline = diamond(numbers.folder, timeout=20.0)
    running = lab.start(pipeline)
    numbers.put(5)
    all_published(lab, running, numbers.count)
    restarts = running.service.restarts

    storages[-1].is_full = True
    failed = running.outcome(running.trigger())
    assert isinstance(failed, Failed)
    assert failed.reason is CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION
    assert "no space left" in failed.message
    before = batch_of(running, "rows")
    numbers.put(5)
    until(lambda: batch_of(running, "rows") > before, running)
    assert running.failed()[-1].consecutive_failures == 1

    storages[-1].is_full = False
    storages[-1].hangs.clear()
    number = running.trigger()
    until(lambda: storages[-1].hanging > 0, running)
    expired = running.outcome(number)
    assert isinstance(expired, Failed)
    assert expired.reason is CheckpointFailureReason.CHECKPOINT_EXPIRED
    before = batch_of(running, "rows")
    numbers.put(5)
    until(lambda: batch_of(running, "rows") > before, running)
    assert running.failed()[-1].consecutive_failures == 2

    storages[-1].hangs.set()
    all_published(lab, running, numbers.count)
    assert running.service.restarts == restarts, "the queries were restarted"
    running.stop()
    assert (lab.record(pipeline).status, lab.record(pipeline).clean) == (RunStatus.CANCELED, True)


def test_a_stage_that_dies_restarts_from_the_latest_checkpoint_as_often_as_the_strategy_allows(
    lab: Lab, tmp_path: Path
) -> None:
    numbers = Numbers(tmp_path / "numbers")
    pipeline = diamond(numbers.folder)
    running = lab.start(pipeline, strategy=FixedDelay(attempts=20, delay=0.1))
    numbers.put(5)
    all_published(lab, running, numbers.count)
    epoch, restarts = lab.record(pipeline).epoch, running.service.restarts
    numbers.put(5)
    _kill_query(running, "met")
    until(lambda: running.service.restarts > restarts, running)
    running.wait_until_running()
    all_published(lab, running, numbers.count)
    assert lab.record(pipeline).epoch > epoch, "what is left of the old queries is fenced"
    running.stop()

    last = lab.start(pipeline, strategy=NoRestart())
    _kill_query(last, "rows")
    end = last.join()
    assert isinstance(end, GaveUp)
    assert "rows" in end.last.message
    assert lab.record(pipeline).status is RunStatus.FAILED

    numbers.put(5)
    again = lab.start(pipeline)
    all_published(lab, again, numbers.count)
    other = lab.launch(pipeline)
    assert isinstance(again.join(), TakenOver)
    other.wait_until_running()
    numbers.put(5)
    all_published(lab, other, numbers.count)
    other.stop()


@pytest.mark.parametrize("error", [NotFound("channel log has no schema yet"), RuntimeError("no such folder")])
def test_a_stream_that_is_taken_over_while_its_stages_start_says_who_took_it(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    pipeline = straight(Numbers(tmp_path / "numbers").folder)

    def next_owner(loaded: LoadedRecord | None) -> RecordChange[None]:
        assert loaded is not None
        taken = {"epoch": loaded.record.epoch + 1, "owner": "newer"}
        return RecordChange(answer=None, record=loaded.record.model_copy(update=taken))

    def overtaken(_: StreamingRun) -> None:
        RecordStore(lab.store()).transact(pipeline.name, next_owner)
        raise error

    monkeypatch.setattr(StreamingRun, "start", overtaken)
    end = lab.launch(pipeline).join()
    assert isinstance(end, TakenOver)
    assert "run 'newer' owns it" in end.message


def test_names_of_queries_that_nobody_stopped_do_not_keep_a_run_from_starting(
    lab: Lab, tmp_path: Path
) -> None:
    left = lab.spark.readStream.format("rate").load().writeStream.format("noop")
    query = left.queryName("straight.rows").start()
    numbers = Numbers(tmp_path / "numbers")
    numbers.put(5)
    running = lab.start(straight(numbers.folder), strategy=NoRestart())
    until(lambda: bool(running.checkpoint()) and read_rows(lab.tables).total() == 5, running)
    running.stop()
    query.stop()


@pytest.mark.nightly
def test_a_reader_whose_process_is_slow_to_start_is_started_again_within_the_same_attempt(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "python"
    slow.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *python_streaming_source_runner*) mkdir {tmp_path}/was-slow 2>/dev/null && sleep 15;; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    slow.chmod(0o755)
    monkeypatch.setattr(lab.spark.sparkContext, "pythonExec", str(slow))
    numbers = Numbers(tmp_path / "numbers")
    numbers.put(5)
    running = lab.start(straight(numbers.folder))
    until(lambda: bool(running.checkpoint()) and sum(read_rows(lab.tables).values()) == 5, running)
    assert (tmp_path / "was-slow").is_dir()
    said = running.service.setup.reporter.said  # type: ignore[attr-defined]
    assert [line for line in said if "slow to start" in line] == [
        "WARN the reader of stage rows was slow to start: started again"
    ]
    assert running.service.restarts == 0
    running.stop()


def test_a_table_that_cannot_be_published_ends_the_stream_as_failed_checkpoints_do(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("read-only file system")

    numbers = Numbers(tmp_path / "numbers")
    pipeline = straight(numbers.folder)
    running = lab.start(pipeline, strategy=NoRestart(), tolerable_failed_checkpoints=1)
    with monkeypatch.context() as broken:
        broken.setattr("dagster_ckpt.spark.attempt.sinks.publish_prepared", refuse)
        numbers.put(5)
        for number in (1, 2):
            assert running.outcome(running.trigger()).__class__ is Completed, number
        end = running.join()
    assert isinstance(end, GaveUp)
    assert "table rows could not be published for 2 checkpoints in a row: read-only" in end.last.message

    again = lab.start(pipeline)
    until(lambda: bool(again.checkpoint()) and read_rows(lab.tables).total() == 5, again)
    again.stop()


def _kill_query(running: Running, uid: str) -> None:
    current = running.current
    query = current.stages[StageUid(uid)].query
    assert query is not None
    query.stop()
