"""The checkpoint page in a real browser: whole at both widths, light and dark, and live while it is served."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import Browser, expect

from dagster_ckpt.core.checkpoint.statistics import CheckpointStatus
from dagster_ckpt.page.facts import page_facts
from dagster_ckpt.page.html import PageServer, page_html
from tests.operations.world import SALES, World
from tests.progress import QUIET


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "queries")
    world.checkpoint(1)
    world.savepoint(2)
    world.over(3, CheckpointStatus.FAILED)
    return world


def made(world: World, refresh: int | None = None) -> str:
    return page_html(page_facts(world.deployment, SALES, now=time.time()), refresh=refresh)


@pytest.mark.browser
@pytest.mark.parametrize("width", [1000, 1400])
def test_nothing_leaves_the_page_and_it_is_as_dark_as_the_reader_wants(
    chromium: Browser, world: World, tmp_path: Path, width: int
) -> None:
    file = tmp_path / "page.html"
    file.write_text(made(world))
    backgrounds = set()
    for scheme in ("light", "dark"):
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(file.as_uri())
        expect(page.get_by_text("savepoint-000002, stage by stage")).to_be_visible(timeout=QUIET * 1000)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        context.close()
    assert len(backgrounds) == 2


@pytest.mark.browser
def test_a_served_page_shows_a_new_checkpoint_by_itself(chromium: Browser, world: World) -> None:
    with PageServer("127.0.0.1", 0, lambda _: made(world, refresh=1)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        page = chromium.new_page()
        page.goto(f"{server.url}/sales")
        expect(page.get_by_text("chk-000001", exact=True).first).to_be_visible(timeout=QUIET * 1000)
        world.checkpoint(4)
        expect(page.get_by_text("chk-000004", exact=True).first).to_be_visible(timeout=QUIET * 1000)
        page.close()
        server.shutdown()
