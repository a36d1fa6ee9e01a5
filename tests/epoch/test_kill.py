"""kill -9 of a run's process at several points of its work, one after the other; nothing is lost or doubled."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from dagster_ckpt.core.record import CoordinatorRecord
from tests.epoch.conftest import Lab, failure_text
from tests.epoch.small_pipeline import Feed, read_lines, read_totals, shop

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Point:
    """A moment of a run, seen from outside: so many paths match, with the run's epoch and checkpoint filled in."""

    name: str
    pattern: str
    times: int = 1


POINTS = [
    # The first killed run works on in the directory of attempt 1, where that run's own mark lies.
    Point("sources drained, the join at work", "work/shop/attempt-1/_runs/*/customers", times=2),
    Point("the join's state is being uploaded", "checkpoints/shop/shared/matched/{checkpoint}"),
    Point("the last sink at work", "tables/totals/_dagster_ckpt/staged/{epoch}/*"),
    Point("metadata written, about to commit", "checkpoints/shop/chk-{checkpoint}/_metadata"),
    Point("a table half published", "tables/*/_dagster_ckpt/log/*0{checkpoint}.json"),
]


@pytest.mark.timeout(600)
def test_a_run_killed_at_five_points_in_turn_is_made_good_by_the_next_one(tmp_path: Path, lab: Lab) -> None:
    feed = Feed(tmp_path / "feed")
    pipeline = shop(feed.folder, data_inline_threshold=0)
    feed.customer("ann", "fr")
    feed.order(*[("ann", n) for n in range(20)])
    first = lab.run(pipeline)
    assert first.success, failure_text(first)
    feed.customer("bob", "de")
    for point in POINTS:
        for _ in range(6):
            feed.order(("ann", 3), ("bob", 4))
        _run_and_kill(point, tmp_path, lab, lab.record(pipeline))

    again = lab.run(pipeline)
    assert again.success, failure_text(again)
    assert read_lines(lab.tables) == feed.expected_lines()
    assert read_totals(lab.tables) == feed.expected_totals()


def _run_and_kill(point: Point, folder: Path, lab: Lab, before: CoordinatorRecord) -> None:
    """Start a run after the one ``before`` tells of, and kill it at a point; it restores what the last kill left."""
    pattern = point.pattern.format(epoch=before.epoch + 1, checkpoint=before.next_id)
    log = folder / "child.log"
    with log.open("ab") as said:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.epoch.kill_child", str(folder)],
            cwd=ROOT,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    until = time.monotonic() + 240
    try:
        while len(list(lab.folder.glob(pattern))) < point.times:
            assert child.poll() is None, f"ended before {point.name!r}: {log.read_text()[-3000:]}"
            assert time.monotonic() < until, f"never came to {point.name!r}: {log.read_text()[-3000:]}"
            time.sleep(0.002)
    finally:
        _kill_group(child)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)  # the driver's JVM is of the same group
    child.wait(30)
