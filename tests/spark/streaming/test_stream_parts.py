"""The small parts of a streaming run: the gate, the poller, in-flight data put back, offsets moved, logs cut."""

from __future__ import annotations

import json
import queue
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_ckpt.core.checkpoint.failures import FailureDecision
from dagster_ckpt.core.ids import BatchId, CheckpointId, LogPosition, StageUid
from dagster_ckpt.core.model import StageSnapshot
from dagster_ckpt.core.restore.matching import StageMatch
from dagster_ckpt.errors import Corrupt, Declined, InvalidRequest
from dagster_ckpt.spark.attempt.sinks import PipelineSinks
from dagster_ckpt.spark.channel.entries import BarrierEntry, DataEntry, Release, ReleasedThrough
from dagster_ckpt.spark.channel.in_flight import (
    InFlight,
    Span,
    move_offsets,
    plan_in_flight,
    put_back,
    restore_logs,
)
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.channel.positions import CommittedBatches
from dagster_ckpt.spark.directories import AttemptDirectory, StageDirectory
from dagster_ckpt.spark.files import DataFile
from dagster_ckpt.spark.sink.committables import PreparedBatch, prepared_batches, write_committable
from dagster_ckpt.spark.sink.phases import SinkPart
from dagster_ckpt.spark.sink.port import SinkPosition
from dagster_ckpt.spark.sink.published import note_published
from dagster_ckpt.spark.snapshot.capture import read_offsets
from dagster_ckpt.spark.snapshot.take import Cut, SnapshotOutcome, StageSnapshotter
from dagster_ckpt.spark.streaming.background import DaemonBackground, Poller, ReusedThreads, cut_point
from dagster_ckpt.spark.streaming.gate import BatchGate, StoppedAtBatchBoundary
from dagster_ckpt.spark.streaming.run import StreamingRun
from dagster_ckpt.spark.streaming.running_stage import StreamingSettings
from dagster_ckpt.spark.streaming.snapshot_job import SnapshotJob
from tests import progress
from tests.lab.streams import until

UP = StageUid("up")

# --- gate -----------------------------------------------------------------------------------------------------


def test_a_held_gate_lets_the_batch_inside_finish_and_keeps_the_next_one_out() -> None:
    gate, written = BatchGate(), []
    inside, go_on = threading.Event(), threading.Event()

    def write(_: Any, batch: int) -> None:
        inside.set()
        go_on.wait()
        written.append(batch)

    guarded = gate.guard(write)
    threading.Thread(target=lambda: (guarded(None, 1), guarded(None, 2)), daemon=True).start()  # type: ignore[arg-type]
    assert inside.wait(progress.QUIET)
    gate.hold()
    assert gate.inside == 1
    go_on.set()
    until(lambda: written == [1] and gate.inside is None)
    time.sleep(0.05)
    assert written == [1]
    gate.open()
    until(lambda: written == [1, 2])


def test_a_stopped_gate_ends_a_batch_that_waits_before_it_did_anything_and_stays_stopped() -> None:
    gate, ended = BatchGate(), []
    guarded = gate.guard(lambda _, batch: pytest.fail(f"batch {batch} was written"))
    gate.hold()

    def batch() -> None:
        try:
            guarded(None, 7)  # type: ignore[arg-type]
        except StoppedAtBatchBoundary:
            ended.append(7)

    threading.Thread(target=batch, daemon=True).start()
    time.sleep(0.05)
    gate.stop()
    until(lambda: ended == [7])
    gate.open()
    with pytest.raises(StoppedAtBatchBoundary):
        guarded(None, 8)  # type: ignore[arg-type]


@pytest.mark.parametrize(("readers", "is_held"), [(2, True), (1, False)])
def test_where_readers_wait_for_one_another_no_batch_is_let_in_before_the_last_is_ready(
    readers: int, is_held: bool
) -> None:
    seen: list[bool] = []

    class Starting:
        def __init__(self, inputs: int) -> None:
            self.worker, self.gate = SimpleNamespace(inputs=["input"] * inputs), BatchGate()
            self.starts, self.is_active, self._looks = 0, True, 3

        def start(self, *_: object, **__: object) -> None:
            self.starts = 1

        def fan_out(self, *_: object) -> str:
            return ""

        @property
        def is_initializing(self) -> bool:
            seen.append(any(stage.gate.is_held for stage in stages.values()))
            self._looks -= 1
            return self._looks > 0

    stages = {StageUid(str(number)): Starting(min(number, 1)) for number in range(readers + 1)}
    run: Any = SimpleNamespace(stages=stages, settings=StreamingSettings(starting_at_once=1), spark=None)
    StreamingRun._start_queries(run, list(stages), ())
    assert set(seen) == {is_held}
    assert not any(stage.gate.is_held for stage in stages.values())


# --- poller ---------------------------------------------------------------------------------------------------


def test_a_call_that_hangs_does_not_keep_the_next_ones_from_being_made() -> None:
    hang, calls = threading.Event(), []

    def poll() -> float | None:
        calls.append(time.monotonic())
        if len(calls) == 1:
            hang.wait()
        return None

    poller = Poller(poll, longest=0.01, patience=0.1, on_error=lambda error: pytest.fail(str(error)))
    poller.start()
    until(lambda: len(calls) > 5)
    hang.set()
    poller.stop()


def test_an_error_of_a_call_is_told_and_the_next_call_is_made() -> None:
    told: list[Exception] = []
    calls: list[int] = []

    def poll() -> float | None:
        calls.append(1)
        raise OSError("the store is gone")

    poller = Poller(poll, longest=0.01, on_error=told.append)
    poller.start()
    until(lambda: len(calls) > 2 and len(told) > 1)
    poller.stop()


def test_the_end_of_a_run_does_not_wait_for_deletions_that_hang() -> None:
    background, hang = DaemonBackground(drain_timeout=0.1), threading.Event()
    done: list[int] = []
    background.submit(lambda: done.append(1))
    until(lambda: done == [1])
    background.submit(lambda: hang.wait() and None)
    drain = threading.Thread(target=background.drain, daemon=True)
    drain.start()
    progress.join(drain, "the end of the run, while a deletion hangs")
    assert not hang.is_set()
    hang.set()


# --- in-flight data -------------------------------------------------------------------------------------------


def a_log(folder: Path, rows: int) -> ChannelLog:
    """DATA 0 … rows-1 with a file each, then the barrier of checkpoint 4."""
    log = ChannelLog.create(folder)
    for batch in range(rows):
        name = f"data/batch-{batch:010d}-{0:012x}/part.txt"
        path = folder / name
        path.parent.mkdir(parents=True)
        path.write_text(f"row {batch}")
        log.append_data(BatchId(batch), (DataFile(name, 1, path.stat().st_size),))
    log.append_barrier(CheckpointId(4), timestamp=1.0)
    return log


def as_stored(reader: Path, log: ChannelLog, start: int, stop: int) -> None:
    """Put into a reader's restored directory what its checkpoint holds of the log."""
    for file in plan_in_flight(
        [Span(upstream=UP, log=log, start=LogPosition(start), stop=LogPosition(stop))]
    ):
        target = reader / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(Path(str(file.source)).read_bytes())


def test_what_was_in_flight_is_at_the_beginning_of_the_restored_log_for_every_reader(tmp_path: Path) -> None:
    log = a_log(tmp_path / "old", 5)
    as_stored(tmp_path / "fast", log, 4, 5)
    as_stored(tmp_path / "slow", log, 2, 5)
    beginning = put_back(
        UP,
        log_dir=tmp_path / "new",
        barrier_at=LogPosition(5),
        readers=[tmp_path / "fast", tmp_path / "slow", tmp_path / "other"],
    )
    assert beginning.base == 2
    assert [e.batch_id for e in beginning.entries if isinstance(e, DataEntry)] == [2, 3, 4]
    restored = ChannelLog.create(
        tmp_path / "new",
        base=beginning.base,
        barrier=BarrierEntry(checkpoint_id=CheckpointId(4), batch_id=BatchId(4), timestamp=1.0),
        in_flight=beginning.entries,
    )
    assert restored.find_barrier(CheckpointId(4)) == 5
    for entry in restored.files_between(LogPosition(2), LogPosition(5)):
        assert (tmp_path / "new" / entry.files[0].name).read_text() == f"row {entry.batch_id}"


def test_dropped_in_flight_data_leaves_its_positions_and_no_rows(tmp_path: Path) -> None:
    log = a_log(tmp_path / "old", 3)
    as_stored(tmp_path / "reader", log, 1, 3)
    beginning = put_back(
        UP,
        log_dir=tmp_path / "new",
        barrier_at=LogPosition(3),
        readers=[tmp_path / "reader"],
        in_flight=InFlight.DROP,
    )
    assert beginning.base == 1
    assert [e.files for e in beginning.entries if isinstance(e, DataEntry)] == [(), ()]


def test_in_flight_data_with_a_gap_is_refused_by_name(tmp_path: Path) -> None:
    log = a_log(tmp_path / "old", 4)
    as_stored(tmp_path / "reader", log, 1, 2)
    with pytest.raises(Corrupt, match="in-flight data of up has a gap"):
        put_back(UP, log_dir=tmp_path / "new", barrier_at=LogPosition(4), readers=[tmp_path / "reader"])


def test_in_flight_files_that_are_gone_decline_the_checkpoint(tmp_path: Path) -> None:
    log = a_log(tmp_path / "old", 2)
    next((tmp_path / "old" / "data").rglob("part.txt")).unlink()
    with pytest.raises(Declined, match="removed before it could be stored"):
        plan_in_flight([Span(upstream=UP, log=log, start=LogPosition(0), stop=LogPosition(2))])


# --- positions ------------------------------------------------------------------------------------------------


def offsets(query: Path, batch: int, *texts: str) -> None:
    for name in ("offsets", "commits"):
        (query / name).mkdir(parents=True, exist_ok=True)
    (query / "offsets" / str(batch)).write_text("\n".join(["v1", "{}", *texts]))
    (query / "commits" / str(batch)).write_text("v1\n{}")


def at(channel: str, position: int) -> str:
    return json.dumps({"channel": channel, "pos": position})


def test_positions_go_by_name_whatever_order_spark_numbers_the_sources_in(tmp_path: Path) -> None:
    batches = CommittedBatches(
        tmp_path,
        inputs={"up": UP, "earlier_name": StageUid("side"), "side": StageUid("side")},
        starts={UP: LogPosition(0), StageUid("side"): LogPosition(3)},
    )
    assert batches.current.batch is None
    assert batches.current.positions == {"up": 0, "side": 3}
    offsets(tmp_path, 0, '{"logOffset":2}', at("earlier_name", 9), at("up", 5), at("up", 4))
    assert batches.look().positions == {"up": 4, "side": 9}, "a self-join is as far as its slower side"
    assert batches.before == {"up": 0, "side": 3}


def test_a_stage_that_does_not_read_one_of_its_inputs_is_refused(tmp_path: Path) -> None:
    offsets(tmp_path, 0, at("up", 5))
    with pytest.raises(InvalidRequest, match="does not read its input 'side'"):
        CommittedBatches(
            tmp_path,
            inputs={"up": UP, "side": StageUid("side")},
            starts={UP: LogPosition(0), StageUid("side"): LogPosition(0)},
        )


def test_a_reader_that_ran_past_the_barrier_is_taken_back_and_nothing_else_is_touched(tmp_path: Path) -> None:
    offsets(tmp_path, 3, at("up", 9), '{"logOffset":2}', at("side", 4))
    linked = tmp_path / "stored"
    linked.hardlink_to(tmp_path / "offsets" / "3")
    before = linked.read_text()
    assert move_offsets(tmp_path, BatchId(3), {UP: LogPosition(6)})
    assert json.loads(read_offsets(tmp_path, BatchId(3))["0"]) == {"channel": "up", "pos": 6}
    assert read_offsets(tmp_path, BatchId(3))["1"] == '{"logOffset":2}'
    assert json.loads(read_offsets(tmp_path, BatchId(3))["2"]) == {"channel": "side", "pos": 4}
    assert linked.read_text() == before, "the stored checkpoint was edited"
    assert not move_offsets(tmp_path, BatchId(3), {UP: LogPosition(6)})


def test_the_faster_side_of_a_self_join_is_taken_back_where_the_slower_stands_at_the_barrier(
    tmp_path: Path,
) -> None:
    """Else it never read what is written behind the barrier again."""
    offsets(tmp_path, 3, at("up", 6), at("up", 9))
    assert move_offsets(tmp_path, BatchId(3), {UP: LogPosition(6)})
    found = read_offsets(tmp_path, BatchId(3))
    assert [json.loads(found[side])["pos"] for side in ("0", "1")] == [6, 6]


@pytest.mark.parametrize("now", ["sums", "totals"], ids=["renamed", "and called as before"])
def test_a_log_begins_where_a_reader_stands_that_has_read_nothing_since_its_input_was_renamed(
    tmp_path: Path, now: str
) -> None:
    """Its offset has the earlier name; a log that began at the barrier had lost the entry it goes on from."""
    writer = StageSnapshot(uid="sums", parallelism=1, batch_id=3, output_position=9)
    earlier = ("totals",) if now == "sums" else ()
    reader = StageSnapshot(
        uid="rows",
        parallelism=1,
        batch_id=2,
        offsets={"0": at("totals", 5)},
        input_positions={"sums": 9},
    )
    common: Any = {"parallelism": 1, "max_parallelism": None, "lost_inputs": (), "new_inputs": ()}
    matches = [
        StageMatch(uid=StageUid(now), snapshot=writer, earlier_uids=earlier, **common),
        StageMatch(uid=StageUid("rows"), snapshot=reader, **common),
    ]
    decision: Any = SimpleNamespace(
        stages=SimpleNamespace(matches=matches),
        metadata=SimpleNamespace(stages=(writer, reader), checkpoint_id=4, triggered_at=1.0),
        drop_in_flight=False,
    )
    directory = AttemptDirectory(tmp_path)
    restore_logs(directory, decision)
    log = ChannelLog(directory.stage(StageUid(now)).log)
    assert (log.start, log.find_barrier(CheckpointId(4))) == (5, 9)
    assert log.read(LogPosition(5)) == DataEntry(batch_id=BatchId(3), files=())


# --- log retention --------------------------------------------------------------------------------------------


def test_a_log_is_cut_before_the_slowest_reader_and_every_pending_barrier(tmp_path: Path) -> None:
    log = a_log(tmp_path / "log", 6)
    assert cut_point(log, readers=[LogPosition(5), LogPosition(3)], pending=[]) == 3
    assert cut_point(log, readers=[LogPosition(7)], pending=[CheckpointId(4)]) == 6
    assert cut_point(log, readers=[], pending=[]) == 7, "nobody reads a sink's log"


def test_an_attempt_begins_with_its_own_releases_whatever_an_earlier_one_let_pass(tmp_path: Path) -> None:
    release = Release(tmp_path)
    release.everything()
    release.reset(CheckpointId(3))
    assert release.read() == ReleasedThrough(3)


# --- snapshots ------------------------------------------------------------------------------------------------


def test_a_snapshot_that_is_cancelled_while_it_waits_to_retry_has_nothing_to_say(tmp_path: Path) -> None:
    """So the stage confirms the abort: nobody waits for a try that will not come."""
    told: list[SnapshotOutcome | None] = []

    class Failing(StageSnapshotter):
        def take(self, cut: Cut, *, retries_left: int = 0) -> SnapshotOutcome:
            job.canceled.set()
            return SnapshotOutcome(decision=FailureDecision.RETRY_OP, text="storage is down")

    coordinator: Any = SimpleNamespace(is_pending=lambda number: True)
    snapshotter = Failing(uid=StageUid("a"), directory=StageDirectory(tmp_path), coordinator=coordinator)
    job = SnapshotJob(
        cut=Cut(checkpoint_id=CheckpointId(1), batch_id=None, input_positions={}, output_position=None),
        holds=True,
        snapshotter=snapshotter,
        batches=CommittedBatches(tmp_path, inputs={}, starts={}),
        inputs={},
        sink_cut=lambda batch: SinkPart(),
        retries=2,
        done=lambda _, outcome: told.append(outcome),
        run_apart=lambda work: work(),
    )
    job._run()
    assert told == [None]


# --- garbage of tables --------------------------------------------------------------------------------------------


def test_a_batch_that_is_prepared_while_garbage_is_collected_stays_to_be_published(tmp_path: Path) -> None:
    attempt = AttemptDirectory(tmp_path)
    root = attempt.stage(UP).root

    def prepare(batch: int) -> None:
        write_committable(root, PreparedBatch(batch_id=batch, epoch=1, files=(), row_schema="{}"))

    class Sink:
        def collect_garbage(self, needed: Any, waiting: Any) -> int:
            prepare(3)
            return 0

    for batch in (0, 1, 2):
        prepare(batch)
    note_published(root, "rows", SinkPosition(lineage="l", epoch=1, head=1, through_batch=1))
    sinks: Any = SimpleNamespace(
        opened=lambda: [(UP, "rows", Sink())],
        pipeline=SimpleNamespace(derived=()),
        _tables_of=lambda *_: [],
    )
    assert PipelineSinks.collect_garbage(sinks, attempt, []) == 2
    assert prepared_batches(root) == [2, 3]


# --- threads that are used again ----------------------------------------------------------------------------------


def test_work_runs_at_once_beside_work_that_hangs_and_threads_that_are_free_are_used_again() -> None:
    threads = ReusedThreads("part")
    hangs, done = threading.Event(), queue.SimpleQueue[int]()
    ended: list[threading.Thread] = []

    def hang() -> None:
        hangs.wait()

    def work() -> None:
        ended.append(threading.current_thread())
        done.put(threading.get_ident())

    threads.submit(hang)
    for _ in range(3):
        threads.submit(work)
        done.get(timeout=progress.QUIET)
        progress.wait_until(lambda: threads._free == 1, "the thread is free again")
    assert len({thread.ident for thread in ended}) == 1
    threads.close()
    progress.join(ended[0], "a free thread ends")
    hangs.set()


def test_work_that_fails_leaves_a_thread_for_the_next(caplog: pytest.LogCaptureFixture) -> None:
    threads = ReusedThreads("part")
    done = threading.Event()
    threads.submit(lambda: print(1 / 0))
    progress.wait_until(lambda: threads._free == 1, "the thread is free again")
    threads.submit(done.set)
    assert done.wait(progress.QUIET)
    assert "part failed" in caplog.text
    threads.close()
