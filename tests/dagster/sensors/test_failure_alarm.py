"""The failure alarm as the daemon evaluates it, over a real store."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import dagster as dg
import pytest

from dagster_ckpt import AlarmMessage, PipelineOptions
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.dagster.checks.history import age_result, alarm_facts, succeeded_result
from dagster_ckpt.dagster.supervision import AlarmState
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from tests.dagster.conftest import AGO, Site, Tick

ALARM = "shop_failure_alarm"


@pytest.fixture
def heard() -> list[AlarmMessage]:
    return []


@pytest.fixture
def alarmed(site: Site, heard: list[AlarmMessage]) -> Site:
    return replace(site, options=PipelineOptions(alarm_after_failures=2, notify=heard.append))


def fail(attempt: CoordinatorHarness, stage: str = "matched") -> None:
    number = attempt.checkpoint()
    attempt.acknowledge_stage(number, "orders")
    attempt.acknowledge_stage(number, "customers")
    attempt.decline(number, stage, message="no space left on device")


def test_the_hook_hears_once_when_it_begins_and_once_when_it_is_over(
    alarmed: Site, heard: list[AlarmMessage]
) -> None:
    run = alarmed.start_run()
    attempt = alarmed.attempt(run)
    cursor = alarmed.tick(ALARM).cursor
    for _ in range(4):
        fail(attempt)
        cursor = alarmed.tick(ALARM, cursor).cursor
    attempt.completed_checkpoint()
    cursor = alarmed.tick(ALARM, cursor).cursor
    alarmed.tick(ALARM, cursor)
    assert [m.alarm.state for m in heard] == [AlarmState.RAISED, AlarmState.CLEARED]
    first = heard[0]
    assert first.text.startswith("shop: 2 checkpoints in a row have failed, the last (2) at stage matched")
    assert "no space left on device" in first.text
    assert first.alarm.reason == "CHECKPOINT_DECLINED"
    assert first.run_link == f"/runs/{run.run_id}"
    assert first.checks_link == "/assets/shop/checkpoints?view=checks"


def test_the_asset_shows_the_alarm_and_its_end(alarmed: Site) -> None:
    attempt = alarmed.attempt(alarmed.start_run())
    fail(attempt)
    fail(attempt)
    cursor = alarmed.tick(ALARM).cursor
    attempt.completed_checkpoint()
    alarmed.tick(ALARM, cursor)
    raised, cleared = alarmed.observations()
    assert raised.metadata["alarm"].value == "failures raised"
    assert raised.metadata["stage"].value == "matched, lines, totals"
    assert cleared.metadata["alarm"].value == "failures cleared"


def test_a_corrupt_cursor_costs_no_more_than_being_told_again(
    alarmed: Site, heard: list[AlarmMessage]
) -> None:
    attempt = alarmed.attempt(alarmed.start_run())
    fail(attempt)
    fail(attempt)
    for cursor in ("{", '{"failures": "many"}', "null"):
        alarmed.tick(ALARM, cursor)
    assert [m.alarm.state for m in heard] == [AlarmState.RAISED] * 3


def test_a_hook_that_fails_is_called_again_in_the_next_tick(alarmed: Site, heard: list[AlarmMessage]) -> None:
    calls: list[AlarmMessage] = []

    def unreachable(message: AlarmMessage) -> None:
        calls.append(message)
        if len(calls) == 1:
            raise ConnectionError("the chat is down")

    site = replace(alarmed, options=PipelineOptions(alarm_after_failures=1, notify=unreachable))
    fail(site.attempt(site.start_run()))
    with pytest.raises(ConnectionError):
        site.tick(ALARM)
    site.tick(ALARM)
    assert len(calls) == 2


def test_a_streak_longer_than_a_page_of_the_history_is_still_one_episode(
    alarmed: Site, heard: list[AlarmMessage]
) -> None:
    attempt = alarmed.attempt(alarmed.start_run(), tolerable_failed_checkpoints=1000)
    attempt.completed_checkpoint()
    cursor = None
    for _ in range(30):
        fail(attempt)
        cursor = alarmed.tick(ALARM, cursor).cursor
    assert [m.alarm.state for m in heard] == [AlarmState.RAISED]


# --- the two checks that read the same facts --------------------------------------------------------------------


def test_the_check_shows_streak_reason_and_stage_and_is_green_again_after_a_success(alarmed: Site) -> None:
    attempt = alarmed.attempt(alarmed.start_run())
    store, name = alarmed.resource.store(), PipelineId("shop")
    assert succeeded_result(alarm_facts(store, name, now=0.0)).passed
    fail(attempt)
    fail(attempt)
    red = succeeded_result(alarm_facts(store, name, now=0.0))
    assert not red.passed
    assert red.metadata["consecutive_failures"].value == 2
    assert red.metadata["reason"].value == "CHECKPOINT_DECLINED"
    assert red.metadata["stage"].value == "matched, lines, totals"
    attempt.completed_checkpoint()
    assert succeeded_result(alarm_facts(store, name, now=0.0)).passed


def test_the_age_check_compares_with_its_bound(alarmed: Site) -> None:
    attempt = alarmed.attempt(alarmed.start_run())
    attempt.completed_checkpoint()
    done = attempt.coordinator.record.completed[-1].completed_at
    facts = alarm_facts(alarmed.resource.store(), PipelineId("shop"), now=done + 100)
    assert age_result(facts, max_age=timedelta(seconds=101)).passed
    old = age_result(facts, max_age=timedelta(seconds=99))
    assert not old.passed
    assert old.metadata["age_s"].value == 100.0
    assert age_result(facts, max_age=None).passed
    assert age_result(None, max_age=timedelta(seconds=1)).passed


def test_the_age_check_is_evaluated_when_its_answer_changes_and_not_at_every_tick(alarmed: Site) -> None:
    """Dagster shows a check that nobody evaluates as *Not Evaluated*, though a maximum is set."""
    bound = replace(alarmed, options=PipelineOptions(max_checkpoint_age=timedelta(seconds=AGO + 600)))
    attempt = bound.attempt(bound.start_run())
    attempt.completed_checkpoint()
    first = bound.tick(ALARM)
    again = bound.tick(ALARM, first.cursor)
    late = replace(alarmed, options=PipelineOptions(max_checkpoint_age=timedelta(seconds=AGO / 2)))
    old = late.tick(ALARM, again.cursor)

    def evaluated(tick: Tick) -> list[bool]:
        found = [e for e in tick.events if isinstance(e, dg.AssetCheckEvaluation)]
        return [e.passed for e in found if e.check_name == "checkpoint_age"]

    assert [evaluated(tick) for tick in (first, again, old)] == [[True], [], [False]]
