"""A deployment that was copied with its store, or moved: no file of another is touched."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt.digests import digest_bytes
from tests.lab.lab import WITHOUT_CAPTURE, Lab
from tests.spark.epoch.small_pipeline import Feed, shop

pytestmark = pytest.mark.usefixtures("nothing_inlined")

ONE_RETAINED = {"num_retained": 1}
"""Of those that are no originals: their first checkpoint is the end of all that the original had retained."""


def run(lab: Lab, feed: Feed, times: int = 1, **restore: str) -> None:
    """Run epochs, each with an order more, and compare the tables."""
    for _ in range(times):
        feed.order(("ann", 6))
        lab.succeeds(shop(feed.folder), **restore)
        feed.check(lab.tables)


def files_of(folder: Path) -> dict[str, str]:
    return {str(p): digest_bytes(p.read_bytes()).checksum for p in folder.rglob("*") if p.is_file()}


@dataclass
class Originals:
    """A deployment with two checkpoints and more, for the tests of a module; another one where it has been moved."""

    folder: Path
    instance: dg.DagsterInstance
    made: list[tuple[Lab, Feed]] = field(default_factory=list)

    def lab(self, folder: Path, **settings: Any) -> Lab:
        return Lab(folder, settings, given_instance=self.instance)

    def take(self) -> tuple[Lab, Feed]:
        if not self.made or not self.made[-1][0].folder.exists():
            place = self.folder / str(len(self.made))
            lab, feed = self.lab(place / "lab"), Feed(place / "feed")
            feed.customer("ann", "fr")
            feed.order(("ann", 5))
            run(lab, feed, times=2)
            self.made.append((lab, feed))
        return self.made[-1]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Originals]:
    with dg.instance_for_test(overrides=WITHOUT_CAPTURE) as instance:
        yield Originals(tmp_path_factory.mktemp("originals"), instance)


@pytest.fixture
def original(originals: Originals, spark: object) -> tuple[Lab, Feed]:
    return originals.take()


@pytest.mark.nightly
def test_a_copy_that_is_not_whole_is_not_taken_for_the_checkpoint(
    original: tuple[Lab, Feed], originals: Originals, tmp_path: Path
) -> None:
    lab, feed = original
    copy = originals.lab(tmp_path / "copy", **ONE_RETAINED)
    shutil.copytree(lab.folder, copy.folder)
    lost = next(p for p in (copy.folder / "checkpoints/shop/shared").rglob("*") if p.is_file())
    lost.unlink()
    before = files_of(lab.folder)
    run(copy, feed, times=2)
    assert files_of(lab.folder) == before


@pytest.mark.nightly
def test_a_copy_of_the_store_alone_restores_from_the_original_and_deletes_nothing_of_it(
    original: tuple[Lab, Feed], originals: Originals, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lab, feed = original
    copy = originals.lab(tmp_path / "copy", **ONE_RETAINED)
    copy.folder.mkdir()
    shutil.copy(lab.folder / "coordinator.db", copy.folder)
    shutil.copytree(lab.tables, copy.tables)
    before = files_of(lab.folder)
    with caplog.at_level(logging.WARNING, "dagster_ckpt.coordinator"):
        run(copy, feed, times=2)
    assert files_of(lab.folder) == before
    assert [r.getMessage() for r in caplog.records if "is a copy" in r.getMessage()]
    run(copy, feed, restore_from="latest")


@pytest.mark.nightly
def test_a_copy_leaves_the_original_alone_and_both_go_on(
    original: tuple[Lab, Feed], originals: Originals, tmp_path: Path
) -> None:
    lab, feed = original
    copy = originals.lab(tmp_path / "copy", **ONE_RETAINED)
    shutil.copytree(lab.folder, copy.folder)
    before = files_of(lab.folder)
    run(copy, feed, times=2)
    assert files_of(lab.folder) == before
    record = copy.record(shop(feed.folder))
    assert record.working_directory.startswith(str(copy.folder))
    [entry] = record.completed
    assert entry.location.base_uri.endswith("copy/checkpoints")
    run(lab, feed)


def test_a_moved_deployment_goes_on_with_its_checkpoints(
    original: tuple[Lab, Feed], originals: Originals, tmp_path: Path
) -> None:
    lab, feed = original
    there = originals.lab(tmp_path / "there", **ONE_RETAINED)
    lab.folder.rename(there.folder)
    before = {path.name for path in (there.folder / "checkpoints" / "shop").glob("chk-*")}
    assert {"chk-1", "chk-2"} <= before
    run(there, feed, restore_from="chk-1")
    run(there, feed)
    [left] = (there.folder / "checkpoints" / "shop").glob("chk-*")
    assert left.name not in before, "those it had before were its own to remove"
