"""Choice of a run that finds another run of its pipeline alive: it waits, it ends, or it takes over."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from dagster_ckpt.core.settings import word_of
from dagster_ckpt.core.supervision.owner import Alive, Dead, Owner, Silent
from dagster_ckpt.errors import InvalidRequest


class ConcurrentRuns(StrEnum):
    """Treatment of a pipeline's second run."""

    QUEUE = "queue"
    """It waits for the end of the first."""
    SKIP = "skip"
    """It ends, successfully, without having done anything."""
    TAKE_OVER = "take_over"
    """It fences the first, which fails."""

    @classmethod
    def of(cls, *layers: str) -> ConcurrentRuns:
        """Return the last choice that is given: of the resource, the pipeline, the run. Raises InvalidRequest."""
        chosen = next((text for text in reversed(layers) if text), cls.QUEUE.value)
        try:
            return cls(word_of(chosen))
        except ValueError as error:
            known = ", ".join(cls)
            raise InvalidRequest(f"concurrent_runs must be one of {known}, got {chosen!r}") from error


@dataclass(frozen=True, slots=True)
class Proceed:
    """The pipeline is the run's to claim."""


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Look again soon; ``owner`` is whose end is waited for."""

    owner: Alive | Silent


@dataclass(frozen=True, slots=True)
class EndSkipped:
    """End without having done anything, because ``owner`` is alive."""

    owner: Alive


def decide_turn(
    choice: ConcurrentRuns, owner: Owner, *, is_silent: bool, is_retry: bool
) -> Proceed | WaitFor | EndSkipped:
    """Return the decision of a run about the pipeline's ``owner``, another run.

    ``is_silent``: it was watched for as long as a lease lasts and did not renew it. ``is_retry``: it is an earlier
    try of this run, whose work must not be left undone: it is waited for where another would be given way to.
    """
    match owner:
        case Dead():
            return Proceed()
        case Silent():
            return Proceed() if is_silent or choice is ConcurrentRuns.TAKE_OVER else WaitFor(owner)
        case Alive():
            pass
        case _:
            assert_never(owner)
    match choice:
        case ConcurrentRuns.TAKE_OVER:
            return Proceed()
        case ConcurrentRuns.SKIP:
            return WaitFor(owner) if is_retry else EndSkipped(owner)
        case ConcurrentRuns.QUEUE:
            return WaitFor(owner)
        case _:
            assert_never(choice)
