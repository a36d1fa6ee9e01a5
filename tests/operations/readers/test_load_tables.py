"""All tables of a pipeline as of one checkpoint: what readers find while rows are published, refused and taken back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from dagster_ckpt import load_tables
from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound
from dagster_ckpt.operations.care.doctor import diagnose
from dagster_ckpt.operations.readers.load_table import LoadedTables, moment_of
from dagster_ckpt.operations.snapshots.catalog import snapshots_of
from dagster_ckpt.spark.attempt import sinks
from dagster_ckpt.testing.faulty import SimulatedCrash
from tests.operations.readers.three_tables import SINKS, Faults, Process, Shop, describe, sums_of
from tests.progress import wait_until

READS = 150
KILLS = 12


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop.begun(tmp_path / "shop")


@contextmanager
def refusing(process: Process, *uids: str) -> Iterator[None]:
    """Let these sinks refuse to publish."""
    with pytest.MonkeyPatch.context() as patch:
        for uid in uids:

            def refuse(*_: object, **__: object) -> None:
                raise OSError("nobody answers")

            patch.setattr(process.tables.of(StageUid(uid)), "publish", refuse)
        yield


def all_say(shop: Shop, checkpoint: int | None, total: int) -> bool:
    loaded = shop.load()
    found = sums_of(loaded)
    return loaded.checkpoint_id == checkpoint and set(found.values()) == {total} and set(found) == {*SINKS}


@pytest.mark.parametrize("late", [("orders",), ("ledger",), ("totals",), ("orders", "totals")])
def test_tables_are_of_the_newest_checkpoint_that_all_show_while_some_are_ahead(
    shop: Shop, late: tuple[str, ...]
) -> None:
    with pytest.raises(NotFound, match="shown by all its tables yet"):
        shop.load()
    process = Process(shop)
    assert all_say(shop, None, 0)
    process.checkpoint(1)
    process.checkpoint(2)
    assert all_say(shop, 2, 3)
    with refusing(process, *late):
        for amount in (4, 8, 16):
            process.checkpoint(amount)
            process.collect_garbage()
            assert all_say(shop, 2, 3), describe(shop.load())
    record = process.coordinator.stored_record
    assert [(one.checkpoint_id, one.is_shown) for one in snapshots_of(record)] == [(5, False), (2, True)]
    assert (
        record.late_tables == "all tables together show checkpoint 2, which stays restorable, and not 5 yet"
    )
    late_tables = [
        one.message for one in diagnose(shop.deployment(), now=0.0).findings if one.kind == "late_tables"
    ]
    assert late_tables == [record.late_tables]
    process.checkpoint(32)
    assert all_say(shop, 6, 63)
    assert [one.checkpoint_id for one in process.coordinator.stored_record.completed] == [6]
    assert process.coordinator.stored_record.late_tables == ""


def test_changes_of_tables_are_told_when_all_show_them_and_once(shop: Shop) -> None:
    process = Process(shop)
    process.checkpoint(1)
    assert {(one.uid, one.checkpoint_id, one.rows) for one in shop.told} == {(uid, 1, 1) for uid in SINKS}
    shop.told.clear()
    with refusing(process, "totals"):
        process.checkpoint(2)
        process.checkpoint(4)
    assert shop.told == []
    newer = Process(shop)  # the run ends, and the next one begins with what all show then
    assert {(one.uid, one.checkpoint_id) for one in shop.told} == {(uid, 3) for uid in SINKS}
    assert all_say(shop, 3, 7)
    shop.told.clear()
    newer.checkpoint(8)
    assert {(one.uid, one.checkpoint_id, one.rows) for one in shop.told} == {(uid, 4, 1) for uid in SINKS}


def test_a_restore_that_ends_before_it_is_whole_leaves_readers_what_they_had(shop: Shop) -> None:
    process = Process(shop)
    for amount in (1, 2):
        process.checkpoint(amount)
    with refusing(process, "orders"):
        process.checkpoint(4)

    def dies_once_tables_are_back(step: str) -> None:
        if step == "started":
            raise SimulatedCrash(step)

    with pytest.raises(SimulatedCrash):
        Process(shop, dies_once_tables_are_back, restore_from="chk-2")
    assert all_say(shop, 2, 3)
    back = Process(shop)
    assert all_say(shop, 2, 3)
    back.checkpoint(16)
    assert all_say(shop, 4, 19)


def test_tables_that_were_emptied_say_so_together_and_rows_that_are_kept_stay(shop: Shop) -> None:
    process = Process(shop)
    process.checkpoint(1)
    process.close()
    kept = Process(shop, restore_from="none", roll_back_tables=False)
    assert all_say(shop, 1, 1), "the rows were kept"
    kept.close()
    emptied = Process(shop, restore_from="none")
    assert all_say(shop, None, 0)
    emptied.checkpoint(5)
    assert all_say(shop, 2, 5)


@pytest.mark.parametrize("renamed", ["sink", "pipeline"])
def test_tables_that_lag_behind_are_read_under_the_names_they_have_now(shop: Shop, renamed: str) -> None:
    """Whoever had renamed one was told to run it, and an input of an op had newer rows of that table than of others."""
    process = Process(shop)
    process.checkpoint(1)
    process.checkpoint(2)
    with refusing(process, "totals"):
        process.checkpoint(4)
    before = shop.pipeline
    ledger = before.stages[StageUid("ledger")]
    if renamed == "sink":
        book = replace(ledger, uid=StageUid("book"), previous_uids=(ledger.uid,))
        stages = {("book" if uid == ledger.uid else uid): stage for uid, stage in before.stages.items()}
        now = replace(before, stages=stages | {"book": book})
    else:
        now = replace(before, name=PipelineId("store"), previous_names=(before.name,))
    loaded = load_tables(now, coordinator=shop)
    assert loaded.checkpoint_id == 2
    assert sums_of(loaded) == dict.fromkeys(now.stages.keys() - {"numbers"}, 3)
    moment = moment_of(now, shop)
    assert not any(moment.is_empty(uid) for uid in loaded)


def test_a_table_that_keeps_no_older_rows_is_named_and_can_be_left_out(tmp_path: Path) -> None:
    shop = Shop.begun(tmp_path / "shop", keeps_before_images=False)
    process = Process(shop)
    process.checkpoint(1)
    with pytest.raises(
        InvalidRequest, match=r"sink 'totals': .*keep_before_images=True.*without=\['totals'\]"
    ):
        shop.load()
    loaded = shop.load(without=["totals"])
    assert (sums_of(loaded), loaded.checkpoint_id) == ({"orders": 1, "ledger": 1}, 1)
    with pytest.raises(NotFound, match="no table 'sales' to leave out: it has orders, ledger, totals"):
        shop.load(without=["sales"])


class Reading:
    """A reader that goes on until it is told to stop, and compares the sums of every load."""

    def __init__(self, shop: Shop) -> None:
        self.shop, self.reads = shop, 0
        self.mixed: list[str] = []
        self.failed: list[BaseException] = []
        self.seen: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._over.is_set():
            try:
                with suppress(NotFound):  # before the first checkpoint
                    loaded = self.shop.load()
                    found = self._sums(loaded)
                    if found is None:
                        continue
                    self.reads += 1
                    self.seen.append(loaded.checkpoint_id or 0)
                    if len({*found.values()}) != 1 or self.shop.sums[self.seen[-1]] != found["orders"]:
                        self.mixed.append(f"{loaded.checkpoint_id}: {found}")
            except Exception as error:
                self.failed.append(error)
                return

    def _sums(self, loaded: LoadedTables) -> dict[str, int] | None:
        """Return the sums; None where the rows went since they were loaded, which only a newer checkpoint allows."""
        try:
            return sums_of(loaded)
        except Corrupt:
            if self.shop.load().checkpoint_id == loaded.checkpoint_id:
                raise
            return None

    def stop(self) -> None:
        self._over.set()
        wait_until(lambda: not self._thread.is_alive(), "the reader ends", moves=lambda: self.reads)


@pytest.mark.slow
def test_a_reader_never_finds_two_checkpoints_mixed_through_kills_and_refusals(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = Faults(Random(7), kill_one_in=25, refuse_one_in=6)
    monkeypatch.setattr(sinks, "publish_prepared", faults.around(sinks.publish_prepared))
    reader = Reading(shop)
    while (reader.reads < READS or faults.kills < KILLS) and not (reader.failed or reader.mixed):
        faults.is_dead = False
        with suppress(SimulatedCrash):
            process = Process(shop, faults)
            for amount in range(1, 12):
                process.checkpoint(amount)
                process.collect_garbage()
    reader.stop()
    assert not reader.failed
    assert not reader.mixed
    assert reader.seen == sorted(reader.seen), "no checkpoint that was shown is followed by an older one"
    assert faults.refusals > 0
    assert len({*reader.seen}) > 5, "the tables have moved on while they were read"
