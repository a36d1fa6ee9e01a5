"""Durations, sizes, ages and moments as people say them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

_STEPS = ((86400.0, "d", 3600.0, "h"), (3600.0, "h", 60.0, "min"), (60.0, "min", 1.0, "s"))
_SIZES = ("B", "kB", "MB", "GB", "TB", "PB")


def duration(seconds: float | None) -> str:
    """Return a duration with two units at most: ``38 ms``, ``1.2 s``, ``4 min 10 s``, ``6 d 4 h``; ``-``: none.

    Nor is there one where the clock was set back meanwhile.
    """
    if seconds is None or seconds < 0:
        return "-"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    for unit, name, below, small in _STEPS:
        if seconds >= unit:
            whole, rest = divmod(round(seconds / below), round(unit / below))
            return f"{whole} {name}" + (f" {rest} {small}" if rest else "")
    return "1 min"


def milliseconds(value: float) -> str:
    """Return a number of milliseconds as a duration."""
    return duration(value / 1000)


def ago(seconds: float) -> str:
    """Return how long ago something was, with one unit: ``33 min ago``, ``2 d ago``.

    By a clock that was ahead by more than a minute: ``2 d ahead``.
    """
    if -60 < seconds < 1:
        return "now"
    where = "ago" if seconds > 0 else "ahead"
    for unit, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if abs(seconds) >= unit:
            return f"{abs(seconds) / unit:.0f} {name} {where}"
    return f"{seconds:.0f} s {where}"


def size(count: float | None) -> str:
    """Return bytes with three digits: ``7.4 MB``; ``-``: not known."""
    if count is None:
        return "-"
    value, index = float(count), 0
    while value >= 999.5 and index < len(_SIZES) - 1:
        value, index = value / 1000, index + 1
    digits = 0 if index == 0 or value >= 99.95 else 1
    return f"{value:.{digits}f} {_SIZES[index]}"


def count(number: int) -> str:
    """Return a number with its thousands apart."""
    return f"{number:,}"


def counted(number: int, noun: str, nouns: str = "") -> str:
    """Return a number with its noun: ``1 row``, ``1,200 rows``; ``nouns``: the plural, where "s" is not enough."""
    return f"{number:,} {noun if abs(number) == 1 else nouns or noun + 's'}"


def moment(seconds: float | None) -> str:
    """Return a time as UTC, to the second; ``-``: none."""
    return "-" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
