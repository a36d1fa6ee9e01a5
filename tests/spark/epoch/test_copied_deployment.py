"""A deployment that was copied with its store, or moved: no file of another is touched."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from dagster_ckpt.digests import digest_bytes
from tests.spark.epoch.conftest import Lab, failure_text
from tests.spark.epoch.small_pipeline import Feed, read_lines, read_totals, shop


def run(lab: Lab, feed: Feed, times: int = 1, **restore: str) -> None:
    """Run epochs, each with an order more, and compare the tables."""
    for _ in range(times):
        feed.order(("ann", 6))
        result = lab.run(shop(feed.folder, data_inline_threshold=0), **restore)
        assert result.success, failure_text(result)
        assert read_lines(lab.tables) == feed.expected_lines()
        assert read_totals(lab.tables) == feed.expected_totals()


def files_of(folder: Path) -> dict[str, str]:
    return {str(p): digest_bytes(p.read_bytes()).checksum for p in folder.rglob("*") if p.is_file()}


def moved_to(lab: Lab, folder: Path) -> Lab:
    return Lab(folder, lab.instance, lab.settings)


def test_a_copy_leaves_the_original_alone_and_both_go_on(lab: Lab, small_feed: Feed, tmp_path: Path) -> None:
    run(lab, small_feed, times=2)
    copy = moved_to(lab, tmp_path / "copy")
    shutil.copytree(lab.folder, copy.folder)
    before = files_of(lab.folder)
    run(copy, small_feed, times=4)
    assert files_of(lab.folder) == before
    record = copy.record(shop(small_feed.folder))
    assert record.working_directory.startswith(str(copy.folder))
    assert all(entry.location.base_uri.endswith("copy/checkpoints") for entry in record.completed)
    run(lab, small_feed, times=2)


def test_a_copy_of_the_store_alone_restores_from_the_original_and_deletes_nothing_of_it(
    lab: Lab, small_feed: Feed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(lab, small_feed, times=2)
    copy = moved_to(lab, tmp_path / "copy")
    copy.folder.mkdir()
    shutil.copy(lab.folder / "coordinator.db", copy.folder)
    shutil.copytree(lab.tables, copy.tables)
    before = files_of(lab.folder)
    with caplog.at_level(logging.WARNING, "dagster_ckpt.coordinator"):
        run(copy, small_feed, times=4)
    assert files_of(lab.folder) == before
    assert [r.getMessage() for r in caplog.records if "is a copy" in r.getMessage()]
    run(copy, small_feed, restore_from="latest")


def test_a_moved_deployment_goes_on_with_its_checkpoints(lab: Lab, small_feed: Feed, tmp_path: Path) -> None:
    run(lab, small_feed, times=2)
    there = moved_to(lab, tmp_path / "there")
    lab.folder.rename(there.folder)
    run(there, small_feed, restore_from="chk-1")
    run(there, small_feed, times=3)
    assert len(there.record(shop(small_feed.folder)).completed) == 3


def test_a_copy_that_is_not_whole_is_not_taken_for_the_checkpoint(
    lab: Lab, small_feed: Feed, tmp_path: Path
) -> None:
    run(lab, small_feed, times=2)
    copy = moved_to(lab, tmp_path / "copy")
    shutil.copytree(lab.folder, copy.folder)
    lost = next(p for p in (copy.folder / "checkpoints/shop/shared").rglob("*") if p.is_file())
    lost.unlink()
    before = files_of(lab.folder)
    run(copy, small_feed, times=4)
    assert files_of(lab.folder) == before
