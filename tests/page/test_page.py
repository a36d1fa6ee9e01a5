"""The checkpoint page: what it says of a pipeline, in words and units of people, and nothing that could be code."""

from __future__ import annotations

from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from dagster_ckpt.core import units
from dagster_ckpt.core.checkpoint.tables import ServingRecord
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.errors import NotFound, Unavailable
from dagster_ckpt.page.facts import CheckpointPage, Links, page_facts
from dagster_ckpt.page.html import PageServer, index_html, page_html
from dagster_ckpt.ports import AuditRow
from tests.operations.world import SALES, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two checkpoints, a savepoint, one that failed, and one in progress that waits for a stage."""
    world = World(tmp_path / "queries")
    world.live("totals", "late")
    return world


def test_what_people_had_done_is_told_with_what_they_were_shown(world: World) -> None:
    assert "Restored, forked" not in page_html(facts(world))
    version = world.store.load(SALES)
    assert version is not None
    row = AuditRow(
        pipeline=SALES,
        at=90.0,
        what="restored",
        key="chk-000001",
        uri="memory://x",
        who="ann <b>",
        run_id="0123456789",
        shown="source orders: from 9 back to 7\ntable <t>: 3 rows are set aside",
    )
    world.store.compare_and_set(SALES, version.version, version.body, (), [row])
    text = page_html(facts(world), links=Links(run=lambda run: f"/runs/{run}"))
    assert "Restored, forked, disposed of" in text
    assert 'ann &lt;b&gt; · run <a href="/runs/0123456789">01234567</a>' in text
    assert "source orders: from 9 back to 7<br>table &lt;t&gt;: 3 rows are set aside" in text


def test_whose_tables_readers_find_is_told_under_the_name(world: World) -> None:
    assert "readers find" not in page_html(facts(world))
    world.change(serving=ServingRecord(pipeline="sales_green", table_dir="/t", since=60.0, before="sales"))
    text = page_html(facts(world))
    assert "readers find the tables of sales_green since 1970-01-01 00:01:00 UTC; before: sales" in text


def facts(world: World) -> CheckpointPage:
    return page_facts(world.deployment, SALES, now=104.0)


def test_it_tells_counts_what_is_waited_for_and_what_can_be_restored(world: World) -> None:
    page = facts(world)
    assert page.is_alive
    assert [one.key for one in page.restorable] == ["savepoint-000003", "chk-000002", "chk-000001"]
    (pending,) = page.pending
    assert (pending.since, pending.missing) == (4.0, ("totals", "late"))
    assert page.newest == "savepoint-000003"
    assert [(p.uid, p.offsets) for p in page.positions] == [("totals", (("0", "pos 4"),))]
    html = page_html(page, links=Links(command="dagster-ckpt restore {} -p sales -f a&b.py".format))
    for said in (
        "checkpoint 5", "0 of 2 acknowledged", "waits for <b>totals, late</b>", "expires in 9 min 56 s", "disk full",
        "dagster-ckpt restore chk-000002 -p sales -f a&amp;b.py",
        "savepoint-000003, stage by stage", "<summary>2 subtasks",
    ):  # fmt: skip
        assert said in html, said
    assert ">FINISHED<" not in html
    ended = tuple(replace(position, is_finished=True) for position in page.positions)
    assert ">FINISHED<" in page_html(replace(page, positions=ended))


def test_with_dagster_runs_and_restores_are_links(world: World) -> None:
    links = Links(
        run=lambda run: f"/runs/{run}", restore=lambda key: f"/go?{key}&x", preview=lambda key: "/look"
    )
    html = page_html(facts(world), links=links)
    assert '<a href="/go?chk-000001&amp;x">restore →</a>' in html
    assert '<a href="/look">preview</a>' in html
    assert "dagster-ckpt restore" not in html


def test_settings_that_were_set_stand_out_and_why_the_run_failed_is_above(world: World) -> None:
    world.change(
        settings={"interval": 10.0, "retention": {"hourly": 3}}, job_failure="stage 'totals': <no> disk"
    )
    html = page_html(facts(world))
    assert html.index("stage &#x27;totals&#x27;: &lt;no&gt; disk") < html.index("Checkpoints since")
    assert '<b>interval</b></td><td class="l w">10.0</td><td class=l></td>' in html
    assert 'timeout</td><td class="l w">600.0</td><td class=l><span class=k>default</span>' in html
    world.change(settings={"of_tomorrow": True})
    assert "<b>of_tomorrow</b>" in page_html(facts(world))


def test_any_checkpoint_is_there_stage_by_stage_and_the_last_failure_with_its_cause_is_above(
    world: World,
) -> None:
    page = facts(world)
    html = page_html(page, links=Links(asset="/assets/sales/checkpoints"))
    assert html.index("checkpoint 4 failed") < html.index("Checkpoints since the pipeline exists")
    assert '<a href="/assets/sales/checkpoints">asset</a>' in html
    for number in (1, 2, 3, 4):
        assert f'<a href="#c{number}">' in html
        assert f'<div id="c{number}">' in html
    assert "<summary>savepoint 3, completed</summary>" in html
    listed = index_html({"sales": facts(world), "gone": "its record is damaged"})
    for said in (
        page.status,
        '<span class="bad">1</span>',
        "3 snapshots",
        "disk full",
        "its record is damaged",
    ):
        assert said in listed, said
    world.checkpoint(6)
    assert "checkpoint 4 failed" not in page_html(facts(world))
    assert '<span class="">0</span>' in index_html({"sales": facts(world)})


def test_a_snapshot_that_cannot_be_read_is_said_and_the_rest_is_shown(world: World) -> None:
    for key in [stored.key for stored in world.savepoints.list("") if stored.key.endswith("_metadata")]:
        world.savepoints.delete([key])
    page = facts(world)
    assert page.unreadable
    assert page.positions == ()
    assert "savepoint-000003 cannot be read" in page_html(page)


def test_a_pipeline_without_checkpoints_has_a_page(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.change(status=RunStatus.SUSPENDED)
    html = page_html(facts(world))
    assert "No checkpoint has ended yet" in html
    assert "the first completed checkpoint appears here" in html


def test_text_from_outside_is_never_code(world: World) -> None:
    record = world.record()
    evil = "<script>alert('1')</script>"
    saved = record.savepoints[0]
    label = saved.trigger.model_copy(update={"name": evil, "note": f'"{evil}'})
    world.change(savepoints=(saved.model_copy(update={"trigger": label}),), job_failure=evil)
    html = page_html(facts(world))
    assert "<script" not in html
    assert "&lt;script&gt;alert(&#x27;1&#x27;)&lt;/script&gt;" in html
    listed = index_html({evil: evil, "sales": facts(world)})
    assert "<script" not in listed
    assert listed.count("&lt;script&gt;") == 4, "a name twice, why it cannot be read, a job's failure"


def test_it_is_served_read_anew_and_says_what_there_is_not(world: World) -> None:
    def render(name: str) -> str:
        if name == "gone":
            raise NotFound("there is no pipeline 'gone'")
        if name == "broken":
            raise OverflowError("a number")
        return page_html(facts(world), refresh=5) if name else index_html({"sales": facts(world)})

    with PageServer("127.0.0.1", 0, render) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with urlopen(server.url) as answer:
            assert '<a href="/sales">' in answer.read().decode()
        with urlopen(f"{server.url}/sales") as answer:
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert 'http-equiv="refresh" content="5"' in answer.read().decode()
        with pytest.raises(HTTPError, match="404") as missing:
            urlopen(f"{server.url}/gone")
        missing.value.close()
        with pytest.raises(HTTPError, match="500") as broken:
            urlopen(f"{server.url}/broken")
        assert broken.value.read() == b"OverflowError: a number"
        broken.value.close()
        port = server.server_address[1]
        for name, status in (
            ("localhost", 200),
            ("[::1]", 200),
            ("attacker.example", 421),
            ("127.0.0.1.evil", 421),
        ):
            asked = HTTPConnection("127.0.0.1", int(port))
            asked.request("GET", "/sales", headers={"Host": f"{name}:{port}"})
            assert asked.getresponse().status == status, name
            asked.close()
        with pytest.raises(Unavailable, match="another --port"):
            PageServer("127.0.0.1", int(port), render)
        server.shutdown()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "-"), (0.0, "0 ms"), (0.0384, "38 ms"), (0.9996, "1.0 s"), (9.96, "10 s"), (59.4, "59 s"),
        (59.6, "1 min"), (250.0, "4 min 10 s"), (3600.0, "1 h"), (532_800.0, "6 d 4 h"),
    ],
)  # fmt: skip
def test_durations_have_two_units_at_most(seconds: float | None, said: str) -> None:
    assert units.duration(seconds) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (7_440_000, "7.4 MB"), (121_000, "121 kB"),
     (999_600, "1.0 MB")],
)  # fmt: skip
def test_sizes_have_three_digits(count: int | None, said: str) -> None:
    assert units.size(count) == said
