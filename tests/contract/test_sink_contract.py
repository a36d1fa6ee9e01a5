"""The contract of sinks, run on a sink of a page: everything in one JSON file that is replaced whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dagster_ckpt.core.ids import BatchId, CheckpointId, CoordinatorEpoch
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.errors import Fenced, InvalidRequest, NotFound
from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.sink.port import (
    AlreadyPublished,
    LaterRows,
    Published,
    RolledBack,
    Sink,
    SinkContext,
    SinkCut,
    SinkDescription,
    SinkPosition,
)
from dagster_ckpt.spark.sink.staged_rows import StagedRows
from dagster_ckpt.testing import SinkContract
from dagster_ckpt.testing.sinks.run import Row, Step

State = dict[str, Any]
"""``position``, ``rows``, ``types``, and ``kept``: rows and last batch by "history/checkpoint"."""


class Outside:
    """The one thing that acts on the outside; a test watches it."""

    @staticmethod
    def write(path: Path, state: State) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(path, json.dumps(state).encode(), durably=False)


class PageSink(Sink):
    """A sink as short as the port allows; the file is read again before each step, and races are not told."""

    def __init__(self, context: SinkContext) -> None:
        self._context = context
        self._path = context.table_dir / f"{context.name}.json"

    @property
    def place(self) -> str:
        return str(self._path)

    def _state(self) -> State | None:
        return json.loads(self._path.read_text()) if self._path.exists() else None

    def position(self) -> SinkPosition | None:
        state = self._state()
        return None if state is None else SinkPosition(**state["position"])

    def check(self, frame: Any) -> None:
        raise NotImplementedError

    def prepare(self, frame: Any, batch_id: BatchId) -> PreparedBatch:
        raise NotImplementedError

    def flush(self, batches: Sequence[PreparedBatch]) -> None:
        pass

    def only_here(self, batches: Sequence[PreparedBatch]) -> dict[str, Path]:
        return {
            file.staged: self._context.work_dir / file.staged for batch in batches for file in batch.files
        }

    def bring_back(self, folder: Path, later: Mapping[CheckpointId, CoordinatorEpoch]) -> None:
        shutil.copytree(folder, self._context.work_dir, dirs_exist_ok=True)

    def _owned(self) -> State:
        """Return the state with this attempt as its owner."""
        attempt = self._context.attempt()
        state = self._state() or {"rows": [], "types": {}, "kept": {}, "position": None}
        at = state["position"] or {"checkpoint_id": None, "head": None, "through_batch": None}
        seen = (at.get("epoch", 0), at.get("lineage", attempt.lineage))
        if seen[0] > attempt.epoch or (seen[0] == attempt.epoch and seen[1] != attempt.lineage):
            raise Fenced(f"{self.place} belongs to attempt {seen}")
        state["position"] = {**at, "lineage": attempt.lineage, "epoch": attempt.epoch}
        return state

    def take_over(self) -> None:
        Outside.write(self._path, self._owned())

    def publish(self, batches: Sequence[PreparedBatch], permit: CommitPermit) -> Published | AlreadyPublished:
        state = self._owned()
        shown = state["position"]["through_batch"]
        new = [batch for batch in batches if shown is None or batch.batch_id > shown]
        if not new:
            return AlreadyPublished()
        self._add(state, new, permit.checkpoint_id)
        Outside.write(self._path, state)
        return Published(rows=sum(f.rows for batch in new for f in batch.files), bytes=0)

    def _add(self, state: State, batches: Sequence[PreparedBatch], checkpoint: int) -> None:
        self.refuse_lost(batches)
        for batch in batches:
            kept = [] if batch.replaces else state["rows"]
            state["rows"] = [*kept, *self._staged(batch, state["types"])]
        if self._context.key:
            state["rows"] = list({row[0]: row for row in state["rows"]}.values())
        at = state["position"]
        newest = max(checkpoint, at["checkpoint_id"] or 0)
        at |= {"checkpoint_id": newest, "head": checkpoint, "through_batch": batches[-1].batch_id}
        state["line"] = [*state.get("line", ()), checkpoint]
        state["kept"][str(checkpoint)] = [state["rows"], at["through_batch"], state["line"]]

    def _staged(self, batch: PreparedBatch, types: dict[str, str]) -> list[list[Any]]:
        for field in json.loads(batch.row_schema)["fields"]:
            if types.setdefault(field["name"], field["type"]) != field["type"]:
                raise InvalidRequest(f"the column {field['name']} was {types[field['name']]}")
        rows = []
        for file in batch.files:
            path = self._context.work_dir / file.staged
            rows += [[row["k"], row["v"]] for row in pq.read_table(path).to_pylist()]
        return rows

    def refuse_lost(self, batches: Sequence[PreparedBatch]) -> None:
        for batch in batches:
            StagedRows(self._context.work_dir, [batch])

    def cannot_roll_back(self, cut: SinkCut | None) -> str:
        self.refuse_lost(() if cut is None else cut.batches)
        return ""

    def why_not_kept(self, cut: SinkCut) -> str:
        shown, head = (self._state() or {}).get("line", ()), cut.snapshot.head
        return "" if head is None or head in shown else f"{self.place} shows {shown}, and not {head}"

    def roll_back(self, cut: SinkCut | None, later: LaterRows) -> RolledBack:
        state = self._owned()
        if cut is not None and later is LaterRows.KEEP and (why := self.why_not_kept(cut)):
            raise InvalidRequest(why)
        before = state["position"]["head"]
        head = None if cut is None else cut.snapshot.head
        rows, through, line = state["kept"][str(head)] if head is not None else ([], None, [])
        if later is LaterRows.KEEP and cut is not None:  # what the cut had prepared may be shown
            through = state["kept"].get(str(cut.checkpoint_id), (rows, through))[1]
        state["position"]["through_batch"] = through
        if later is LaterRows.SET_ASIDE:
            state |= {"rows": rows, "line": line}
            state["position"]["head"] = head
            if cut is not None and cut.batches:
                self._add(state, cut.batches, cut.checkpoint_id)
        Outside.write(self._path, state)
        return RolledBack(text="" if before == state["position"]["head"] else f"{before} left")

    def refuse_fork(self, cut: SinkCut) -> None:
        super().refuse_fork(cut)
        position = self.position()
        if position is not None and position.head:
            raise InvalidRequest(f"{self.place} has rows already: fork into another one")

    def fork(self, cut: SinkCut) -> str:
        self.refuse_fork(cut)
        state = self._owned()
        origin = json.loads(Path(cut.snapshot.uri).read_text())
        rows, through, _ = origin["kept"].get(str(cut.snapshot.head), ([], None, []))
        state["rows"] = list(rows)
        state["position"] |= {"head": 0, "through_batch": through}
        if cut.batches:
            work_dir, self._context = self._context, _at_work_of(cut, self._context)
            for batch in cut.batches:
                state["rows"] += self._staged(batch, state["types"])
            self._context = work_dir
            state["position"]["through_batch"] = cut.batches[-1].batch_id
        state["line"] = [0]
        state["kept"]["0"] = [state["rows"], state["position"]["through_batch"], [0]]
        Outside.write(self._path, state)
        return f"{len(state['rows'])} rows"

    def collect_garbage(self, needed: Sequence[TableSnapshot], waiting: Sequence[PreparedBatch]) -> int:
        attempt = self._context.attempt()
        batches = {batch for snapshot in needed for batch in snapshot.prepared}
        kept = {file.staged for batch in waiting for file in batch.files}
        removed = 0
        for path in sorted((self._context.work_dir / "staged").glob("*/*/*.parquet")):
            name = path.relative_to(self._context.work_dir).as_posix()
            is_older = int(path.parts[-3]) < attempt.epoch
            if is_older and name not in kept and int(path.parts[-2].split("-")[1]) not in batches:
                path.unlink()
                removed += 1
        return removed

    def describe(self) -> SinkDescription:
        state = self._state()
        if state is None:
            raise NotFound(f"{self.place} is not there yet")
        return SinkDescription(place=self.place, rows=len(state["rows"]))


def _at_work_of(cut: SinkCut, context: SinkContext) -> Any:
    """Return a context whose working folder is the one of the cut's own sink, as ``context_in`` lays them out."""
    from types import SimpleNamespace

    folder = context.work_dir.parents[1] / Path(cut.snapshot.uri).parent.name / context.name
    return SimpleNamespace(work_dir=folder, key=context.key)


class TestPageSink(SinkContract):
    can_be_raced = False
    keys_not_taken = frozenset(
        {"several", "decimal", "date", "timestamp", "timestamp_ntz", "binary"}
    )  # not in JSON

    def open(self, context: SinkContext) -> Sink:
        return PageSink(context)

    def rows(self, place: str) -> list[Row]:
        path = Path(place)
        return [(row[0], row[1]) for row in json.loads(path.read_text())["rows"]] if path.exists() else []

    def steps(self) -> Sequence[Step]:
        return [(Outside, "write")]


class SinkThatOnlyAdds(PageSink):
    """Rows that are out stay out, as in a log."""

    def cannot_roll_back(self, cut: SinkCut | None) -> str:
        position = self.position()
        head = None if position is None else position.head
        wanted = None if cut is None else cut.snapshot.head
        if head != wanted:
            return f"{self.place} cannot take back what it has published"
        return super().cannot_roll_back(cut)

    def roll_back(self, cut: SinkCut | None, later: LaterRows) -> RolledBack:
        why = self.cannot_roll_back(cut)
        if why and later is LaterRows.SET_ASIDE:
            raise InvalidRequest(why)
        return super().roll_back(cut, later)

    def refuse_fork(self, cut: SinkCut) -> None:
        self.fork(cut)

    def fork(self, cut: SinkCut) -> str:
        return Sink.fork(self, cut)


class TestSinkThatOnlyAdds(SinkContract):
    can_be_raced = False
    keys_not_taken = TestPageSink.keys_not_taken
    can_roll_back = False
    can_fork = False

    def open(self, context: SinkContext) -> Sink:
        return SinkThatOnlyAdds(context)

    rows = TestPageSink.rows
    steps = TestPageSink.steps


class SinkThatForgetsItsPosition(PageSink):
    """Publishes again what was published."""

    def _add(self, state: State, batches: Sequence[PreparedBatch], checkpoint: int) -> None:
        super()._add(state, batches, checkpoint)
        state["position"]["through_batch"] = None


@pytest.mark.parametrize(
    ("sink", "test"),
    [
        (SinkThatForgetsItsPosition, "test_the_same_checkpoint_again_changes_nothing"),
        (SinkThatOnlyAdds, "test_rows_leave_down_to_a_cut_and_come_back_with_a_later_one"),
    ],
)
def test_a_sink_that_does_otherwise_is_found_out(sink: type[PageSink], test: str, tmp_path: Path) -> None:
    class Contract(TestPageSink):
        def open(self, context: SinkContext) -> Sink:
            return sink(context)

    with pytest.raises((AssertionError, InvalidRequest)):
        getattr(Contract(), test)(tmp_path)
