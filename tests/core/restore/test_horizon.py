"""For how long a snapshot can be restored."""

from __future__ import annotations

from dagster_ckpt.core.restore.horizon import DAY, Pin, horizon_of

FILES = Pin(what="files of table /t", is_there=True)
VERSION = Pin(what="version 3 of table /d", is_there=True, until=12 * DAY, advice="Vacuum otherwise")
LATER = Pin(what="version 9 of table /e", is_there=True, until=30 * DAY)
GONE = Pin(what="version 1 of table /d", is_there=False, until=1.0, advice="Take another one")


def test_what_no_clock_removes_holds() -> None:
    found = horizon_of("chk-000007", [FILES], now=10 * DAY)
    assert (found.days, found.is_restorable, found.is_near(1000)) == (None, True, False)
    assert found.sentence() == "chk-000007 can be restored: nothing it needs is removed by a clock"


def test_the_first_thing_that_may_go_decides() -> None:
    found = horizon_of("savepoint-000007", [FILES, LATER, VERSION], now=10 * DAY)
    assert (found.days, found.next) == (2.0, VERSION)
    assert (found.is_near(3), found.is_near(2)) == (True, False)
    assert found.sentence() == (
        "savepoint-000007 can be restored for 2.0 days: then version 3 of table /d may go. Vacuum otherwise"
    )
    over = horizon_of("chk-000001", [VERSION], now=13 * DAY)
    assert (over.days, over.is_restorable, over.is_near(0.5)) == (0.0, True, True)
    assert "at any time" in over.sentence()


def test_what_is_gone_is_named_whatever_is_still_there() -> None:
    found = horizon_of("chk-000002", [VERSION, GONE], now=0.0)
    assert (found.is_restorable, found.is_near(0.1), found.lost) == (False, True, (GONE,))
    assert found.sentence() == (
        "chk-000002 can no longer be restored: version 1 of table /d is gone. Take another one"
    )
