"""kill -9 of a run's process at several points of its work, one after the other; nothing is lost or doubled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from tests.lab.child import kill_epoch_when
from tests.lab.lab import Lab
from tests.progress import wait_until
from tests.spark.epoch.small_pipeline import SHOP_IN, Feed, shop
from tests.sweeps import third

pytestmark = pytest.mark.usefixtures("nothing_inlined")


@dataclass(frozen=True)
class Point:
    """A moment of a run, seen from outside: so many paths match, with the run's epoch and checkpoint filled in."""

    name: str
    pattern: str
    times: int = 1
    more: bool = False
    """So many beyond those that match before the run."""


POINTS = [
    # The first killed run works on in the directory of attempt 1: a second batch of the chain of sources and join.
    Point("the join at work", "work/shop/attempt-1/matched/query/offsets/[0-9]*", times=2),
    Point("the join's state is being uploaded", "checkpoints/shop/shared/matched/{checkpoint}"),
    Point("the last sink at work", "tables/totals/_dagster_ckpt/staged/shop/totals/{epoch}/*"),
    Point("metadata written, about to commit", "checkpoints/shop/chk-{checkpoint}/_metadata"),
    Point("one table is published", "tables/*/_delta_log/*.json", times=3, more=True),  # both were taken over
]


def test_a_run_killed_at_one_point_after_the_other_is_made_good_by_the_next_one(
    tmp_path: Path, lab: Lab
) -> None:
    feed = Feed(tmp_path / "feed")
    pipeline = shop(feed.folder)
    feed.customer("ann", "fr")
    feed.order(*[("ann", n) for n in range(20)])
    lab.succeeds(pipeline)
    feed.customer("bob", "de")
    for point in third(POINTS):
        for _ in range(6 if point.times > 1 else 2):  # two to a batch
            feed.order(("ann", 3), ("bob", 4))
        _run_and_kill(point, tmp_path, lab, feed, lab.record(pipeline))

    lab.succeeds(pipeline)
    feed.check(lab.tables)


@pytest.mark.nightly
def test_runs_killed_on_a_warm_engine_are_made_good_by_the_next_one(tmp_path: Path, lab: Lab) -> None:
    feed = Feed(tmp_path / "feed")
    pipeline = shop(feed.folder)
    engine = tmp_path / "engine"
    feed.customer("ann", "fr")
    feed.order(*[("ann", n) for n in range(20)])
    lab.succeeds(pipeline)
    points = third((POINTS[0], POINTS[-1]))
    for point in points:
        for _ in range(6 if point.times > 1 else 2):
            feed.order(("ann", 3), ("ann", 4))
        before = lab.record(pipeline)
        _run_and_kill(point, tmp_path, lab, feed, before, warm_engine=str(engine))
    log = engine / "engine.log"
    wait_until(
        lambda: log.read_text().count("its borrower ended without giving it back") == len(points),
        "the engines end with the runs that used them",
    )

    lab.succeeds(pipeline)
    feed.check(lab.tables)


def _run_and_kill(
    point: Point, folder: Path, lab: Lab, feed: Feed, before: CoordinatorRecord, **options: str
) -> None:
    """Start a run after the one ``before`` tells of, and kill it at a point; it restores what the last kill left."""
    pattern = point.pattern.format(epoch=before.epoch + 1, checkpoint=before.next_id)
    wanted = point.times + (len(list(lab.folder.glob(pattern))) if point.more else 0)

    def reached() -> bool:
        return len(list(lab.folder.glob(pattern))) >= wanted

    kill_epoch_when(folder, SHOP_IN, reached, point.name, **options)
    feed.killed(lab.tables)
