"""Restores that people chose are written down with the claim that made them true."""

from __future__ import annotations

import pytest

from dagster_ckpt.errors import InvalidRequest, NotFound
from dagster_ckpt.runtime.record_store import MOST_SHOWN, Operator
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness


def audited(h: CoordinatorHarness) -> list[tuple[str, str, str]]:
    return [(row.what, row.key, row.run_id) for row in h.store.audited(h.graph.pipeline, limit=10)]


def test_a_restore_of_a_chosen_checkpoint_has_a_row_and_going_on_from_the_latest_has_none() -> None:
    h = CoordinatorHarness(num_retained=5)
    for _ in range(3):
        h.completed_checkpoint()
    h = h.next_attempt("run-2")
    assert audited(h) == []
    h = h.next_attempt("run-3", restore_from="chk-2")
    assert audited(h) == [("restored", "chk-000002", "run-3")]
    h = h.next_attempt("run-4", restore_from="chk-1")
    assert audited(h) == [("restored", "chk-000001", "run-4"), ("restored", "chk-000002", "run-3")]


def test_a_beginning_from_nothing_that_was_asked_for_has_a_row_and_a_first_run_has_none() -> None:
    h = CoordinatorHarness()
    h.completed_checkpoint()
    assert audited(h) == []
    h = h.next_attempt("run-2", restore_from=" None ")
    assert audited(h) == [("begun", "", "run-2")]
    h.crash()
    h.recover()
    h.restart()
    assert len(audited(h)) == 1


def test_an_attempt_that_is_attached_to_or_begun_again_writes_nothing_twice() -> None:
    h = CoordinatorHarness(num_retained=5)
    h.completed_checkpoint()
    h = h.next_attempt("run-2", restore_from="chk-1")
    h.crash()
    h.recover()
    h.restart()
    assert len(audited(h)) == 1


def test_a_restore_that_is_refused_has_no_row() -> None:
    h = CoordinatorHarness()
    h.completed_checkpoint()
    with pytest.raises((NotFound, InvalidRequest)):
        h.next_attempt("run-2", restore_from="chk-7")
    assert audited(h) == []


def test_a_preview_of_a_thousand_lines_is_cut() -> None:
    text = Operator(who="ann", shown=["table totals: 3 rows are set aside"] * 1000).text
    assert len(text) == MOST_SHOWN + 1
    assert text.endswith("…")
