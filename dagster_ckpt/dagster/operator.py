"""Operator of a run: the person or machine that had it done, as far as its tags say."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_ckpt.dagster.names import DAGSTER_USER_TAG, SCHEDULE_TAG, SENSOR_TAG, USER_TAG


def who_of(tags: Mapping[str, str]) -> str:
    """Return who launched a run: the user that Dagster+ or the command line names, a schedule, a sensor; else empty."""
    for tag in (DAGSTER_USER_TAG, USER_TAG):
        if tags.get(tag):
            return tags[tag]
    for tag, kind in ((SCHEDULE_TAG, "schedule"), (SENSOR_TAG, "sensor")):
        if tags.get(tag):
            return f"{kind} {tags[tag]}"
    return ""
