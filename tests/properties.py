"""Examples of property tests, and of sweeps in one process: ``make quick`` tries a fifth of those of ``make test``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import HealthCheck, settings

T = TypeVar("T")

FULL = 100
"""Examples of a test that names no number, as Hypothesis has it."""


def load_profile() -> None:
    """Choose how examples are made; ``--hypothesis-profile=quick`` chooses again, before tests are imported.

    No example is too slow: the machine may be busy with other work. In CI the same examples every time: a new
    counterexample is found at a desk, not in someone else's change.
    """
    desk = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=FULL)
    settings.register_profile("desk", desk)
    settings.register_profile("ci", desk, derandomize=True)
    settings.register_profile("quick", desk, max_examples=FULL // 5)
    settings.load_profile("ci" if os.environ.get("CI") else "desk")


def examples(number: int) -> int:
    """Return how many there are of ``number`` in this run."""
    return max(1, number * settings().max_examples // FULL)


def fifth(points: Sequence[T]) -> Sequence[T]:
    """Return the points of a sweep that this run tries: all of them, or the first and every fifth after it."""
    return points[:: FULL // settings().max_examples]
