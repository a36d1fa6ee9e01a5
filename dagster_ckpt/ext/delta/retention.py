"""For how long a Delta table keeps what left it, as its properties say."""

from __future__ import annotations

import re

RETENTION = "delta.deletedFileRetentionDuration"
_DEFAULT_RETENTION = "interval 1 week"
_DEFAULT_LOG_RETENTION = "interval 30 days"
_HOURS = {
    "millisecond": 1 / 3_600_000,
    "second": 1 / 3600,
    "minute": 1 / 60,
    "hour": 1,
    "day": 24,
    "week": 168,
}


def retention_hours(configuration: dict[str, str]) -> float:
    """Return for how long a table keeps files that left it."""
    return _hours(configuration, RETENTION, _DEFAULT_RETENTION)


def log_retention_hours(configuration: dict[str, str]) -> float:
    """Return for how long a table keeps its log's entries, and so its older versions."""
    return _hours(configuration, "delta.logRetentionDuration", _DEFAULT_LOG_RETENTION)


def _hours(configuration: dict[str, str], name: str, default: str) -> float:
    text = configuration.get(name, default)
    found = re.fullmatch(r"(?:interval )?(\d+) ([a-z]+?)s?", text.strip().lower())
    if found is None or found[2] not in _HOURS:
        found = re.fullmatch(r"(?:interval )?(\d+) ([a-z]+?)s?", default)
    assert found is not None
    return int(found[1]) * _HOURS[found[2]]
