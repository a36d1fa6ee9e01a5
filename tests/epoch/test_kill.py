"""kill -9 of a run's process at several points of its work; the next run loses and doubles nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.epoch.conftest import Lab, failure_text
from tests.epoch.small_pipeline import Feed, read_lines, read_totals, shop

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Point:
    """A moment in the second run of the pipeline, seen from outside."""

    name: str
    reached: Callable[[Path], bool]


def _exists(pattern: str, times: int = 1) -> Callable[[Path], bool]:
    return lambda lab: len(list(lab.glob(pattern))) >= times


POINTS = [
    Point("sources drained, the join at work", _exists("work/shop/attempt-1/_runs/*/customers", times=2)),
    Point("the join's state is being uploaded", _exists("checkpoints/shop/shared/matched/2")),
    Point("the last sink at work", _exists("tables/totals/_dagster_ckpt/staged/2/*")),
    Point("metadata written, about to commit", _exists("checkpoints/shop/chk-2/_metadata")),
    Point("a table half published", _exists("tables/*/_dagster_ckpt/log/*2.json")),
]


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_a_run_killed_anywhere_is_made_good_by_the_next(
    point: Point, tmp_path: Path, lab: Lab, request: pytest.FixtureRequest
) -> None:
    feed = Feed(tmp_path / "feed")
    pipeline = shop(feed.folder, data_inline_threshold=0)
    feed.customer("ann", "fr")
    feed.order(*[("ann", n) for n in range(20)])
    first = lab.run(pipeline)
    assert first.success, failure_text(first)
    feed.customer("bob", "de")
    for _ in range(6):
        feed.order(("ann", 3), ("bob", 4))

    child = subprocess.Popen(
        [sys.executable, "-m", "tests.epoch.kill_child", str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _kill_at(child, point, lab.folder)
    finally:
        _kill_group(child)

    again = lab.run(pipeline)
    assert again.success, failure_text(again)
    assert read_lines(lab.tables) == feed.expected_lines()
    assert read_totals(lab.tables) == feed.expected_totals()


def _kill_at(child: subprocess.Popen[bytes], point: Point, lab: Path) -> None:
    until = time.monotonic() + 300
    while not point.reached(lab):
        assert child.poll() is None, f"the run ended before the point was seen: {point.name}"
        assert time.monotonic() < until, f"the point was never reached: {point.name}"
        time.sleep(0.002)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)  # the driver's JVM is of the same group
    child.wait(30)
