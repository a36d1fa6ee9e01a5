"""Checkpoints that are kept for their hour or day, and the shared files that stay and go with them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from dagster_ckpt.core.config import ClaimMode
from dagster_ckpt.core.messages import StateHandle
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness

HOUR, DAY = 3600.0, 86400.0
RETENTION = {"keep_last": 3, "hourly": 6, "daily": 4}


@dataclass
class Incremental:
    """A stage whose state is a file per checkpoint, of which the last few are in use; some are in use for long."""

    harness: CoordinatorHarness
    files: list[StateHandle] = field(default_factory=list)
    used: dict[int, set[str]] = field(default_factory=dict)

    def checkpoint(self) -> int:
        number = self.harness.checkpoint()
        new = self.harness.shared(number, "task", f"sst-{number}")
        long_lived = [file for position, file in enumerate(self.files) if position % 50 == 0][-2:]
        self.files.append(new)
        named = {handle.key: handle for handle in (*long_lived, *self.files[-4:])}
        self.used[number] = set(named)
        self.harness.acknowledge(number, "task", handles=list(named.values()))
        return number

    def needed(self) -> set[str]:
        """What the retained checkpoints use."""
        return {key for number in self.harness.completed for key in self.used[number]}

    def stored(self) -> set[str]:
        return {key for key in self.harness.files() if "/shared/" in key}


@pytest.mark.slow
def test_the_newest_and_one_of_each_older_hour_and_day_are_kept_with_exactly_their_files() -> None:
    h = CoordinatorHarness(retention=RETENTION, incremental=True)
    state = Incremental(h)
    for number in range(6 * 24 * 6):
        h.advance(600)
        state.checkpoint()
        assert state.needed() <= state.stored(), "a retained checkpoint lost a file"
        if number % 97 == 60:
            h.crash()
            h.recover()
            h.run()
    assert state.stored() == state.needed(), "a file without a user has stayed"
    moments = [entry.completed_at for entry in h.record.completed]
    assert len({at // HOUR for at in moments[:-3]} | {moments[-1] // HOUR}) >= 6
    assert len({at // DAY for at in moments}) == 4
    assert len(moments) <= 3 + 6 + 4
    folders = {key.split("/")[1] for key in h.files() if "/shared/" not in key}
    assert folders == {f"chk-{entry.checkpoint_id}" for entry in h.record.completed}


def test_each_says_what_it_is_kept_for() -> None:
    h = CoordinatorHarness(retention={"keep_last": 2, "hourly": 3, "daily": 1})
    h.clock.advance(HOUR - h.clock.now() % HOUR + 1)
    for _ in range(5):
        h.completed_checkpoint()
        h.advance(1800)
    kept = {entry.checkpoint_id: entry.stands_for for entry in h.record.completed}
    assert kept == {2: "hour", 4: "", 5: ""}


def test_without_periods_nothing_is_kept_beside_the_newest() -> None:
    h = CoordinatorHarness(num_retained=2)
    for _ in range(5):
        h.advance(DAY)
        h.completed_checkpoint()
    assert [entry.checkpoint_id for entry in h.record.completed] == [4, 5]


def test_periods_that_are_taken_out_of_the_settings_let_go_of_theirs_with_the_next_checkpoint() -> None:
    h = CoordinatorHarness(retention={"keep_last": 1, "daily": 5}, incremental=True)
    for _ in range(5):
        h.advance(DAY)
        h.completed_checkpoint()
    assert len(h.record.completed) == 5
    after = h.next_attempt(retention={}, num_retained=2)
    after.completed_checkpoint()
    assert [entry.checkpoint_id for entry in after.record.completed] == [5, 6]


@pytest.mark.parametrize("kept", [{"daily": 3}, {"hourly": 2, "daily": 3}])
def test_an_older_day_can_be_restored(kept: dict[str, int]) -> None:
    h = CoordinatorHarness(retention={"keep_last": 1, **kept}, incremental=True)
    state = Incremental(h)
    for _ in range(3 * 24):
        h.advance(HOUR)
        state.checkpoint()
    oldest = h.record.completed[0].checkpoint_id
    again = h.next_attempt(restore_from=f"chk-{oldest}")
    assert again.record.restored_id == oldest


def days_kept(h: CoordinatorHarness) -> set[int]:
    return {entry.checkpoint_id for entry in h.record.completed if entry.stands_for}


def test_what_a_restore_left_behind_does_not_stand_for_its_day_in_place_of_the_good_one() -> None:
    h = CoordinatorHarness(retention={"keep_last": 3, "daily": 3})
    h.clock.advance(DAY - h.clock.now() % DAY + 20 * HOUR)
    good = h.completed_checkpoint()
    h.advance(3.9 * HOUR)
    bad = [h.completed_checkpoint(), h.completed_checkpoint()]
    h.advance(9 * HOUR)
    h = h.next_attempt(restore_from=f"chk-{good}")
    new = [h.completed_checkpoint() for _ in range(6)]
    assert [entry.checkpoint_id for entry in h.record.completed] == [good, *new[-3:]]
    assert not {*bad} & {*h.completed}
    assert days_kept(h) == {good}


def test_what_an_older_restore_left_behind_stays_so() -> None:
    h = CoordinatorHarness(retention={"keep_last": 20, "daily": 3})
    for _ in range(3):
        h.completed_checkpoint()
    h = h.next_attempt(restore_from="chk-1")
    h.completed_checkpoint()
    h = h.next_attempt("run-3", restore_from="chk-4")
    h.completed_checkpoint()
    assert {e.checkpoint_id: e.is_left_behind for e in h.record.completed} == {
        1: False,
        2: True,
        3: True,
        4: False,
        5: False,
    }


def test_one_that_was_left_behind_is_back_with_what_led_to_it_when_it_is_restored_after_all() -> None:
    h = CoordinatorHarness(retention={"keep_last": 20, "daily": 3})
    for _ in range(4):
        h.completed_checkpoint()
    h = h.next_attempt(restore_from="chk-1")
    h.completed_checkpoint()
    h = h.next_attempt("run-3", restore_from="chk-3")
    left = {e.checkpoint_id for e in h.record.completed if e.is_left_behind}
    assert left == {4, 5}


def test_a_run_that_is_tried_again_or_goes_on_from_the_latest_leaves_nothing_behind() -> None:
    h = CoordinatorHarness(retention={"keep_last": 20, "daily": 3})
    for _ in range(3):
        h.completed_checkpoint()
    h = h.next_attempt(restore_from="chk-2")
    newest = h.completed_checkpoint()
    for again in (h.restart(), h.next_attempt("run-3")):
        left = {e.checkpoint_id for e in again.record.completed if e.is_left_behind}
        assert left == {3}, f"{newest} is of the present line"


def left_behind(h: CoordinatorHarness) -> set[int]:
    entries = (*h.record.completed, *h.record.savepoints)
    return {entry.checkpoint_id for entry in entries if entry.is_left_behind}


def test_a_savepoint_is_left_behind_as_a_checkpoint_is_and_stays() -> None:
    h = CoordinatorHarness(retention={"keep_last": 3, "daily": 3})
    good, bad = h.completed_savepoint(), h.completed_savepoint()
    h = h.next_attempt(restore_from=f"savepoint-{good}")
    assert left_behind(h) == {bad}
    for _ in range(5):
        h.completed_checkpoint()
    assert h.savepoints == [good, bad], "it is its owner's"


@pytest.mark.parametrize("mode", [ClaimMode.CLAIM, ClaimMode.NO_CLAIM])
def test_a_savepoint_that_was_left_behind_is_back_with_what_led_to_it(mode: ClaimMode) -> None:
    h = CoordinatorHarness(retention={"keep_last": 20, "daily": 3})
    first, before, savepoint, after = (
        h.completed_checkpoint(),
        h.completed_savepoint(),
        h.completed_savepoint(),
        h.completed_checkpoint(),
    )
    h = h.next_attempt(restore_from=f"chk-{first}")
    assert left_behind(h) == {before, savepoint, after}
    other = h.completed_savepoint()
    h = h.next_attempt("run-3", restore_from=f"savepoint-{savepoint}", claim_mode=mode)
    assert left_behind(h) == {after, other}


def test_what_came_before_a_beginning_without_state_leads_to_nothing_after_it() -> None:
    h = CoordinatorHarness(retention={"keep_last": 20, "daily": 3})
    old = (h.completed_checkpoint(), h.completed_savepoint(), h.completed_checkpoint())
    h = h.next_attempt(restore_from="none")
    assert left_behind(h) == set(), "a beginning without state lets go of no older day"
    base, after = h.completed_checkpoint(), h.completed_savepoint()
    h = h.next_attempt("run-3", restore_from=f"chk-{base}")
    assert left_behind(h) == {*old, after}
    h = h.next_attempt("run-4", restore_from=f"savepoint-{old[1]}")
    assert left_behind(h) == {old[2], base, after}, "somebody thinks better of it"


def test_restores_in_between_cost_no_retained_checkpoint_a_file() -> None:
    h = CoordinatorHarness(retention=RETENTION, incremental=True)
    state = Incremental(h)
    for number in range(1, 260):
        state.harness.advance(900)
        state.checkpoint()
        if number % 40 == 0:
            kept = state.harness.completed
            base = kept[len(kept) // 2]
            state.files = [f for f in state.files if f.key in state.used[base]]
            state.harness = state.harness.next_attempt(f"run-{number}", restore_from=f"chk-{base}")
        assert state.needed() <= state.stored(), "a retained checkpoint lost a file"
    assert any(entry.stands_for for entry in state.harness.record.completed)
    assert not any(e.stands_for and e.is_left_behind for e in state.harness.record.completed)
