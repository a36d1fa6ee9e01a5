"""Drawn pipelines whose queries are played: a story takes a second, so that thousands are tried.

Everything is real but Spark's micro-batch engine, as in ``tests/attack/played.py``: a played query reads its channels
and files, asks the model's operators, keeps their input as its state, and judges its rows.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from dagster_ckpt import CheckpointedPipeline
from dagster_ckpt.core.chains import JUDGES, SeenInPlans, layout_of
from dagster_ckpt.core.ids import BatchId, StageUid
from dagster_ckpt.core.model import Chain
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.spark.attempt.attempt import Attempt
from dagster_ckpt.spark.attempt.stage_query import StageQuery
from dagster_ckpt.spark.channel.entries import Limit, next_end
from dagster_ckpt.spark.channel.positions import channel_positions, names_of_inputs
from dagster_ckpt.spark.epoch.run import EpochWork
from dagster_ckpt.spark.sink.committables import is_prepared, write_committable
from dagster_ckpt.testing.sinks.run import stage as staged
from tests.attack.deployment import Deployment, PlayedGateway
from tests.attack.outsides import Kind, staging_of
from tests.attack.played import PlayedDrains, PlayedQuery, PlayedRun
from tests.attack.played import _put as put
from tests.fuzz.drawn import STATEFUL, Drawn, Op, Output, Stage
from tests.fuzz.model import Kept, Model, added, columns_of
from tests.fuzz.values import Row, schema

Files = Mapping[int, tuple[int, Sequence[Row]]]
_KEPT = pa.schema(
    [("id", pa.string()), ("state", pa.string()), ("condition", pa.string()), ("row", pa.string())]
)


@dataclass(frozen=True, kw_only=True)
class DrawnRun(PlayedRun):
    """A run of a drawn pipeline."""

    drawn: Drawn
    files: Files


class DrawnDrains(PlayedDrains):
    """Queries of a drawn pipeline."""

    def query_of(self, query: StageQuery) -> PlayedQuery:
        """Return the model of a query."""
        assert isinstance(self.run, DrawnRun)
        return DrawnQuery(query, self.run)


@dataclass(frozen=True)
class DrawnDeployment(Deployment):
    """A deployment of a drawn pipeline, or of its fork."""

    drains_of: ClassVar = DrawnDrains
    run_of: ClassVar = DrawnRun
    drawn: Drawn = field(kw_only=True)
    made: CheckpointedPipeline = field(kw_only=True)
    files: Files = field(kw_only=True)
    request: CheckpointRequest | None = None
    """A run that only takes this."""

    @cached_property
    def pipeline(self) -> CheckpointedPipeline:
        """The pipeline as its author has it now."""
        return self.made

    @property
    def table_dir(self) -> Path:
        """A fork has another than its origin."""
        return Path(self.made.table_dir or self.root / "tables")

    def choose(self, pipeline: CheckpointedPipeline, *_: Any) -> tuple[Chain, ...]:
        """Return the chains that the plans would have."""
        state = {StageUid(one.uid): "keeps state" for one in self.drawn.stages if one.op in STATEFUL}
        twice = {
            StageUid(one.uid): "reads one twice"
            for one in self.drawn.stages
            if len(set(one.inputs)) < len(one.inputs)
        }
        return layout_of(pipeline.graph, SeenInPlans(leaves_reader=state, leaves_inputs=twice)).chains

    def _collect(self, attempt: Attempt[PlayedGateway], run: PlayedRun) -> None:
        """Behind a savepoint of an idle pipeline nothing is tidied up: rows may be on their way."""
        if self.request is None:
            super()._collect(attempt, run)

    def more_of_run(self) -> dict[str, Any]:
        """Return its drawing and files; of a run that only takes a snapshot, which."""
        more = {} if self.request is None else {"request": self.request, "work": EpochWork.NONE}
        return {"drawn": self.drawn, "files": self.files, **more}


@dataclass(frozen=True)
class _Place:
    """A source of a query in Spark's order."""

    reader: str
    reads: str
    """A stage whose channel is read, or the number of a source's files."""
    is_channel: bool


@dataclass(frozen=True)
class DrawnQuery(PlayedQuery):
    """The model of one query: its stages are those of a chain."""

    run: DrawnRun

    @cached_property
    def _members(self) -> set[str]:
        return {str(one) for one in self.query.pipeline.members(self.query.uid)}

    @cached_property
    def _places(self) -> list[_Place]:
        found: list[_Place] = []

        def look(uid: str) -> None:
            one = self._drawn(uid)
            if isinstance(one, Stage) and one.op is Op.SOURCE:
                found.append(_Place(uid, uid.split("_")[1], is_channel=False))
            for upstream in self._inputs(uid):
                if upstream in self._members:
                    look(upstream)
                else:
                    found.append(_Place(uid, upstream, is_channel=True))

        look(str(self.query.uid))
        return found

    def _drawn(self, uid: str) -> Stage | Output:
        drawn = self.run.drawn
        everything: tuple[Stage | Output, ...] = (*drawn.stages, *(one for _, one in drawn.sinks))
        names = (uid, uid.removesuffix(JUDGES))
        return next(one for name in names for one in everything if one.uid == name)

    def _is_judge(self, uid: str) -> bool:
        one = self._drawn(uid)
        return isinstance(one, Output) and one.uid != uid

    def _inputs(self, uid: str) -> tuple[str, ...]:
        one = self._drawn(uid)
        if isinstance(one, Stage):
            return one.inputs
        is_apart = bool(one.judges.expect or one.judges.on_error)
        return (f"{one.uid}{JUDGES}",) if is_apart and one.uid == uid else (one.input,)

    def drain(self) -> None:
        """Run micro-batches until everything that has arrived is processed."""
        self._start()
        reads = [one.reader for one in self._places] if len(self._members) > 1 else []
        put(self.query.directory.plan, json.dumps({"stages": reads}))
        super().drain()

    def _judge(self) -> None:
        return

    # --- positions --------------------------------------------------------------------------------------------------

    def _beginning(self) -> dict[str, str]:
        starts = {str(uid): log.start for uid, log in self.query.input_logs().items()}
        return {
            str(i): json.dumps(
                {"channel": one.reads, "pos": starts[one.reads]}
                if one.is_channel
                else {"n": 0, "of": one.reads}
            )
            for i, one in enumerate(self._places)
        }

    def _at(self, offsets: dict[str, str], number: int) -> int:
        """Return where a source of the query stands, which is known by its number, as in Spark."""
        said = json.loads((offsets or self._beginning())[str(number)])
        place = self._places[number]
        if place.is_channel != ("channel" in said) or (not place.is_channel and said["of"] != place.reads):
            raise AssertionError(f"{self.query.uid} reads {place} from {said}")
        if not place.is_channel:
            return int(said["n"])
        found = channel_positions(
            offsets or self._beginning(), names_of_inputs(self.query.pipeline, self.query.uid)
        )
        return int(found[StageUid(place.reads)])

    def _ahead(self, before: dict[str, str], ends: dict[str, Any]) -> dict[str, str]:
        if len(before or self._beginning()) != len(self._places):
            raise AssertionError(f"{self.query.uid} reads {self._places} from {before}")
        released = self.query.release.read()
        logs = {str(uid): log for uid, log in self.query.input_logs().items()}
        found = {}
        for i, one in enumerate(self._places):
            at = self._at(before, i)
            if one.is_channel:
                log, end = logs[one.reads], ends[one.reads]
                ahead = log.entries(at, end) if at < end else ()  # type: ignore[arg-type]
                at = next_end(at, ahead, released=released, limit=Limit(), onto_barrier=at < end)  # type: ignore[arg-type]
                found[str(i)] = json.dumps({"channel": one.reads, "pos": at})
            else:
                most = self._stage(one.reader).at_once or 10**6
                at = max(at, min(at + most, len(self._files(one.reads))))
                found[str(i)] = json.dumps({"n": at, "of": one.reads})
        return found

    def _stage(self, uid: str) -> Stage:
        one = self._drawn(uid)
        assert isinstance(one, Stage)
        return one

    def _files(self, of: str) -> list[Sequence[Row]]:
        return [rows for _, (source, rows) in sorted(self.run.files.items()) if source == int(of)]

    # --- rows -------------------------------------------------------------------------------------------------------

    def _write(self, batch: BatchId, before: dict[str, str], planned: dict[str, str]) -> None:
        if self.query.log.find_batch(batch) is not None:
            return
        read = [self._read(i, before, planned) for i in range(len(self._places))]
        uid = str(self.query.uid)
        one = self._drawn(uid)
        ports = self._ports(uid, read)
        is_sink = isinstance(one, Output) and not self._is_judge(uid)
        if (
            is_sink
            and ports is not None
            and len(self._inputs(uid)) == 1
            and self._inputs(uid)[0].endswith(JUDGES)
        ):
            rows = ports[0]  # its function has run in the stage that judges
        else:
            rows, kept = self._judged(one, ports, batch, read)
            if kept:
                self._prepare_rows(batch, _content(kept))
        if is_sink:
            assert isinstance(one, Output)
            content = self._of_table(one, rows)
            if content.num_rows:
                self._prepare_rows(batch, content)
            self.query.log.append_data(batch, ())
        else:
            self._append(batch, [_text(row) for row in rows])

    def _read(self, number: int, before: dict[str, str], planned: dict[str, str]) -> list[Row]:
        place = self._places[number]
        begin, end = self._at(before, number), self._at(planned, number)
        if not place.is_channel:
            return [row for rows in self._files(place.reads)[begin:end] for row in _plain(rows)]
        log = self.query.input_logs()[StageUid(place.reads)]
        return [
            _row(text)
            for entry in log.files_between(begin, end)  # type: ignore[arg-type]
            for file in entry.files
            for text in json.loads((log.directory / file.name).read_text())
        ]

    def _ports(self, uid: str, read: list[list[Row]]) -> list[list[Row]]:
        """Return the rows of each input of a stage; of a source, those of its files."""
        numbers = [i for i, one in enumerate(self._places) if one.reader == uid]
        own = [read[i] for i in numbers]
        if not self._inputs(uid):
            return own
        left = iter(own)
        return [
            self._function(upstream, self._ports(upstream, read)) if upstream in self._members else next(left)
            for upstream in self._inputs(uid)
        ]

    def _function(self, uid: str, ports: list[list[Row]]) -> list[Row]:
        one = self._drawn(uid)
        if isinstance(one, Output) or one.op is Op.SOURCE:
            return ports[0]
        return Model()._behind(0, one, ports, unique=self._unique(one))

    def _unique(self, one: Stage | Output) -> bool:
        first = one.inputs[0] if isinstance(one, Stage) else one.input
        return self.run.drawn.shapes[first].unique

    def _judged(
        self, one: Stage | Output, ports: list[list[Row]], batch: BatchId, read: list[list[Row]]
    ) -> tuple[list[Row], list[Kept]]:
        model = Model()
        if isinstance(one, Stage) and one.judges.on_error and one.op is Op.MAP:
            ports = [model._processed(one, ports[0], again=False)]
        has_state = one.op in STATEFUL if isinstance(one, Stage) else bool(one.sums)
        rows = self._with_state(one, ports, batch) if has_state else self._function(one.uid, ports)
        found = model._judged(one, rows, again=False)
        return found, [kept for table in model.kept.values() for kept in table]

    def _with_state(self, one: Stage | Output, ports: list[list[Row]], batch: BatchId) -> list[Row]:
        """Return what a batch makes of its rows and of all batches before, which are the state: that of version N is
        what batch N begins with."""
        state = self.root / "state" / "0" / "0"
        history: list[Any] = []
        if batch:
            with zipfile.ZipFile(state / f"{batch}.zip") as archive:
                listed = json.loads(archive.read("metadata").split(b"\n", 1)[1])["sstFiles"]
            history = json.loads((state / "SSTs" / listed[0]["dfsSstFileName"]).read_text())
        history.append([[_text(row) for row in port] for port in ports])
        put(self.root / "state/0/_metadata/metadata", 'v1\n{"operatorInfo":{"operatorId":0}}')
        name = f"{batch + 1:06d}-{uuid.uuid4()}.sst"
        put(state / "SSTs" / name, json.dumps(history))
        listed = [{"dfsSstFileName": name, "sizeBytes": (state / "SSTs" / name).stat().st_size}]
        with zipfile.ZipFile(state / ".tmp.zip", "w") as archive:
            archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": listed}))
        (state / ".tmp.zip").replace(state / f"{batch + 1}.zip")
        model, rows, groups = Model(), [], dict[Any, Row]()
        for taken in history:
            given = [[_row(text) for text in port] for port in taken]
            if isinstance(one, Output):
                rows = added(groups, given[0], unique=self._unique(one))
            else:
                rows = model._behind(0, one, given, unique=self._unique(one))
        return rows

    # --- tables -----------------------------------------------------------------------------------------------------

    def _of_table(self, one: Output, rows: list[Row]) -> pa.Table:
        if one.kind is Kind.SQL and "k" in one.key:
            rows = [row for row in rows if row[1] is not None]
        drawn = self.run.drawn
        names = columns_of(drawn, one)
        of = pa.schema([field for field in schema(drawn.key_type, drawn.value_type) if field.name in names])
        if one.key:
            at = [names.index(name) for name in one.key]
            rows = list({tuple(row[i] for i in at): row for row in rows}.values())
        records = [dict(zip(names, _aware(row), strict=False)) for row in rows]
        return pa.Table.from_pylist(records, schema=of)

    def _prepare_rows(self, batch: BatchId, content: pa.Table) -> None:
        stage_dir = self.query.directory.root
        if is_prepared(stage_dir, batch):
            return
        sink = self.run.tables.of(self.query.uid)
        attempt = self.run.tables.attempt_id()
        prepared = staged(staging_of(sink, attempt.epoch), attempt, batch, [content])
        self.run.step(f"{self.query.uid}: staged {batch}")
        as_now = self.run.tables.as_now(self.query.uid).staged_as
        write_committable(stage_dir, prepared.model_copy(update={"staged_as": as_now}))


def _content(kept: Sequence[Kept]) -> pa.Table:
    rows = [
        {
            "id": uuid.uuid4().hex,
            "state": one.state,
            "condition": one.condition or "ERROR",
            "row": json.dumps({"n": one.row[0]}),
        }
        for one in kept
    ]
    return pa.Table.from_pylist(rows, schema=_KEPT)


def _text(row: Row) -> list[Any]:
    n, k, v, at, x = row
    return [n, k, v, at.isoformat(), x]


def _row(text: list[Any]) -> Row:
    n, k, v, at, x = text
    return n, k, v, dt.datetime.fromisoformat(at), x


def _plain(rows: Sequence[Row]) -> list[Row]:
    return [(n, k, v, at.astimezone(dt.UTC).replace(tzinfo=None), x) for n, k, v, at, x in rows]


def _aware(row: Row) -> Row:
    n, k, v, at, x = row
    return n, k, v, at.replace(tzinfo=dt.UTC), x
