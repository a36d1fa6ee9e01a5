"""What an attempt leaves where its run has steps in other processes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.dagster.jobs import runs
from dagster_ckpt.dagster.runs import attempt as attempts
from dagster_ckpt.dagster.runs.attempt import PipelineAttempt
from dagster_ckpt.dagster.runs.turn import OpTurn
from dagster_ckpt.errors import CheckpointError, Fenced, InvalidRequest
from dagster_ckpt.spark.epoch.run import FailRun, RetryStage


class Noting:
    """An epoch's attempt that notes how it is left."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error
        self.left = ""

    def run_all(self, *_: Any, **__: Any) -> None:
        if self.error is not None:
            raise self.error

    def pass_on(self) -> None:
        self.left = "passed on"

    def close_after_failure(self, cause: object) -> None:
        self.left = f"closed: {type(cause).__name__}"


def attempt_with(epoch: Noting) -> PipelineAttempt:
    """Return the attempt of a run that has other steps."""
    made = object.__new__(PipelineAttempt)
    host = SimpleNamespace(run_all=lambda epoch: epoch.run_all())
    made.__dict__.update(_epoch=epoch, _host=host, _goes_on=True, _failure=None)
    return made


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ValueError("broken"), ValueError),
        (RetryStage("storage"), dg.Failure),
        (FailRun("too many"), dg.Failure),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_step_of_all_stages_that_fails_is_not_passed_on_to_the_next_step(
    error: BaseException, raised: type[BaseException]
) -> None:
    epoch = Noting(error)
    attempt = attempt_with(epoch)
    with pytest.raises(raised):
        attempt.run_all()
    attempt.leave()
    assert epoch.left == f"closed: {type(error).__name__}"


def test_one_that_ends_well_is_passed_on() -> None:
    epoch = Noting(None)
    attempt = attempt_with(epoch)
    attempt.run_all()
    attempt.leave()
    assert epoch.left == "passed on"


UPSTREAM = {"orders": [], "lines": ["orders"], "totals": ["lines"], "sums": ["orders"]}
SHOP: Any = SimpleNamespace(
    name="shop",
    stages=UPSTREAM,
    upstream=UPSTREAM,
    consumers=lambda uid: [other for other, before in UPSTREAM.items() if uid in before],
)


@pytest.mark.parametrize(
    ("only", "raised", "says"),
    [
        (None, Fenced, "run 'one' of pipeline 'shop' was fenced: run 'two' owns it with epoch 4"),
        (["restore", "lines"], Fenced, "This run must stop"),
        (
            ["lines", "sums"],
            InvalidRequest,
            "steps lines, sums .* none of them comes first.* Re-execute all steps",
        ),
        (["orders", "totals"], InvalidRequest, "steps orders, totals"),
        (["orders", "lines", "complete"], InvalidRequest, "steps complete, orders"),
        (["orders", "lines", "totals", "complete"], Fenced, "This run must stop"),
    ],
)
def test_a_step_with_a_process_of_its_own_never_claims_the_pipeline(
    monkeypatch: pytest.MonkeyPatch, only: list[str] | None, raised: type[CheckpointError], says: str
) -> None:
    def opened(*_: Any, admit: Callable[[CoordinatorRecord], None], **__: Any) -> None:
        admit(CoordinatorRecord(pipeline="shop", owner="two", epoch=4))  # as where it does not attach

    def waits(*_: Any, **__: Any) -> None:
        raise AssertionError("it waits for the pipeline, to claim it")

    monkeypatch.setattr(attempts, "has_other_steps", lambda context: True)
    monkeypatch.setattr(OpTurn, "of", waits)
    monkeypatch.setattr(PipelineAttempt, "is_open", lambda *_: False)
    monkeypatch.setattr(PipelineAttempt, "of", opened)
    run = SimpleNamespace(step_keys_to_execute=only, run_config={})
    context: Any = SimpleNamespace(run_id="one", run=run, retry_number=0)
    with pytest.raises(raised, match=says):
        runs._joined(context, SHOP, "lines")


@pytest.mark.parametrize(
    ("only", "step", "retry", "opens"),
    [
        (["lines", "totals", "complete"], "lines", 0, True),
        (["shop.lines", "shop.totals"], "lines", 0, True),
        (["lines", "totals", "complete"], "lines", 1, False),
        (["lines", "totals", "complete"], "totals", 0, False),
        (["lines", "totals", "complete"], "complete", 0, False),
        (["lines", "sums", "complete"], "lines", 0, False),
        (["restore", "orders", "lines"], "orders", 0, False),
        (["restore", "orders", "lines"], "restore", 0, False),
        (None, "orders", 0, False),
    ],
)
def test_of_a_re_executions_steps_the_one_that_all_others_come_after_opens_it_at_its_first_try(
    only: list[str] | None, step: str, retry: int, opens: bool
) -> None:
    run = SimpleNamespace(step_keys_to_execute=only)
    context: Any = SimpleNamespace(run=run, retry_number=retry)
    assert runs._opens(context, SHOP, step) is opens
