"""For how long a snapshot can still be restored: as long as everything is there that it is pinned to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dagster_ckpt.core.units import moment

DAY = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One thing outside checkpoint storage that a snapshot cannot be restored without."""

    what: str
    """``version 12 of table /lake/orders``."""
    is_there: bool
    until: float | None = None
    """Time (seconds since the epoch) after which others may remove it, as things are set; None: no clock does."""
    advice: str = ""
    """What brings it back, or keeps it."""
    unasked: str = ""
    """Why nobody could be asked whether it is there; empty: it was looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """Horizon of a snapshot: the pins that keep it restorable, judged at a moment."""

    key: str
    pins: tuple[Pin, ...]
    lost: tuple[Pin, ...]
    """What is gone: the snapshot cannot be restored with its tables as they were."""
    next: Pin | None
    """What may be gone first; None: no clock removes any of it."""
    days: float | None
    """Days until then, 0 where others may remove it at any time; None: no clock does."""
    lost_since: float | None = None
    """When it was first seen that something is gone (seconds since the epoch)."""

    @property
    def is_restorable(self) -> bool:
        """True while nothing is gone."""
        return not self.lost

    def is_near(self, days: float) -> bool:
        """True where it is gone, or may be within so many days."""
        return bool(self.lost) or (self.days is not None and self.days < days)

    @property
    def unasked(self) -> tuple[Pin, ...]:
        """Pins that could not be looked at."""
        return tuple(pin for pin in self.pins if pin.unasked)

    def sentence(self) -> str:
        """Return the horizon as a sentence for people."""
        if self.lost:
            first = self.lost[0]
            return f"{no_longer(self.key, first.what, self.lost_since)}. {first.advice}".strip()
        return self._while_there() + "".join(
            f". {pin.what} could not be looked at: {pin.unasked}" for pin in self.unasked
        )

    def brief(self) -> str:
        """Return the horizon in a word or two, for a column: ``gone``, ``5.2 days``, ``kept``, ``kept?``."""
        if self.lost:
            return "gone"
        left = "kept" if self.days is None else f"{self.days:.1f} days"
        return f"{left}?" if self.unasked else left

    def _while_there(self) -> str:
        if self.next is None or self.days is None:
            return f"{self.key} can be restored: nothing it needs is removed by a clock"
        left = f"{self.days:.1f} days" if self.days > 0 else "0 days (it may be removed at any time)"
        return (
            f"{self.key} can be restored for {left}: then {self.next.what} may go. {self.next.advice}".strip()
        )


def no_longer(key: str, what: str, since: float | None) -> str:
    """Return that a snapshot cannot be restored any more, why, and since when that is known; empty: it can be."""
    known = "" if since is None else f", as is known since {moment(since)}"
    return f"{key} can no longer be restored: {what} is gone{known}" if what else ""


def horizon_of(key: str, pins: Sequence[Pin], *, now: float) -> Horizon:
    """Return for how long everything is there that a snapshot is pinned to."""
    clocked = [pin for pin in pins if pin.is_there and pin.until is not None]
    first = min(clocked, key=lambda pin: pin.until or 0.0, default=None)
    left = None if first is None or first.until is None else max(first.until - now, 0.0) / DAY
    return Horizon(
        key=key, pins=tuple(pins), lost=tuple(pin for pin in pins if not pin.is_there), next=first, days=left
    )
