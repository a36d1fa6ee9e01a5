"""The clock of a real process."""

from __future__ import annotations

import time


class SystemClock:
    """Time of this machine."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never run backwards."""
        return time.monotonic()
