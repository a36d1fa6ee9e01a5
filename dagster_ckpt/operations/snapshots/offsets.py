"""Distance between two offsets of a source, for the kinds of offset that say it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetStep:
    """One source of a stage: from where to where; None: it had no offset."""

    source: str
    """Name or index of the source in the query."""
    start: str | None
    end: str | None
    units: int | None
    """Records, files, entries: whatever the source counts; negative going back; None: it does not say."""

    @property
    def is_same(self) -> bool:
        """True where both offsets are equal."""
        return self.start == self.end

    @property
    def number(self) -> str:
        """How much a restore to ``start`` reads again; of a source that is not as far yet, how much it passes over."""
        if self.units is None:
            return "-"
        return f"{self.units:,}" if self.units >= 0 else f"{-self.units:,} passed over"

    def sentence(self) -> str:
        """Say where a source that is at ``end`` goes with a restore to ``start``."""
        start, end = self.start or "its beginning", self.end or "its beginning"
        if self.units is None:
            return f"from {end} to {start}"
        way, does = ("back", "read again") if self.units >= 0 else ("forward", "passed over")
        return f"from {end} {way} to {start}, {counted(abs(self.units), 'unit is', 'units are')} {does}"


def step_between(source: str, start: str | None, end: str | None) -> OffsetStep:
    """Return the step from one offset (Spark's JSON text) to another."""
    return OffsetStep(source=source, start=start, end=end, units=_units(start, end))


def _units(start: str | None, end: str | None) -> int | None:
    if start == end:
        return 0
    after = _counted(end)
    before = {} if start is None else _counted(start)
    if after is None or before is None:
        return None
    if end is None:
        return -sum(before.values())
    return sum(after.values()) - sum(before.values())


def _counted(offset: str | None) -> dict[str, int] | None:
    """Return the numbers in an offset by their place in it; None where something in it is no number."""
    if offset is None:
        return {}
    try:
        value = parse_json(offset)
    except ValueError:
        return None
    found: dict[str, int] = {}
    return found if _collect(value, "", found) else None


def _collect(value: Any, place: str, found: dict[str, int]) -> bool:
    match value:
        case bool():
            return False
        case int():
            # A file source has read entry 0 when its offset is 0: the number of entries is one more.
            found[place] = value + 1 if place.endswith("/logOffset") else value
            return True
        case dict():
            return all(_collect(part, f"{place}/{name}", found) for name, part in value.items())
        case _:
            return False
