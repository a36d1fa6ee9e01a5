"""Deletions under the test's control."""

from __future__ import annotations

from collections.abc import Callable


class ManualBackground:
    """Runs work at once, or keeps it back between ``block`` and ``release``."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        """Work kept back, in order."""
        self._is_blocked = False

    def submit(self, work: Callable[[], None]) -> None:
        """Run the work, or keep it back."""
        if self._is_blocked:
            self.waiting.append(work)
        else:
            work()

    def drain(self) -> None:
        """Do nothing more: work that is kept back stays so (a coordinator that closes must not hang a test)."""

    def block(self) -> None:
        """Keep everything back from now on."""
        self._is_blocked = True

    def release(self, count: int | None = None) -> None:
        """Run what was kept back, oldest first; with ``count`` only so many, and the rest stays blocked."""
        self._is_blocked = count is not None
        due, self.waiting = self.waiting[:count], self.waiting[len(self.waiting[:count]) :]
        for work in due:
            work()

    def forget(self) -> None:
        """Lose what was kept back, as a crash does."""
        self.waiting = []
        self._is_blocked = False
