"""Orders to requeue without Spark: which a batch takes, what becomes of a row that is judged again, ordered once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dagster_ckpt.core.checkpoint.tables import RequeueRecord
from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.ext.quarantine.expectations import Action, Condition
from dagster_ckpt.ext.quarantine.requeued_rows import _due, outcome_of
from dagster_ckpt.operations.care import maintain
from dagster_ckpt.operations.care.maintain import RequeueableRows, order_requeue
from dagster_ckpt.spark.attempt.participant import Requeue
from dagster_ckpt.spark.snapshot.batch_notes import RowCounts, is_beyond
from dagster_ckpt.testing.memory import MemoryCoordinatorStore
from tests.coordinator.scenarios import two
from tests.records import stored_record

ASKED = tuple(Condition(f"v > {action}", action) for action in Action)
"""A condition of each action, whose bits in a verdict are in this order."""


@pytest.mark.parametrize(
    ("broken", "state"),
    [
        ({Action.FAIL}, "quarantined"),
        ({Action.FAIL, Action.DROP}, "quarantined"),
        ({Action.QUARANTINE}, "quarantined"),
        ({Action.DROP}, "dropped"),
        ({Action.WARN}, "requeued"),
        (set(), "requeued"),
    ],
)
def test_a_row_that_is_judged_again_fails_no_run_and_goes_on_only_where_it_may(
    broken: set[Action], state: str
) -> None:
    verdict = sum(1 << at for at, one in enumerate(ASKED) if one.action in broken)
    assert outcome_of(verdict, ASKED) == state


@pytest.mark.parametrize(
    ("taken", "taken_in", "shown", "due"),
    [
        ((), None, None, ["1", "2"]),
        (("1",), None, None, ["2"]),
        (("1", "2"), 4, 4, []),
        (("1",), 4, -1, []),
        (("1",), 4, None, ["2"]),
        (("1",), 4, 3, []),
        (("1",), 4, 4, ["2"]),
        ((), 4, 3, []),
    ],
)
def test_no_batch_takes_an_order_twice_nor_any_while_the_table_shows_rows_that_were_taken(
    taken: tuple[str, ...], taken_in: int | None, shown: int | None, due: list[str]
) -> None:
    orders = tuple(RequeueRecord(order_id=one, stage=StageUid("a"), asked_at=0.0) for one in "12")
    table: Any = SimpleNamespace(
        position=lambda: None if shown is None else SimpleNamespace(head=1, through_batch=shown)
    )
    before = RowCounts(orders=taken, requeued_in=taken_in)
    assert [one.order_id for one in _due(before, Requeue(orders, table))] == due


def test_the_same_rows_are_ordered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryCoordinatorStore()
    two(pipeline="sales", store=store)
    found = (RequeueableRows(stage=StageUid("a"), place="here", rows=3),)
    monkeypatch.setattr(maintain, "preview_requeue", lambda *_: found)
    pipeline: Any = SimpleNamespace(name=PipelineId("sales"))
    coordinator: Any = SimpleNamespace(deployment=lambda _: SimpleNamespace(store=store))
    for where in ("", " ", "tries < 2", "tries < 2"):
        assert order_requeue(pipeline, coordinator, where) == found
    assert [one.where for one in stored_record(store, PipelineId("sales")).requeue] == ["", "tries < 2"]


@pytest.mark.parametrize(
    ("at_most", "rows", "most"),
    [
        ("0.57 %", 10_000, 57),
        ("33.3 %", 3, 0),
        ("50 %", 4, 2),
        ("0 %", 5, 0),
        ("100 %", 3, 3),
        ("7", 1, 7),
        ("0 %", 0, 0),
    ],
)
def test_as_many_rows_as_may_break_a_condition_are_not_too_many(at_most: str, rows: int, most: int) -> None:
    assert (is_beyond(at_most, most, of=rows), is_beyond(at_most, most + 1, of=rows)) == (False, True)
