"""The pure decisions behind alarms and restarts."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_ckpt.core.checkpoint.record import TriggerRecord
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics, CheckpointStatus, StageStatistics
from dagster_ckpt.core.messages import CheckpointFailureReason
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.dagster.supervision import (
    AlarmFacts,
    AlarmKind,
    AlarmPolicy,
    AlarmState,
    LastRun,
    LastRunFacts,
    OpenEpisodes,
    RestartDeclined,
    RestartLater,
    RestartNow,
    RestartPolicy,
    decide_restart,
    failure_streak,
    judge_alarms,
)
from dagster_ckpt.errors import InvalidRequest

# --- streaks ----------------------------------------------------------------------------------------------------


def row(number: int, status: str, reason: str = "", **fields: Any) -> CheckpointStatistics:
    return CheckpointStatistics(
        checkpoint_id=number,
        kind=fields.pop("kind", CheckpointKind.CHECKPOINT),
        status=CheckpointStatus(status),
        trigger=TriggerRecord(periodic=True),
        triggered_at=100.0 * number,
        ended_at=100.0 * number + 10,
        failure_reason=reason,
        failure_message=f"because {number}" if reason else "",
        **fields,
    )


def failed(number: int, reason: str = "CHECKPOINT_EXPIRED", **fields: Any) -> CheckpointStatistics:
    return row(number, "failed", reason, **fields)


def test_a_streak_ends_at_the_newest_completion_whatever_became_of_it() -> None:
    for status in ("completed", "subsumed", "discarded"):
        streak = failure_streak([row(6, "in_progress"), failed(5), failed(4), row(3, status), failed(2)])
        assert (streak.count, streak.completed_id) == (2, 3)


def test_stops_and_overtaken_checkpoints_say_nothing_about_health() -> None:
    healthy = ["CHECKPOINT_SUBSUMED", "CHECKPOINT_COORDINATOR_SHUTDOWN", "CHECKPOINT_COORDINATOR_SUSPEND"]
    assert failure_streak(failed(n + 1, r) for n, r in enumerate(healthy)).count == 0
    assert failure_streak([failed(1, "JOB_FAILOVER_REGION")]).count == 1


def test_every_counted_reason_is_part_of_a_streak() -> None:
    for reason in CheckpointFailureReason:
        if reason.counted:
            assert failure_streak([failed(1, reason.name)]).count == 1, reason.name


def test_a_failed_savepoint_is_no_failed_checkpoint() -> None:
    assert failure_streak([failed(1, kind=CheckpointKind.SAVEPOINT)]).count == 0


def test_the_stages_that_had_not_acknowledged_are_named() -> None:
    stages = (
        StageStatistics(uid="source", subtasks=2, acknowledged=2),
        StageStatistics(uid="join", subtasks=4, acknowledged=3),
    )
    assert failure_streak([failed(1, stages=stages)]).stages == ("join",)


# --- alarms -----------------------------------------------------------------------------------------------------


def facts(*rows: CheckpointStatistics, now: float = 10_000.0) -> AlarmFacts:
    return AlarmFacts(
        streak=failure_streak(rows), began_at=min((r.triggered_at for r in rows), default=None), now=now
    )


POLICY = AlarmPolicy(after_failures=3)


def test_people_are_told_at_the_nth_failure_and_once_per_episode() -> None:
    told = OpenEpisodes()
    announced = []
    for newest in range(2, 8):
        rows = [*(failed(n) for n in range(newest, 1, -1)), row(1, "completed")]
        decision = judge_alarms(POLICY, facts(*rows), told)
        told = decision.open
        announced += [(newest, a.state) for a in decision.announce]
    assert announced == [(4, AlarmState.RAISED)]
    healed = judge_alarms(POLICY, facts(row(8, "completed"), failed(7)), told)
    assert [a.state for a in healed.announce] == [AlarmState.CLEARED]
    assert healed.open == OpenEpisodes()


def test_an_alarm_says_how_many_where_and_why() -> None:
    stages = (StageStatistics(uid="join", subtasks=1, acknowledged=0),)
    rows = [failed(4, stages=stages, run_id="r"), failed(3), failed(2), row(1, "completed")]
    [alarm] = judge_alarms(POLICY, facts(*rows), OpenEpisodes()).announce
    assert alarm.sentence == ("3 checkpoints in a row have failed, the last (4) at stage join: because 4")
    assert (alarm.reason, alarm.run_id, alarm.completed_id) == ("CHECKPOINT_EXPIRED", "r", 1)


def test_two_episodes_with_an_unseen_success_between_are_two_alarms() -> None:
    first = judge_alarms(POLICY, facts(failed(4), failed(3), failed(2), row(1, "completed")), OpenEpisodes())
    second = judge_alarms(POLICY, facts(failed(8), failed(7), failed(6), row(5, "completed")), first.open)
    assert [a.state for a in second.announce] == [AlarmState.RAISED]


def test_age_counts_from_the_newest_completion_or_from_the_first_checkpoint() -> None:
    policy = AlarmPolicy(after_failures=None, max_age=500.0)
    young = judge_alarms(policy, facts(row(1, "completed"), now=600.0), OpenEpisodes())
    assert young.announce == ()
    old = judge_alarms(policy, facts(row(1, "completed"), now=700.0), OpenEpisodes())
    assert [(a.kind, a.state, a.age) for a in old.announce] == [(AlarmKind.AGE, AlarmState.RAISED, 590.0)]
    never = judge_alarms(policy, facts(failed(1), now=700.0), OpenEpisodes())
    assert [a.age for a in never.announce] == [600.0]
    assert judge_alarms(policy, facts(now=700.0), OpenEpisodes()).announce == ()


def test_an_alarm_of_age_clears_with_the_next_completion() -> None:
    policy = AlarmPolicy(after_failures=None, max_age=500.0)
    old = judge_alarms(policy, facts(row(1, "completed"), now=700.0), OpenEpisodes())
    assert judge_alarms(policy, facts(row(1, "completed"), now=900.0), old.open).announce == ()
    fresh = judge_alarms(policy, facts(row(9, "completed"), row(1, "completed"), now=920.0), old.open)
    assert [a.state for a in fresh.announce] == [AlarmState.CLEARED]


@pytest.mark.parametrize("wrong", [{"after_failures": 0}, {"max_age": 0.0}, {"max_age": -1.0}])
def test_a_policy_that_would_always_alarm_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        AlarmPolicy(**wrong)


# --- restarts ---------------------------------------------------------------------------------------------------

RESTARTS = RestartPolicy(max_restarts=3, delay=10.0, multiplier=2.0, max_delay=30.0)


def last(state: LastRun = LastRun.FAILED, **fields: Any) -> LastRunFacts:
    return LastRunFacts(state=state, run_id="r", ended_at=1000.0, **fields)


@pytest.mark.parametrize("state", [s for s in LastRun if s is not LastRun.FAILED])
def test_only_a_failed_run_is_restarted(state: LastRun) -> None:
    assert isinstance(decide_restart(RESTARTS, last(state), now=9999.0), RestartDeclined)


def test_the_delay_grows_with_every_restart_in_a_row_up_to_its_bound() -> None:
    assert [RESTARTS.delay_before(n) for n in (1, 2, 3, 99)] == [10.0, 20.0, 30.0, 30.0]
    later = decide_restart(RESTARTS, last(restarts=1), now=1019.0)
    assert isinstance(later, RestartLater)
    assert later.at == 1020.0
    assert decide_restart(RESTARTS, last(restarts=1), now=1020.0) == RestartNow(2)


def test_restarts_stop_when_none_of_them_completes_a_checkpoint() -> None:
    given_up = decide_restart(RESTARTS, last(restarts=3), now=9999.0)
    assert isinstance(given_up, RestartDeclined)
    assert "3 restarts in a row completed no checkpoint" in given_up.why
    assert decide_restart(RESTARTS, last(restarts=3, completed_a_checkpoint=True), now=9999.0) == RestartNow(
        1
    )


@pytest.mark.parametrize(
    "wrong", [{"max_restarts": 0}, {"delay": -1.0}, {"delay": 9.0, "max_delay": 1.0}, {"multiplier": 0.5}]
)
def test_a_restart_policy_that_means_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        RestartPolicy(**wrong)
