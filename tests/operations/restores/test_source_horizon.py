"""Positions of sources in the horizon of retained snapshots."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt import CheckpointedPipeline, spark_sink, spark_source
from dagster_ckpt.authoring.targets import SourceOrigin
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.model import StageSnapshot
from dagster_ckpt.core.restore.horizon import DAY
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.operations.restores.horizon import restorability
from dagster_ckpt.operations.restores.preview import preview_restore
from dagster_ckpt.operations.snapshots.catalog import list_snapshots
from dagster_ckpt.page.facts import Links, page_facts
from dagster_ckpt.page.html import page_html
from dagster_ckpt.testing import MemoryTopics
from tests.lab.pipelines import sink, wired
from tests.operations.world import SALES, Known, World


@pytest.fixture
def topics() -> MemoryTopics:
    made = MemoryTopics()
    made.create("orders", 2, retention=7 * DAY)
    made.append("orders", 0, 10, at=1 * DAY)
    made.append("orders", 1, 10, at=2 * DAY)
    return made


def reading(origin: SourceOrigin | None, **settings: Any) -> CheckpointedPipeline:
    @spark_source(reads=origin, **settings)
    def orders(spark):  # type: ignore[no-untyped-def]
        raise AssertionError("nothing starts Spark to ask")

    return wired("sales", orders, sink("totals", lambda orders: orders))


def source_at(positions: str, uid: str = "orders") -> StageSnapshot:
    return StageSnapshot(uid=uid, parallelism=1, offsets={"0": positions})


def sentences(world: World, pipeline: CheckpointedPipeline, now: float = 3 * DAY) -> Mapping[str, str]:
    return {one.key: one.sentence() for one in restorability(pipeline, Known(world), now=now)}


def test_a_snapshot_is_restorable_as_long_as_the_topic_keeps_what_it_reads_next(
    world: World, topics: MemoryTopics
) -> None:
    world.checkpoint(1, others=(source_at('{"orders":{"0":2,"1":9}}'),))
    world.checkpoint(2, others=(source_at('{"orders":{"0":10,"1":9}}'),))
    world.checkpoint(3, others=(source_at('{"orders":{"0":10,"1":10}}'),))
    found = sentences(world, reading(topics))
    assert "for 5.0 days: then offset 2 of partition 0 of topic orders may go" in found["chk-000001"]
    assert "for 6.0 days: then offset 9 of partition 1 of topic orders may go" in found["chk-000002"]
    assert "removed by a clock" in found["chk-000003"]
    topics.expire("orders", 0, 4)
    found = sentences(world, reading(topics))
    lost = "offset 2 of partition 0 of topic orders (the earliest there is 4) is gone"
    assert found["chk-000001"].startswith(f"chk-000001 can no longer be restored: {lost}")
    assert "for 6.0 days" in found["chk-000002"]
    known = f"chk-000001 can no longer be restored: {lost}, as is known since 1970-01-04 00:00:00 UTC"
    again = sentences(world, reading(topics), now=3.5 * DAY)["chk-000001"]
    assert again.startswith(known), "when it was seen first, not when it was looked at last"
    listed = {one.key: one.lost_since for one in list_snapshots(world.deployment, SALES)}
    assert listed == {"chk-000001": 3 * DAY, "chk-000002": None, "chk-000003": None}, "known without the code"
    html = page_html(page_facts(world.deployment, SALES, now=4 * DAY), links=Links(restore="/go?{}".format))
    assert "/go?chk-000002" in html
    assert "/go?chk-000001" not in html
    assert escape(known) in html


def test_what_came_back_can_be_restored_again(world: World, tmp_path: Path) -> None:
    arrived(world, tmp_path / "days", 0)
    world.checkpoint(1, batches=0)
    arrived(world, tmp_path / "days", 1)
    world.checkpoint(2, batches=0)
    file = tmp_path / "days" / "day 1.json"
    gone = file.rename(tmp_path / "elsewhere")
    assert "can no longer be restored" in sentences(world, reading(None))["chk-000001"]
    gone.rename(file)
    assert "can be restored" in sentences(world, reading(None))["chk-000001"]
    assert not any(one.lost for one in list_snapshots(world.deployment, SALES))


def test_a_source_that_was_renamed_is_asked_by_its_former_uid(world: World, topics: MemoryTopics) -> None:
    world.checkpoint(1, others=(source_at('{"orders":{"0":2,"1":9}}', "shop_orders"),))
    assert "for 5.0 days" in sentences(world, reading(topics, previous_uids=["shop_orders"]))["chk-000001"]


def test_what_cannot_be_asked_is_said_and_is_not_lost(world: World, topics: MemoryTopics) -> None:
    for number in (1, 2):
        world.checkpoint(number, others=(source_at('{"orders":{"0":2,"1":9}}'),))
    found = sentences(world, reading(None))["chk-000001"]
    assert "topic orders could not be looked at: say where it is, @spark_source(reads=KafkaTopics" in found
    topics.is_down = True
    [second, first] = restorability(reading(topics), Known(world), now=0.0)
    assert (first.is_restorable, first.is_near(1000), first.brief()) == (True, False, "kept?")
    assert "did not answer" in second.sentence()


def arrived(world: World, folder: Path, *entries: int) -> None:
    """Let the file source of the fake query read a file in each of these batches."""
    query = world.query()
    for entry in entries:
        query.commit(1)
        file = folder / f"day {entry}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text("{}")
        line = json.dumps({"path": file.as_uri(), "timestamp": entry, "batchId": entry})
        query.write(f"sources/0/{entry}", f"v1\n{line}")
        query.write(f"offsets/{entry}", f'v1\n{{}}\n{{"logOffset":{entry}}}')


def test_files_that_came_after_a_snapshot_and_are_gone_are_told(world: World, tmp_path: Path) -> None:
    days = tmp_path / "days"
    arrived(world, days, 0, 1)
    world.checkpoint(1, batches=0)
    arrived(world, days, 2)
    world.checkpoint(2, batches=0)
    arrived(world, days, 3)
    world.checkpoint(3, batches=0)
    assert all("removed by a clock" in said for said in sentences(world, reading(None)).values())
    (days / "day 0.json").unlink()
    assert all("removed by a clock" in said for said in sentences(world, reading(None)).values()), (
        "read by all"
    )
    (days / "day 2.json").unlink()
    found = sentences(world, reading(None))
    assert (
        f"1 file of stage totals that comes after it, first {days / 'day 2.json'} is gone"
        in found["chk-000001"]
    )
    assert "removed by a clock" in found["chk-000002"]
    assert "removed by a clock" in found["chk-000003"]
    back = RestoreOptions(restore_from="chk-1")
    [refused] = preview_restore(world.deployment, back, SALES).refusals
    assert f"first {days / 'day 2.json'} is gone" in refused
    assert "say so (allow_missing_files)" in refused
    without = back.model_copy(update={"allow_missing_files": True})
    for options in (without, RestoreOptions(restore_from="chk-2")):
        assert preview_restore(world.deployment, options, SALES).refusals == ()


def test_an_origin_is_one_and_only_a_source_has_one() -> None:
    with pytest.raises(InvalidRequest, match=r"reads='orders': give KafkaTopics\(\.\.\.\)"):
        reading("orders")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="reads"):
        spark_sink(lambda orders: orders, reads=MemoryTopics())


def test_a_preview_refuses_what_a_restore_would_and_shows_positions(
    world: World, topics: MemoryTopics
) -> None:
    world.checkpoint(1, others=(source_at('{"orders":{"0":2,"1":9}}'),))
    options = RestoreOptions(restore_from="chk-1")
    possible = preview_restore(world.deployment, options, SALES, code=reading(topics))
    assert possible.is_possible
    assert [(one.offset, one.lag) for one in possible.positions[0].partitions] == [(2, 8), (9, 1)]
    topics.expire("orders", 0, 4)
    refused = preview_restore(world.deployment, options, SALES, code=reading(topics))
    assert "offset 2 of partition 0 of topic orders (the earliest there is 4) is gone" in refused.refusals[0]
    without_code = preview_restore(world.deployment, options, SALES)
    assert without_code.is_possible
    assert [one.lag for one in without_code.positions[0].partitions] == [None, None]
    topics.is_down = True
    silent = preview_restore(world.deployment, options, SALES, code=reading(topics))
    assert silent.is_possible
    assert any("is not known" in warning for warning in silent.warnings)


def test_a_preview_tells_that_only_an_epoch_reads_again_what_had_finished(
    world: World, topics: MemoryTopics
) -> None:
    ended = source_at('{"orders":{"0":2,"1":9}}').model_copy(update={"finished": True})
    world.checkpoint(1, others=(ended,))
    topics.expire("orders", 0, 4)
    options = RestoreOptions(restore_from="chk-1")
    bounded = reading(topics, boundedness="bounded")
    found = preview_restore(world.deployment, options, SALES, code=bounded)
    assert not found.refusals, "a stream goes on: the gate may not keep it"
    [told] = [warning for warning in found.warnings if "as a stream it goes on" in warning]
    assert "as an epoch: source orders cannot read on: offset 2" in told
    unbounded = reading(topics)
    refused = preview_restore(world.deployment, options, SALES, code=unbounded)
    assert not refused.is_possible, "either reads a source on that has no end"
