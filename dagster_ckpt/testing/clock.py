"""Time under the test's control."""

from __future__ import annotations


class ManualClock:
    """A clock that stands still until ``advance``; both its times move together."""

    def __init__(self, *, now: float = 1_000_000.0, monotonic: float = 1_000.0) -> None:
        self._now = now
        self._monotonic = monotonic

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return self._now

    def monotonic(self) -> float:
        """Seconds that never run backwards."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass. Raises ValueError for a negative number."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards: {seconds}")
        self._now += seconds
        self._monotonic += seconds
