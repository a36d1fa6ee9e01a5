"""The horizon alarm as the daemon evaluates it, over a real store and topics in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dagster_ckpt import AlarmMessage, PipelineOptions
from dagster_ckpt.core.restore.horizon import DAY, Horizon, Pin, horizon_of
from dagster_ckpt.dagster.supervision import AlarmKind
from dagster_ckpt.operations.restores import horizon as operation
from tests.dagster.conftest import Site

ALARM = "shop_horizon_alarm"


def said(*days: float | None) -> tuple[Horizon, ...]:
    """Horizons of snapshots that are gone (0) or have so many days left."""
    return tuple(
        horizon_of(
            f"chk-{number}",
            [Pin(what="offset 7", is_there=left != 0, until=None if left is None else left * DAY)],
            now=0.0,
        )
        for number, left in enumerate(days)
    )


def test_people_are_told_once_when_it_is_near_and_once_when_it_is_gone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[AlarmMessage] = []
    found = said(None, 9.0, 9.0)
    monkeypatch.setattr(operation, "restorability", lambda *_, now: found)
    site = replace(site, options=PipelineOptions(notify=heard.append))
    quiet = site.tick(ALARM)
    assert not quiet.events
    found = said(None, 2.0, 9.0)
    first = site.tick(ALARM, quiet.cursor)
    again = site.tick(ALARM, first.cursor)
    found = said(None, 0, 9.0)
    gone = site.tick(ALARM, again.cursor)
    found = said(None)
    over = site.tick(ALARM, gone.cursor)
    assert [message.alarm.kind for message in heard] == [AlarmKind.HORIZON] * 2
    assert heard[0].text == "shop: chk-1 can be restored for 2.0 days: then offset 7 may go."
    assert "chk-1 can no longer be restored" in heard[1].text
    assert not again.events
    checks: list[Any] = [event for tick in (first, gone, over) for event in tick.events]
    assert [(one.check_name, one.passed) for one in checks] == [
        ("checkpoint_horizon", False),
        ("checkpoint_horizon", False),
        ("checkpoint_horizon", True),
    ]


def test_a_pipeline_that_has_not_run_is_not_told_of(site: Site) -> None:
    assert not site.tick(ALARM).events
