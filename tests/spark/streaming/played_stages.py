"""A model of Spark's query loop: stages that a test plays batch by batch, each batch planned, written, committed.

Only the micro-batch engine is modeled. Barrier loop, workers, gates, channel logs, release files and the reader of
commit logs are the real ones; snapshots are cut for real and stored nowhere. That Spark moves as the model does is
shown by the tests with real queries: ``test_aligned.py``, ``test_sources_and_ends.py``, the crash sweep.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dagster_ckpt.core.alignment import options_for
from dagster_ckpt.core.config import CheckpointConfig, CheckpointingMode
from dagster_ckpt.core.ids import (
    BatchId,
    CheckpointId,
    CoordinatorEpoch,
    ExecutionAttempt,
    LogPosition,
    StageUid,
)
from dagster_ckpt.core.messages import TriggerStages
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.spark.channel.entries import DataEntry, Limit, Release, next_end
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.channel.positions import CommittedBatches
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.files import DataFile
from dagster_ckpt.spark.sink.phases import SinkPart
from dagster_ckpt.spark.snapshot.take import Cut
from dagster_ckpt.spark.streaming.gate import BatchGate
from dagster_ckpt.spark.streaming.input_alignment import InputChannel
from dagster_ckpt.spark.streaming.instant_cut import InstantCuts
from dagster_ckpt.spark.streaming.loop import BarrierLoop, BegunCheckpoint, IsAborted, IsComplete, JobEnded
from dagster_ckpt.spark.streaming.snapshot_job import SnapshotJob
from dagster_ckpt.spark.streaming.stage_worker import StageWorker
from dagster_ckpt.testing.memory import ManualClock

EPOCH = CoordinatorEpoch(1)
Graph = Mapping[str, Sequence[str]]

DIAMOND: Graph = {
    "source": (),
    "left": ("source",),
    "right": ("source",),
    "met": ("left", "right"),
    "sink": ("met",),
}
LINE: Graph = {"source": (), "left": ("source",), "right": ("left",), "sink": ("right",)}
ONE_ENDS: Graph = {
    "ends": (),
    "follows": ("ends",),
    "goes_on": (),
    "met": ("follows", "goes_on"),
    "sink": ("met",),
}
TWO_SOURCES: Graph = {"a": (), "b": (), "met": ("a", "b"), "sink": ("met",)}


@dataclass
class PlayedQuery:
    """The model of one query: reads as the channel source does, passes every row on; a batch has three steps."""

    uid: StageUid
    directory: AttemptDirectory
    inputs: tuple[StageUid, ...]
    gate: BatchGate
    max_entries: int | None = None
    batch: int = 0
    planned: dict[StageUid, LogPosition] | None = None
    written: bool = False
    taken: int = 0
    position: dict[StageUid, LogPosition] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    """Rows a source has not read yet."""
    passed_on: list[list[int]] = field(default_factory=list)
    """Rows of every batch, whatever becomes of the log."""

    def __post_init__(self) -> None:
        self.root = self.directory.stage(self.uid).root
        self.log = ChannelLog(self.directory.stage(self.uid).log)
        self.logs = {uid: ChannelLog(self.directory.stage(uid).log) for uid in self.inputs}
        self.release = Release(self.root)
        for name in ("offsets", "commits"):
            (self.root / "query" / name).mkdir(parents=True, exist_ok=True)
        self.position = {uid: log.start for uid, log in self.logs.items()}

    def step(self) -> bool:
        """Do the next step of a batch; False when there is nothing to do."""
        if self.planned is None:
            return self._plan()
        if not self.written:
            return self._write()
        self._commit()
        return True

    def _plan(self) -> bool:
        if not self.inputs:
            if not self.waiting:
                return False
            self.planned = {}
            self._write_offsets({"0": '{"logOffset":1}'})
            return True
        ends = {
            uid: next_end(
                self.position[uid],
                log.entries(self.position[uid]),
                released=self.release.read(),
                limit=Limit(entries=self.max_entries),
            )
            for uid, log in self.logs.items()
        }
        if ends == self.position:
            return False
        self.planned = ends
        self._write_offsets(
            {
                str(n): json.dumps({"channel": uid, "pos": at})
                for n, (uid, at) in enumerate(sorted(ends.items()))
            }
        )
        return True

    def _write(self) -> bool:
        if self.gate.is_held:
            return False
        rows = self.waiting[:3] if not self.inputs else self._rows_ahead()
        self.taken = len(rows)
        files = (self._stored(rows),) if rows else ()
        self.log.append_data(BatchId(self.batch), files)
        self.passed_on[self.batch :] = [rows]
        self.written = True
        return True

    def _rows_ahead(self) -> list[int]:
        assert self.planned is not None
        return [
            row
            for uid, log in self.logs.items()
            for row in rows_between(log, self.position[uid], self.planned[uid])
        ]

    def _stored(self, rows: list[int]) -> DataFile:
        name = f"data/batch-{self.batch:010d}-{0:012x}/rows.json"
        path = self.log.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rows))
        return DataFile(name, len(rows), path.stat().st_size)

    def _commit(self) -> None:
        (self.root / "query" / "commits" / str(self.batch)).write_text("v1\n{}")
        if not self.inputs:
            del self.waiting[: self.taken]
        self.position = dict(self.planned or {})
        self.batch, self.planned, self.written = self.batch + 1, None, False

    def _write_offsets(self, offsets: dict[str, str]) -> None:
        lines = ["v1", "{}", *(offsets[key] for key in sorted(offsets))]
        (self.root / "query" / "offsets" / str(self.batch)).write_text("\n".join(lines))


def rows_between(log: ChannelLog, start: LogPosition, stop: LogPosition) -> list[int]:
    return [
        row
        for entry in log.files_between(start, stop)
        for file in entry.files
        for row in json.loads((log.directory / file.name).read_text())
    ]


@dataclass
class Play:
    """A whole graph with the real barrier loop; the test decides who moves next."""

    folder: Path
    graph: Graph
    config: CheckpointConfig
    clock: ManualClock = field(default_factory=ManualClock)
    queries: dict[StageUid, PlayedQuery] = field(default_factory=dict)
    jobs: dict[tuple[StageUid, CheckpointId], SnapshotJob] = field(default_factory=dict)
    cuts: dict[tuple[StageUid, CheckpointId], Cut] = field(default_factory=dict)
    declined: list[tuple[StageUid, CheckpointId]] = field(default_factory=list)
    confirmed: list[tuple[StageUid, CheckpointId]] = field(default_factory=list)
    finished: list[StageUid] = field(default_factory=list)
    errors: list[tuple[StageUid, Exception]] = field(default_factory=list)
    pending: set[CheckpointId] = field(default_factory=set)
    published: dict[CheckpointId, float] = field(default_factory=dict)
    """Completed checkpoints whose tables the coordinator publishes, and since when."""
    triggered: int = 0
    emitted: int = 0

    def __post_init__(self) -> None:
        directory = AttemptDirectory(self.folder / "attempt-1")
        for uid in self.graph:
            ChannelLog.create(directory.stage(StageUid(uid)).log)
        workers = {
            StageUid(uid): self._worker(directory, StageUid(uid), tuple(StageUid(u) for u in inputs))
            for uid, inputs in self.graph.items()
        }
        self.loop = BarrierLoop(
            workers,
            list(workers),
            clock=self.clock,
            on_error=lambda uid, error: self.errors.append((uid, error)),
            cuts=InstantCuts(self.config),
        )

    def _worker(
        self, directory: AttemptDirectory, uid: StageUid, inputs: tuple[StageUid, ...]
    ) -> StageWorker:
        gate = BatchGate()
        self.queries[uid] = query = PlayedQuery(
            uid, directory, inputs, gate, max_entries=1 if uid == "right" else None
        )
        if self.config.mode is CheckpointingMode.AT_LEAST_ONCE:
            query.release.everything()
        batches = CommittedBatches(
            query.root / "query", inputs={str(u): u for u in inputs}, starts=dict(query.position)
        )
        coordinator: Any = SimpleNamespace(
            is_pending=lambda number: number in self.pending, notifying=self.published
        )
        attempt = ExecutionAttempt(uid, 0, EPOCH, 0)
        return StageWorker(
            uid=uid,
            config=self.config,
            log=query.log,
            release=query.release,
            batches=batches,
            inputs={
                u: InputChannel(
                    upstream=u, log=query.logs[u], position=query.position[u], ignored_through=CheckpointId(0)
                )
                for u in inputs
            },
            gate=gate,
            snapshotter=SimpleNamespace(uid=uid, attempt=attempt, coordinator=coordinator),  # type: ignore[arg-type]
            make_job=self._make_job,
            decline_later=lambda _, effect: self.declined.append((uid, effect.checkpoint_id)),
            confirm_aborted=lambda number, stage: self.confirmed.append((stage, number)),
            on_finished=self.finished.append,
        )

    def _make_job(self, cut: Cut, worker: StageWorker) -> SnapshotJob:
        job = _PlayedJob(
            cut=cut,
            holds=worker.alignment.holds,
            snapshotter=worker.snapshotter,
            batches=worker.batches,
            inputs=self.queries[worker.uid].logs,
            sink_cut=lambda _: SinkPart(),
            retries=0,
            done=lambda *_: None,
            run_apart=lambda work: work(),
        )
        self.jobs[worker.uid, cut.checkpoint_id] = job
        return job

    # --- moves --------------------------------------------------------------------------------------------------

    def emit(self, rows: int = 1) -> None:
        """Let rows arrive at every source."""
        for query in self.queries.values():
            if not query.inputs and not self.loop.workers[query.uid].is_ended:
                query.waiting += range(self.emitted, self.emitted + rows)
        self.emitted += rows

    def end_what_can(self) -> None:
        """End a source that has read everything, or a stage that has processed all rows of inputs that have ended."""
        for uid in (StageUid("ends"), StageUid("follows")):
            query, worker = self.queries[uid], self.loop.workers[uid]
            rows_ahead = [
                row
                for one, log in query.logs.items()
                for row in rows_between(log, query.position[one], log.end)
            ]
            is_busy = query.planned is not None or bool(query.waiting or rows_ahead)
            worker.is_ended = not is_busy and all(feeder.is_ended for feeder in worker.feeders)
            if not worker.is_ended:
                return

    def trigger(self, kind: CheckpointKind = CheckpointKind.CHECKPOINT) -> CheckpointId:
        self.triggered += 1
        number = CheckpointId(self.triggered)
        self.pending.add(number)
        attempts = tuple(
            ExecutionAttempt(uid, 0, EPOCH, 0) for uid, query in self.queries.items() if not query.inputs
        )
        self.loop.post(
            BegunCheckpoint(
                TriggerStages(
                    checkpoint_id=number,
                    timestamp=self.clock.now(),
                    options=options_for(kind, self.config),
                    attempts=attempts,
                )
            )
        )
        return number

    def finish_jobs(self) -> bool:
        """Let every snapshot that can end, end; a checkpoint all stages have acknowledged completes."""
        ended = False
        for (uid, number), job in list(self.jobs.items()):
            if job.canceled.is_set() or number not in self.pending:
                del self.jobs[uid, number]
            elif job._is_ready():
                self.cuts[uid, number] = job._cut()
                del self.jobs[uid, number]
            else:
                continue
            ended = True
            self.loop.post(JobEnded(uid, number))
        for number in sorted(self.pending):
            if all((uid, number) in self.cuts for uid in self.queries):
                self.complete(number)
        return ended

    def complete(self, number: CheckpointId) -> None:
        for older in sorted(n for n in self.pending if n < number):
            self.abort(older)
        self.pending.discard(number)
        self.loop.post(IsComplete(number))

    def abort(self, number: CheckpointId) -> None:
        self.pending.discard(number)
        self.loop.post(IsAborted(number, None))

    def run_down(self, most: int = 2000) -> None:
        """Let everybody move until nothing happens any more."""
        for _ in range(most):
            moved = [query.step() for query in self.queries.values()]
            moved += [self.loop.step(), self.finish_jobs()]
            self.clock.advance(0.01)
            if not any(moved):
                return
        raise AssertionError("the graph does not come to rest")

    # --- what must hold -----------------------------------------------------------------------------------------

    def completed(self) -> list[CheckpointId]:
        numbers = sorted({number for _, number in self.cuts})
        return [n for n in numbers if all((uid, n) in self.cuts for uid in self.queries)]

    def check_cut(self, number: CheckpointId) -> None:
        """What a stage has read at its cut, with what is in flight, is what its input wrote before its barrier."""
        for uid, query in self.queries.items():
            cut = self.cuts[uid, number]
            positions = self.loop.workers[uid].batches.positions_at(cut.batch_id)
            in_flight = Counter(_in_flight_rows(cut))
            for upstream, log in query.logs.items():
                at = cut.input_positions[upstream]
                before_barrier = Counter(rows_between(log, log.start, at))
                read = Counter(rows_between(log, log.start, positions[upstream]))
                recorded = Counter(
                    row
                    for (stage, position), rows in in_flight_of(cut, self.queries).items()
                    if stage == upstream and position < at
                    for row in rows
                )
                if self.config.mode is CheckpointingMode.AT_LEAST_ONCE:
                    assert not before_barrier - read, f"checkpoint {number}: {uid} lacks rows of {upstream}"
                else:
                    assert read + recorded == before_barrier, (
                        f"checkpoint {number}: {uid} and {upstream} disagree"
                    )
            assert cut.unaligned or not in_flight
        self.check_batches(number)

    def check_finished(self, number: CheckpointId) -> None:
        """What feeds a finished stage is finished; its part is behind all rows that it ever writes."""
        for uid, query in self.queries.items():
            cut = self.cuts[uid, number]
            if cut.finished:
                assert all(self.cuts[upstream, number].finished for upstream in query.inputs)
                assert self._rows_through(uid, cut.batch_id) == self._rows_through(uid, BatchId(query.batch))

    def check_batches(self, number: CheckpointId) -> None:
        """A restore makes each stage go on behind its batch: its input's batches have written what it has read."""
        if self.config.mode is CheckpointingMode.AT_LEAST_ONCE:
            return
        for uid, query in self.queries.items():
            if not query.inputs:
                continue
            cut = self.cuts[uid, number]
            there = Counter(self._rows_through(uid, cut.batch_id)) + Counter(_in_flight_rows(cut))
            wrote: Counter[int] = Counter()
            for upstream in query.inputs:
                wrote.update(self._rows_through(upstream, self.cuts[upstream, number].batch_id))
            assert there == wrote, (
                f"checkpoint {number}: {uid} lacks, or has twice, {(wrote - there) + (there - wrote)}"
            )

    def _rows_through(self, uid: StageUid, batch: BatchId | None) -> list[int]:
        batches = self.queries[uid].passed_on[: 0 if batch is None else batch + 1]
        return [row for rows in batches for row in rows]

    def check_everything_arrived(self, paths: int = 2) -> None:
        for uid, query in self.queries.items():
            if uid == "sink":
                rows = Counter(rows_between(query.log, query.log.start, query.log.end))
                assert rows == Counter(dict.fromkeys(range(self.emitted), paths))


class _PlayedJob(SnapshotJob):
    """Ends when the test says so."""

    def start(self) -> None: ...


def in_flight_of(cut: Cut, queries: Mapping[StageUid, PlayedQuery]) -> dict[tuple[StageUid, int], list[int]]:
    found: dict[tuple[StageUid, int], list[int]] = {}
    for file in cut.extra_files:
        _, upstream, rest = file.path.split("/", 2)
        if rest.endswith("rows.json") or not rest.endswith(".json"):
            continue
        position = int(Path(rest).stem)
        entry = queries[StageUid(upstream)].log.read(LogPosition(position))
        if isinstance(entry, DataEntry):
            found[StageUid(upstream), position] = rows_between(
                queries[StageUid(upstream)].log, LogPosition(position), LogPosition(position + 1)
            )
    return found


def _in_flight_rows(cut: Cut) -> list[int]:
    return [
        row
        for file in cut.extra_files
        if file.path.endswith("rows.json")
        for row in json.loads(Path(str(file.source)).read_text())
    ]
