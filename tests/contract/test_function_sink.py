"""A user's function passes the contract of sinks, when it uses its token."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_ckpt.authoring.targets import ForEachCheckpoint
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId
from dagster_ckpt.errors import InvalidRequest, OutcomeUnknown
from dagster_ckpt.spark.sink.for_each_checkpoint import CheckpointToken, FunctionSink
from dagster_ckpt.spark.sink.port import AlreadyPublished, LaterRows, Sink, SinkContext
from dagster_ckpt.testing import SinkContract
from dagster_ckpt.testing.sinks.base import FIRST
from dagster_ckpt.testing.sinks.run import RunCut, SinkRun, Staging, context_in


class Shelf:
    """What the function writes to: rows by idempotency key."""

    def __init__(self) -> None:
        self.rows: dict[str, list[tuple[int, int]]] = {}
        self.calls: list[tuple[CheckpointToken, list[tuple[int, int]]]] = []

    def put(self, rows: pa.RecordBatchReader, token: CheckpointToken) -> None:
        taken = [(row["k"], row["v"]) for row in rows.read_all().to_pylist()]
        self.calls.append((token, taken))
        if token.replaces:
            self.rows.clear()
        self.rows[token.idempotency_key] = taken


class TestFunction(SinkContract):
    can_roll_back = False
    can_fork = False
    can_upsert = False  # the function gets every row
    can_be_raced = False
    checks_types = False

    @pytest.fixture(autouse=True)
    def _shelves(self) -> None:
        self._shelves: dict[str, Shelf] = {}
        self._last: dict[str, Shelf] = {}

    def open(self, context: SinkContext) -> Sink:
        shelf = self._shelves.setdefault(str(context.work_dir), Shelf())
        sink = FunctionSink(ForEachCheckpoint(shelf.put), context)
        self._last[sink.place] = shelf
        return sink

    def rows(self, place: str) -> list[tuple[int, int]]:
        return [row for rows in self._last[place].rows.values() for row in rows]

    def steps(self) -> Sequence[tuple[Any, str]]:
        return [(Shelf, "put"), (FunctionSink, "_note")]


@pytest.fixture
def context(tmp_path: Path) -> SinkContext:
    return context_in(tmp_path, FIRST)


def run_of(context: SinkContext, function: Any) -> SinkRun:
    def opened(context: SinkContext) -> Sink:
        return FunctionSink(ForEachCheckpoint(function), context)

    def staging(_sink: Sink, context: SinkContext) -> Staging:
        return Staging(context.work_dir, context.work_dir / "staged" / str(context.attempt().epoch))

    return SinkRun(open=opened, staging=staging, context=context, attempt=FIRST, sink=opened(context))


def test_a_call_that_may_have_worked_is_repeated_with_the_same_rows_before_newer_ones(
    context: SinkContext,
) -> None:
    """Also when the next attempt begins with a newer checkpoint, whose rows would contain these."""
    shelf = Shelf()

    def put(rows: pa.RecordBatchReader, token: CheckpointToken) -> None:
        shelf.put(rows, token)
        if len(shelf.calls) == 1:
            raise ConnectionResetError("gone")

    run = run_of(context, put)
    run.batch([(1, 1)])
    run.batch([(2, 2)])
    with pytest.raises(OutcomeUnknown, match="same idempotency key"):
        run.publish(1)
    run.batch([(3, 3)])
    newer = run.cut(2)
    assert [batch.batch_id for batch in newer.cut.batches] == [0, 1, 2]
    back = run.restored(newer)
    first, again, rest = shelf.calls
    assert first == again
    assert first[0].idempotency_key == "shop/orders/first/1"
    assert (rest[0].checkpoint_id, rest[0].epoch, rest[1]) == (2, 2, [(3, 3)])
    assert isinstance(back.publish(3), AlreadyPublished)


def test_an_error_of_the_function_fails_the_publish_and_the_next_one_repeats_it(context: SinkContext) -> None:
    shelf = Shelf()

    def put(rows: pa.RecordBatchReader, token: CheckpointToken) -> None:
        shelf.put(rows, token)
        if len(shelf.calls) == 1:
            raise KeyError("v")

    run = run_of(context, put)
    run.batch([(1, 1)])
    with pytest.raises(KeyError):
        run.publish(1)
    run.batch([(2, 2)])
    run.publish(2)
    assert [(token.checkpoint_id, rows) for token, rows in shelf.calls] == [
        (1, [(1, 1)]),
        (1, [(1, 1)]),
        (2, [(2, 2)]),
    ]


# --- folders that are lost with their machine ---------------------------------------------------------------------


def test_what_was_called_from_another_machine_is_not_called_again_from_an_older_disk(
    context: SinkContext, tmp_path: Path
) -> None:
    shelf = Shelf()
    run = run_of(context, shelf.put)
    run.sink.take_over()
    run.batch([(1, 1)])
    run.publish(1)
    shutil.copytree(context.work_dir, tmp_path / "older")
    elsewhere = run.successor()
    elsewhere.sink.take_over()
    elsewhere.batch([(2, 2)])
    elsewhere.publish(2)
    elsewhere.batch([(3, 3)])
    at = elsewhere.cut(3)
    elsewhere.lose_disk()
    (tmp_path / "older").rename(context.work_dir)
    elsewhere.restored(at)
    assert [rows for _, rows in shelf.calls] == [[(1, 1)], [(2, 2)], [(3, 3)]]


def refused_at(back: SinkRun, at: RunCut, later: dict[int, int]) -> None:
    """Restore a cut where these later snapshots (and their attempts) are known: nothing is called again."""
    known = {CheckpointId(number): CoordinatorEpoch(epoch) for number, epoch in later.items()}
    with pytest.raises(InvalidRequest, match=f"called up to checkpoint {max(later)}.* is lost"):
        back.in_directory_of(at).roll_back(at, later_published=known)
    assert (
        "restore that checkpoint, or keep the rows (roll_back_tables: false)"
        in back.sink.cannot_roll_back(at.cut)
    )


def test_an_older_cut_is_refused_where_the_note_of_later_calls_is_lost(context: SinkContext) -> None:
    run = run_of(context, Shelf().put)
    run.sink.take_over()
    run.batch([(1, 1)])
    run.publish(1)
    at = run.cut(2)
    run.batch([(2, 2)])
    run.publish(3)
    run.lose_disk()
    refused_at(run.successor(), at, {3: 1})


def test_a_first_cut_is_refused_where_the_note_of_later_calls_is_lost(context: SinkContext) -> None:
    """It shows no rows, as a sink does that knows nothing."""
    shelf = Shelf()
    run = run_of(context, shelf.put)
    run.sink.take_over()
    run.batch([(1, 1)])
    at = run.cut(1)
    assert at.cut.snapshot.head is None
    run.publish(1)
    run.lose_disk()
    refused_at(run.successor(), at, {2: 1})
    assert len(shelf.calls) == 1


def test_an_older_cut_is_refused_on_a_disk_that_knows_nothing_of_a_newer_attempts_calls(
    context: SinkContext, tmp_path: Path
) -> None:
    shelf = Shelf()
    run = run_of(context, shelf.put)
    run.sink.take_over()
    run.batch([(1, 1)])
    run.publish(1)
    at = run.cut(2)
    shutil.copytree(context.work_dir, tmp_path / "older")
    elsewhere = run.successor()
    elsewhere.sink.take_over()
    elsewhere.batch([(2, 2)])
    elsewhere.publish(3)
    elsewhere.lose_disk()
    (tmp_path / "older").rename(context.work_dir)
    refused_at(elsewhere.successor(), at, {3: 2})
    assert [rows for _, rows in shelf.calls] == [[(1, 1)], [(2, 2)]]


def test_rows_that_were_kept_where_calls_are_unknown_stay_in_the_way_of_older_cuts(
    context: SinkContext,
) -> None:
    """One such restore makes no other one exact."""
    run = run_of(context, Shelf().put)
    run.sink.take_over()
    run.batch([(1, 1)])
    at = run.cut(1)
    run.publish(1)
    run.lose_disk()
    later = {CheckpointId(2): CoordinatorEpoch(1)}
    back = run.successor().in_directory_of(at)
    assert back.roll_back(at, LaterRows.KEEP, later).text == ""
    again = back.successor().in_directory_of(at)
    with pytest.raises(InvalidRequest, match="cannot take rows back"):
        again.roll_back(at, later_published=later)


def test_an_older_cut_that_no_call_came_after_is_restored_where_the_note_is(context: SinkContext) -> None:
    shelf = Shelf()
    run = run_of(context, shelf.put)
    run.sink.take_over()
    run.batch([(1, 1)])
    run.publish(1)
    at = run.cut(2)
    back = run.successor().in_directory_of(at)
    back.roll_back(at, later_published={CheckpointId(3): CoordinatorEpoch(1)})
    assert len(shelf.calls) == 1
    assert back.sink.cannot_roll_back(at.cut) == ""


def test_a_beginning_without_state_is_refused_where_the_note_of_calls_is_lost(context: SinkContext) -> None:
    shelf = Shelf()
    run = run_of(context, shelf.put)
    run.sink.take_over()
    run.batch([(1, 1)])
    run.publish(1)
    run.lose_disk()
    back = run.successor().in_directory_of(None)
    later = {CheckpointId(1): CoordinatorEpoch(1)}
    with pytest.raises(InvalidRequest, match=r"called up to checkpoint 1.* with all rows again. Go on from"):
        back.roll_back(None, later_published=later)
    assert back.sink.position() is None, "nothing was noted"
    assert back.roll_back(None, LaterRows.KEEP, later).text == ""
    again = back.successor().in_directory_of(None)
    with pytest.raises(InvalidRequest, match="cannot take rows back"):
        again.roll_back(None, later_published=later)
    assert len(shelf.calls) == 1


def test_a_beginning_without_state_is_right_where_a_note_says_that_there_was_no_call(
    context: SinkContext,
) -> None:
    run = run_of(context, Shelf().put)
    run.sink.take_over()
    back = run.successor().in_directory_of(None)
    back.roll_back(None, later_published={CheckpointId(1): CoordinatorEpoch(1)})
    assert back.sink.cannot_roll_back(None) == ""


def test_old_code_of_a_renamed_pipeline_calls_the_function_no_more(context: SinkContext) -> None:
    """Its own record knew nothing of the rename: all rows of since then went out a second time."""
    shelf = Shelf()
    run = run_of(replace(context, work_dir=context.work_dir / "shop" / "staged" / "orders"), shelf.put)
    run.sink.take_over()
    run.batch([(1, 1)])
    run.publish(1)
    new = _in_folder_of(run, "store", 2)
    new.sink.take_over()
    new.batch([(2, 2)])
    new.publish(2)
    old = run.successor(epoch=3)
    for refused in (old.sink.position, old.sink.take_over):
        with pytest.raises(InvalidRequest, match="'orders' of pipeline 'store', which was renamed"):
            refused()
    back = _in_folder_of(new, "shop", 4)
    back.sink.take_over()
    back.batch([(3, 3)])
    back.publish(3)
    assert [rows for _, rows in shelf.calls] == [[(1, 1)], [(2, 2)], [(3, 3)]]


def _in_folder_of(run: SinkRun, pipeline: str, epoch: int) -> SinkRun:
    """Return a newer attempt of a pipeline that says its former name."""
    former = run.context.work_dir
    context = replace(
        run.context,
        pipeline=PipelineId(pipeline),
        previous_pipelines=(run.context.pipeline,),
        work_dir=former.parents[2] / pipeline / "staged" / "orders",
        former_work_dirs=(former,),
    )
    return replace(run, context=context).successor(epoch=epoch)
