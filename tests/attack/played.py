"""A pipeline whose queries are played: everything of it is real but Spark's micro-batch engine.

Store, storage, working directory, restore, snapshots, channel logs, barriers and tables are the ones of an epoch run.
A played query plans a micro-batch (``offsets/N``), writes its rows, keeps its state (``state/``) and commits it
(``commits/N``), where Spark would. Row i of the source is the number i, so the truth of every table is known.
"""

from __future__ import annotations

import json
import uuid
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyspark.sql.types import StructType

from dagster_ckpt import CheckpointedPipeline, checkpointed_pipeline, spark_sink, spark_source, spark_stage
from dagster_ckpt.authoring.stages import StageRole
from dagster_ckpt.core.ids import BatchId, LogPosition, StageUid
from dagster_ckpt.spark.attempt.stage_query import StageQuery
from dagster_ckpt.spark.channel.entries import Limit, next_end
from dagster_ckpt.spark.channel.positions import channel_positions, names_of_inputs
from dagster_ckpt.spark.epoch.drains import Drained, Drains
from dagster_ckpt.spark.epoch.run import EpochRun
from dagster_ckpt.spark.files import DataFile, batch_folder_name
from dagster_ckpt.spark.sink.committables import is_prepared, write_committable
from dagster_ckpt.spark.sink.phases import Judge, waiting_in
from dagster_ckpt.spark.sink.port import AttemptId
from dagster_ckpt.spark.snapshot.capture import latest_committed_batch, read_offsets
from dagster_ckpt.testing.sinks.run import row_schema, stage
from tests.attack.definition import AS_BEGUN, Definition
from tests.attack.outsides import Kind, Row, staging_of, target_of

KEYS = 5
Step = Callable[[str], None]
"""Told of every step of a batch; raises where the process dies."""


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


# --- the pipelines, and their truth --------------------------------------------------------------------------------


def _never(*_: object) -> Any:
    raise AssertionError("queries are played: no stage function is called")


def pipeline_of(
    kind: Kind, folder: Path, *, with_stage: bool, defined: Definition = AS_BEGUN
) -> CheckpointedPipeline:
    """A source, perhaps a stage that keeps the running total, an append table and one with a key."""
    to = target_of(defined.kind or kind, defined.place, folder, defined.partition_by)
    by_key = target_of(kind, defined.place_by_key, folder)

    @spark_source
    def numbers(spark):  # type: ignore[no-untyped-def]
        return _never(spark)

    @spark_stage
    def totals(numbers):  # type: ignore[no-untyped-def]
        return _never(numbers)

    @spark_sink(uid=defined.uid, table=defined.place, to=to, previous_uids=defined.previous_uids)
    def rows(feed):  # type: ignore[no-untyped-def]
        return _never(feed)

    @spark_sink(table=defined.place_by_key, key=defined.key, to=by_key, output_mode=defined.mode)
    def newest(feed):  # type: ignore[no-untyped-def]
        return _never(feed)

    @checkpointed_pipeline(name=defined.name, previous_names=defined.previous_names)
    def shop() -> None:
        feed = totals(numbers()) if with_stage else numbers()
        rows(feed)
        newest(feed)

    made: CheckpointedPipeline = shop
    return made


def truth(processed: int, *, with_stage: bool) -> dict[str, list[Row]]:
    """What the tables hold after so many rows of the source."""
    values = _running_totals(processed) if with_stage else range(processed)
    rows = list(enumerate(values))
    return {"rows": rows, "newest": sorted({k % KEYS: v for k, v in rows}.items())}


def _running_totals(processed: int) -> Iterator[int]:
    total = 0
    for i in range(processed):
        total += i
        yield total


# --- one query -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PlayedRun(EpochRun):
    """An epoch run, or the stretch of a stream up to one checkpoint."""

    arrived: int
    """Rows the source has."""
    defined: Definition = AS_BEGUN
    per_batch: int = 4
    step: Step = field(default=lambda _: None)


class PlayedDrains(Drains):
    """Queries that are begun before their turn have ended when it comes, and other stages have not."""

    def __init__(self) -> None:
        self.run: PlayedRun
        self._ended: set[StageUid] = set()

    @property
    def room(self) -> int:
        """One more, always."""
        return 1

    def has(self, uid: StageUid) -> bool:
        """Return True where the query has run before its turn."""
        return uid in self._ended

    def had_turn(self, uid: StageUid) -> bool:
        """What dies here dies whole."""
        return False

    def begin(self, query: StageQuery) -> None:
        """Run the query before its turn."""
        self.query_of(query).drain()
        self._ended.add(query.uid)

    def query_of(self, query: StageQuery) -> PlayedQuery:
        """Return the model of a query."""
        return PlayedQuery(query, self.run)

    def finish(self, query: StageQuery, name: str, *, meanwhile: Callable[[], None]) -> Drained:
        """Run the query unless it has run, behind those that are begun beside it."""
        if self.has(query.uid):
            self._ended.discard(query.uid)
        else:
            meanwhile()
            self.query_of(query).drain()
        return Drained()


@dataclass(frozen=True)
class PlayedQuery:
    """The model of one query."""

    query: StageQuery
    run: PlayedRun

    @property
    def root(self) -> Path:
        return self.query.directory.query

    @property
    def _reads_source(self) -> bool:
        return not self.query.input_logs()

    def drain(self) -> None:
        """Run micro-batches until everything that has arrived is processed."""
        self._start()
        if self.query.stage.role is StageRole.SINK:
            self._judge()
        ends = {str(uid): log.end for uid, log in self.query.input_logs().items()}
        while True:
            batch = self._next()
            before = read_offsets(self.root, BatchId(batch - 1)) if batch else {}
            planned = self._planned(batch, before, ends)
            if planned is None:
                return
            self.run.step(f"{self.query.uid}: planned {batch}")
            self._write(batch, before, planned)
            self.run.step(f"{self.query.uid}: wrote {batch}")
            _put(self.root / "commits" / str(batch), 'v1\n{"nextBatchWatermarkMs":0}')
            self.run.step(f"{self.query.uid}: committed {batch}")

    def _next(self) -> BatchId:
        """The newest planned batch where it is not the newest committed one, else the one after it: as in Spark."""
        planned = max((int(path.name) for path in (self.root / "offsets").glob("[0-9]*")), default=None)
        if planned is None:
            return BatchId(0)
        return BatchId(planned + 1 if latest_committed_batch(self.root) == planned else planned)

    def _start(self) -> None:
        for name in ("offsets", "commits"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        if not (self.root / "metadata").exists():
            _put(self.root / "metadata", json.dumps({"id": str(uuid.uuid4())}))

    def _planned(
        self, batch: BatchId, before: dict[str, str], ends: dict[str, LogPosition]
    ) -> dict[str, str] | None:
        """Where the batch ends: as it was planned before a failure, else as far as there is something new."""
        if (self.root / "offsets" / str(batch)).exists():
            return read_offsets(self.root, batch)
        planned = self._ahead(before, ends)
        if planned == (before or self._beginning()):
            return None
        header = json.dumps({"batchWatermarkMs": 0, "conf": {"spark.sql.shuffle.partitions": "1"}})
        lines = ["v1", header, *(planned[name] for name in sorted(planned))]
        _put(self.root / "offsets" / str(batch), "\n".join(lines))
        return planned

    def _beginning(self) -> dict[str, str]:
        if self._reads_source:
            return {"0": json.dumps({"n": 0})}
        starts = sorted((str(uid), log.start) for uid, log in self.query.input_logs().items())
        return {str(i): json.dumps({"channel": uid, "pos": at}) for i, (uid, at) in enumerate(starts)}

    def _ahead(self, before: dict[str, str], ends: dict[str, LogPosition]) -> dict[str, str]:
        """As far as the source has rows; in channels as the reader does that processes the available data."""
        if self._reads_source:
            done = _read(before)
            return {"0": json.dumps({"n": max(done, min(self.run.arrived, done + self.run.per_batch))})}
        released = self.query.release.read()
        found = {}
        for uid, log in self.query.input_logs().items():
            at, end = self._position(uid, before), ends[str(uid)]
            ahead = log.entries(at, end) if at < end else ()
            found[str(uid)] = next_end(at, ahead, released=released, limit=Limit(), onto_barrier=at < end)
        return {
            str(i): json.dumps({"channel": uid, "pos": at})
            for i, (uid, at) in enumerate(sorted(found.items()))
        }

    def _position(self, uid: StageUid, offsets: dict[str, str]) -> LogPosition:
        found = channel_positions(
            offsets or self._beginning(), names_of_inputs(self.query.pipeline, self.query.uid)
        )
        return found[uid]

    def _write(self, batch: BatchId, before: dict[str, str], planned: dict[str, str]) -> None:
        rows = self._rows(before, planned)
        match self.query.stage.role:
            case StageRole.SINK:
                self._prepare(batch, rows)
                self.query.log.append_data(batch, ())
            case StageRole.STAGE:
                self._append(batch, self._totals(batch, rows))
            case StageRole.SOURCE:
                self._append(batch, rows)

    def _rows(self, before: dict[str, str], planned: dict[str, str]) -> list[Row]:
        if self._reads_source:
            return [(i, i) for i in range(_read(before), _read(planned))]
        return [
            (k, v)
            for uid, log in self.query.input_logs().items()
            for entry in log.files_between(self._position(uid, before), self._position(uid, planned))
            for file in entry.files
            for k, v in json.loads((log.directory / file.name).read_text())
        ]

    def _append(self, batch: BatchId, rows: list[Row]) -> None:
        log = self.query.log
        if log.find_batch(batch) is not None:
            return
        files = ()
        if rows:
            name = f"data/{batch_folder_name(batch)}/rows.json"
            _put(log.directory / name, json.dumps(rows))
            files = (DataFile(name, len(rows), (log.directory / name).stat().st_size),)
        log.append_data(batch, files)

    def _totals(self, batch: BatchId, rows: list[Row]) -> list[Row]:
        """The running total of every row; the state of version N is what batch N begins with, as Spark's."""
        state = self.root / "state" / "0" / "0"
        total = 0
        if batch:
            with zipfile.ZipFile(state / f"{batch}.zip") as archive:
                listed = json.loads(archive.read("metadata").split(b"\n", 1)[1])["sstFiles"]
            total = json.loads((state / "SSTs" / listed[0]["dfsSstFileName"]).read_text())["total"]
        found = []
        for k, v in rows:
            total += v
            found.append((k, total))
        _put(self.root / "state/0/_metadata/metadata", 'v1\n{"operatorInfo":{"operatorId":0}}')
        name = f"{batch + 1:06d}-{uuid.uuid4()}.sst"
        _put(state / "SSTs" / name, json.dumps({"total": total, "pad": "x" * 64}))
        listed = [{"dfsSstFileName": name, "sizeBytes": (state / "SSTs" / name).stat().st_size}]
        with zipfile.ZipFile(state / ".tmp.zip", "w") as archive:
            archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": listed}))
        (state / ".tmp.zip").replace(state / f"{batch + 1}.zip")
        return found

    def _prepare(self, batch: BatchId, rows: list[Row]) -> None:
        """What a sink does with a micro-batch, one file of it."""
        stage_dir = self.query.directory.root
        if is_prepared(stage_dir, batch) or not rows:
            return
        sink = self.run.tables.of(self.query.uid)
        attempt: AttemptId = self.run.tables.attempt_id()
        table = self.query.stage.table
        by_key = table is not None and bool(table.key)
        if by_key:
            rows = list({k % KEYS: (k % KEYS, v) for k, v in rows}.values())
        content = self.run.defined.content(rows)
        prepared = stage(staging_of(sink, attempt.epoch), attempt, batch, [content])
        self.run.step(f"{self.query.uid}: staged {batch}")
        staged_as = self.run.tables.as_now(self.query.uid).staged_as
        write_committable(stage_dir, prepared.model_copy(update={"staged_as": staged_as}))

    def _judge(self) -> None:
        """Compare the sink's rows with what it accepts, what waits, and its table, as ``PipelineSinks.writer`` does."""
        sink, schema = self.run.tables.of(self.query.uid), row_schema(self.run.defined.content([]).schema)
        columns = StructType.fromJson(json.loads(schema))
        frame: Any = SimpleNamespace(schema=columns, columns=columns.names, isStreaming=True)
        Judge.of(sink, frame)
        sink.check(frame)
        self.run.tables.refuse_changed(self.query.uid, waiting_in(self.query.directory.root, sink), schema)


def _read(offsets: dict[str, str]) -> int:
    """How many rows of the source were read up to here."""
    return int(json.loads(offsets["0"])["n"]) if offsets else 0


def _put(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(content)
    temporary.replace(path)
