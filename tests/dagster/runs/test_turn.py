"""The turn of a run: it waits for the run that is alive, gives way to it, or takes over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from dagster_ckpt import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.lease import LEASE, RENEW_EVERY
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.core.supervision.ownership import ConcurrentRuns
from dagster_ckpt.dagster.names import SKIPPED_TAG
from dagster_ckpt.dagster.runs.turn import OpTurn, Skipped
from dagster_ckpt.runtime.attempt_setup import Admit, Occupied
from dagster_ckpt.runtime.record_store import LoadedRecord, RecordChange, RecordStore
from dagster_ckpt.runtime.turn import LOOK_EVERY
from dagster_ckpt.testing.memory import ManualClock, MemoryCoordinatorStore
from tests.spark.epoch.small_pipeline import shop


@dataclass
class Waiting:
    """Two runs of a pipeline: the first owns it, the second is the test's."""

    instance: dg.DagsterInstance
    pipeline: CheckpointedPipeline
    clock: ManualClock = field(default_factory=ManualClock)
    said: list[str] = field(default_factory=list)
    each_look: Callable[[], None] = lambda: None
    """What happens in between."""

    def __post_init__(self) -> None:
        self.records = RecordStore(MemoryCoordinatorStore())
        self.first = create_run_for_test(self.instance, status=dg.DagsterRunStatus.STARTED)
        self.second = create_run_for_test(self.instance, status=dg.DagsterRunStatus.STARTED)

    def owns(self, owner: str, **changes: object) -> None:
        """Let a run claim the next epoch."""
        changed = {"owner": owner, "root": owner, "has_mailbox": False, **changes}
        self.change(lambda old: {"epoch": old.epoch + 1, "lease_until": self.clock.now() + LEASE, **changed})

    def renews(self) -> None:
        self.change(lambda _: {"lease_until": self.clock.now() + LEASE})

    def change(self, changes: Callable[[CoordinatorRecord], dict[str, object]]) -> None:
        def decide(loaded: LoadedRecord | None) -> RecordChange[None]:
            old = CoordinatorRecord(pipeline=self.pipeline.name) if loaded is None else loaded.record
            return RecordChange(answer=None, record=old.model_copy(update=changes(old)))

        self.records.transact(self.pipeline.name, decide)

    @property
    def record(self) -> CoordinatorRecord:
        record = self.records.record(self.pipeline.name)
        assert record is not None
        return record

    def take(self, choice: ConcurrentRuns, *, root: str = "", patience: float | None = None) -> object:
        """Return the record the second run would have claimed, or what it came to."""

        def sleep(seconds: float) -> None:
            self.clock.advance(seconds)
            self.each_look()

        turn = OpTurn.of_run(
            self.instance,
            self.pipeline,
            records=self.records,
            run_id=self.second.run_id,
            root=root or self.second.run_id,
            say=self.said.append,
            choice=choice,
            patience=patience,
            clock=self.clock,
            sleep=sleep,
        )
        return turn.take(self.begin)

    def begin(self, admit: Admit) -> str:
        record = self.records.record(self.pipeline.name)
        if record is not None:
            admit(record)
        return "claimed"


@pytest.fixture
def runs(tmp_path: Path) -> Waiting:
    return Waiting(dg.DagsterInstance.ephemeral(), shop(tmp_path / "feed"))


@pytest.mark.parametrize("choice", ConcurrentRuns)
def test_a_run_of_an_idle_pipeline_begins_at_once(runs: Waiting, choice: ConcurrentRuns) -> None:
    assert runs.take(choice) == "claimed", "it has never run"
    runs.owns(runs.first.run_id, lease_until=None, status=RunStatus.SUSPENDED)
    assert runs.take(choice) == "claimed"
    assert runs.said == []


def test_a_queued_run_waits_while_the_first_renews_its_lease_and_says_so_once(runs: Waiting) -> None:
    runs.owns(runs.first.run_id)
    began = runs.clock.now()

    def live() -> None:
        if runs.clock.now() - began < 100:
            runs.renews()
        elif runs.record.lease_until is not None:
            runs.change(lambda _: {"lease_until": None, "status": RunStatus.SUSPENDED})

    runs.each_look = live
    assert runs.take(ConcurrentRuns.QUEUE) == "claimed"
    assert runs.clock.now() - began == pytest.approx(100, abs=1)
    [said] = runs.said
    assert f"waiting: run {runs.first.run_id} of pipeline 'shop' is alive" in said
    assert "UTC" in said, "until when its lease is"


def test_a_killed_run_delays_the_next_one_by_its_lease_though_dagster_says_started(runs: Waiting) -> None:
    runs.owns(runs.first.run_id)
    runs.clock.advance(RENEW_EVERY)
    began = runs.clock.now()
    assert runs.take(ConcurrentRuns.QUEUE) == "claimed"
    assert runs.clock.now() - began <= LEASE + LOOK_EVERY


def test_a_run_whose_end_dagster_saw_delays_nobody(runs: Waiting) -> None:
    runs.owns(runs.first.run_id)
    runs.instance.report_run_failed(runs.first)
    began = runs.clock.now()
    assert runs.take(ConcurrentRuns.QUEUE) == "claimed"
    assert runs.clock.now() == began


def test_a_run_that_was_silent_and_renews_its_lease_is_left_alone(runs: Waiting) -> None:
    runs.owns(runs.first.run_id)
    runs.clock.advance(5 * LEASE)
    silent_since = runs.clock.now()

    def wake() -> None:
        if runs.clock.now() - silent_since == LEASE / 2:
            runs.renews()
        if runs.clock.now() - silent_since == LEASE + 1:
            runs.instance.report_run_failed(runs.first)

    runs.each_look = wake
    assert runs.take(ConcurrentRuns.QUEUE) == "claimed"
    assert runs.clock.now() - silent_since == LEASE + 1, "only after it had ended"


def test_a_run_that_skips_ends_and_is_known_as_one_that_did_nothing(runs: Waiting) -> None:
    runs.owns(runs.first.run_id)
    skipped = runs.take(ConcurrentRuns.SKIP)
    assert isinstance(skipped, Skipped)
    assert f"run {runs.first.run_id} of pipeline 'shop' is alive" in skipped.why
    run = runs.instance.get_run_by_id(runs.second.run_id)
    assert run is not None
    assert run.tags[SKIPPED_TAG] == "true"


def test_a_retry_is_not_skipped_on_account_of_the_try_before(runs: Waiting) -> None:
    runs.owns(runs.first.run_id)
    assert runs.take(ConcurrentRuns.SKIP, root=runs.first.run_id) == "claimed"


def test_taking_over_waits_for_nobody(runs: Waiting) -> None:
    runs.owns(runs.first.run_id)
    began = runs.clock.now()
    assert runs.take(ConcurrentRuns.TAKE_OVER) == "claimed"
    assert runs.clock.now() == began


def test_of_two_runs_that_wait_one_begins_and_the_other_waits_for_it(runs: Waiting) -> None:
    third = create_run_for_test(runs.instance, status=dg.DagsterRunStatus.STARTED)
    runs.owns(runs.first.run_id)
    runs.instance.report_run_failed(runs.first)
    faster = iter([True])
    begin = runs.begin

    def overtaken(admit: Admit) -> str:
        if next(faster, False):
            runs.owns(third.run_id)
        return begin(admit)

    runs.begin = overtaken  # type: ignore[method-assign]
    runs.each_look = lambda: runs.instance.report_run_failed(third)
    assert runs.take(ConcurrentRuns.QUEUE) == "claimed"
    assert [line.split(" of ")[0] for line in runs.said] == [
        f"run {third.run_id}",
        f"waiting: run {third.run_id}",
    ]


def test_a_record_that_lost_its_database_is_nobodys(runs: Waiting) -> None:
    """The first claim makes a record above the attempts that tables remember."""
    made = CoordinatorRecord(pipeline=runs.pipeline.name, epoch=7)
    runs.begin = lambda admit: "claimed" if admit(made) is None else ""  # type: ignore[method-assign,func-returns-value]
    assert runs.take(ConcurrentRuns.QUEUE) == "claimed"


def test_whoever_has_no_patience_fails_with_what_to_do(runs: Waiting) -> None:
    runs.owns(runs.first.run_id)
    runs.each_look = runs.renews
    with pytest.raises(dg.Failure, match="is alive: wait for its end, or terminate it"):
        runs.take(ConcurrentRuns.QUEUE, patience=0.0)


@pytest.mark.parametrize("since", [0.0, LEASE + 1])
def test_a_killed_run_is_waited_for_even_without_patience(runs: Waiting, since: float) -> None:
    runs.owns(runs.first.run_id)
    runs.clock.advance(since)
    assert runs.take(ConcurrentRuns.QUEUE, patience=0.0) == "claimed"


def test_a_stream_is_waited_for_with_a_word_on_how_to_stop_it(runs: Waiting) -> None:
    runs.owns(runs.first.run_id, has_mailbox=True)
    runs.each_look = lambda: runs.instance.report_run_failed(runs.first)
    assert runs.take(ConcurrentRuns.QUEUE) == "claimed"
    assert (
        "as a stream, which does not end by itself: stop it with job shop_savepoint and action: stop, or"
        in runs.said[0]
    )


def test_a_run_that_was_canceled_while_it_waited_ends_and_claims_nothing(runs: Waiting) -> None:
    runs.owns(runs.first.run_id)
    runs.each_look = runs.renews
    runs.instance.report_run_canceled(runs.second)
    with pytest.raises(dg.Failure, match="was marked CANCELED while it waited"):
        runs.take(ConcurrentRuns.QUEUE)


def test_a_run_does_not_wait_for_itself(runs: Waiting) -> None:
    runs.owns(runs.second.run_id)
    assert runs.take(ConcurrentRuns.SKIP) == "claimed"


def test_a_claim_that_was_overtaken_is_no_claim(runs: Waiting) -> None:
    runs.owns(runs.first.run_id)
    admitted: list[Admit] = []
    runs.begin = lambda admit: admitted.append(admit) or "claimed"  # type: ignore[method-assign,func-returns-value]
    runs.instance.report_run_failed(runs.first)
    runs.take(ConcurrentRuns.QUEUE)
    runs.owns("another")
    with pytest.raises(Occupied, match="run another of pipeline 'shop' was faster"):
        admitted[0](runs.record)
