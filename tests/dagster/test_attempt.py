"""What an attempt leaves where its run has steps in other processes."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from dagster_ckpt.dagster.attempt import PipelineAttempt
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

    def close_after_failure(self) -> None:
        self.left = "closed"


class Resource:
    snapshot_retries = 0
    snapshot_retry_delay = 0.0


def attempt_with(epoch: Noting) -> PipelineAttempt:
    """Return the attempt of a run that has other steps."""
    made = object.__new__(PipelineAttempt)
    made.__dict__.update(_epoch=epoch, _resource=Resource(), _goes_on=True, _failed=False)
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
        attempt.run_all({})
    attempt.leave()
    assert epoch.left == "closed"


def test_one_that_ends_well_is_passed_on() -> None:
    epoch = Noting(None)
    attempt = attempt_with(epoch)
    attempt.run_all({})
    attempt.leave()
    assert epoch.left == "passed on"
