"""Periods: of each hour and day the newest checkpoint is kept, beside the newest of all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field


class Dated(Protocol):
    """Completed checkpoint or savepoint, as periods look at it."""

    @property
    def checkpoint_id(self) -> int:
        """Its number."""
        ...

    @property
    def completed_at(self) -> float:
        """Seconds since the Unix epoch."""
        ...


HOUR, DAY = 3600.0, 86400.0


class Retention(BaseModel):
    """Checkpoints kept: the newest, and beyond these the newest of each hour and day (UTC) that has one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    keep_last: int | None = Field(default=None, ge=1)
    """So many of the newest; not set: ``num_retained``."""
    hourly: int = Field(default=0, ge=0)
    """Of so many of the latest hours that have one."""
    daily: int = Field(default=0, ge=0)
    """The same by days."""

    def standing(self, entries: Sequence[Dated]) -> dict[int, str]:
        """Return why each of those that stand for an hour or a day is kept: ``hour``, ``day`` or ``hour, day``."""
        oldest_first = sorted(entries, key=lambda e: (e.completed_at, e.checkpoint_id))
        found: dict[int, list[str]] = {}
        for name, seconds, periods in (("hour", HOUR, self.hourly), ("day", DAY, self.daily)):
            for number in newest_of_each(oldest_first, seconds, periods):
                found.setdefault(number, []).append(name)
        return {number: ", ".join(names) for number, names in found.items()}


NEWEST_ONLY = Retention()


def retention_of(given: Any) -> Any:
    """Return a setting of retention, checked. Raises ValueError with one sentence."""
    if not isinstance(given, Mapping):
        return given
    known = list(Retention.model_fields)
    for name, value in given.items():
        least = 1 if name == "keep_last" else 0
        if name not in known:
            raise ValueError(f"`{name}` is none of {', '.join(known)}")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ValueError(f"`{name}` must be a whole number, at least {least}")
    return dict(given)


def newest_of_each(oldest_first: Sequence[Dated], seconds: float, periods: int) -> Iterable[int]:
    """Return the newest of each period, of so many of the latest periods that have any."""
    newest = {s.completed_at // seconds: s.checkpoint_id for s in oldest_first}
    latest = sorted(newest, reverse=True)[:periods]
    return [newest[period] for period in latest]
