"""Takes the pictures of the documentation from real runs: python -m scripts.screenshots [NAME ...]

Names are flights, blue-green, bad-rows and views; all without one.

Runs the reference deployment in a temporary folder, a few months of flights and a savepoint, and goes through its UI as
somebody who restores a checkpoint; then a small shop with a fork whose tables are compared, and one with a bad row;
``views``: what changes with a window's width and the reader's theme, in each.
Writes docs/images/*.png and docs/images/views/*.webp. Needs what ``make demo`` needs, and Chromium.
"""

from __future__ import annotations

import base64
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page, expect, sync_playwright

if not (IS_KEPT := "DAGSTER_CKPT_DEMO_DIR" in os.environ):  # what such a folder holds is not run again
    os.environ["DAGSTER_CKPT_DEMO_DIR"] = tempfile.mkdtemp(prefix="dagster-ckpt-pictures-")

from assets.demo_deployment import Deployment
from assets.flights import ARRIVALS, DEMO_DIR
from assets.flights_data import prepare
from tests import web_server
from tests.browser.clicking import opened_partitions
from tests.browser.deployment import Deployment as ShopDeployment
from tests.browser.deployment import deployed
from tests.browser.till import Till

MONTHS = (range(1, 32), range(32, 60), range(60, 91), range(91, 121))
"""Days of 2013 that arrive before each run."""
IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
LOCATION = "definitions.py"
FROM = "chk-000004"
FILLED_IN = re.compile(f"restore_from: '?{FROM}")
PATIENCE = 60_000
WIDTH, HEIGHT = 1400, 820
RENAMED = r"""() => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const folder = /\/\S*dagster-ckpt-pictures-\w+/g;
    while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replace(folder, "/srv/shop");
}"""
"""Calls the temporary folder of this machine by a name."""
WIDTHS = (1000, 1400)
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def main(which: Sequence[str]) -> int:
    """Take the pictures; 0 when every one shows what it should."""
    try:
        if "flights" in which:
            flights()
        if "blue-green" in which:
            blue_green()
        if "bad-rows" in which:
            bad_rows()
        if "views" in which:
            views()
    finally:
        if not IS_KEPT:
            shutil.rmtree(DEMO_DIR)
    return 0


def flights() -> None:
    """Take the pictures of the reference deployment."""
    with Deployment(DEMO_DIR) as dagster:
        if not (DEMO_DIR / "coordinator.db").exists():
            live(dagster)
        with browser() as page:
            job(page, dagster.url)
            checkpoints(page, dagster.url)
            plots(page, dagster.url)
            drop_down(page, dagster.url)
            launchpad(page, dagster.url)
            checkpoint_page(page)
            gated(dagster, page)


def blue_green() -> None:
    """A fork compared with what readers find: rows that differ, and the link that swaps readers."""
    with tempfile.TemporaryDirectory(prefix="dagster-ckpt-pictures-") as made:
        till = Till(Path(made) / "till")
        for customer, amount in (("ann", 5), ("bob", 7), ("cat", 12)):
            till.order(customer, amount)
        with deployed(Path(made)) as dagster:
            for name in ("shop", "shop_green"):
                dagster.run(name)
            dagster.run("shop_green_care", {"ops": {"care": {"config": {"action": "compare"}}}})
            with browser() as page:
                page.goto(f"{dagster.url}/assets/shop_green/checkpoints?view=events")
                page.get_by_text("Observed").first.click()
                expect(
                    page.get_by_role("link", name="Swap readers of shop to shop_green").first
                ).to_be_visible()
                take(page, "blue-green")


@contextmanager
def shop_with_a_bad_row() -> Iterator[tuple[Path, Till, ShopDeployment]]:
    """Yield the folder, the till and the Dagster of a shop that has put an order aside."""
    with tempfile.TemporaryDirectory(prefix="dagster-ckpt-pictures-") as made:
        till = Till(Path(made) / "till")
        for customer, amount in (("ann", 5), ("bob", 7), ("eve", -5)):
            till.order(customer, amount)
        with deployed(Path(made)) as dagster:
            dagster.run("shop")
            yield Path(made), till, dagster


def bad_rows() -> None:
    """A row that broke a condition: its quarantine, the red check, and the link that puts it through again."""
    with shop_with_a_bad_row() as (_, _, dagster), browser() as page:
        page.goto(f"{dagster.url}/assets/shop/quarantine/orders?view=events")
        expect(page.get_by_role("link", name="Put rows of orders through again").first).to_be_visible()
        take(page, "quarantine")


def views() -> None:
    """The pages of a pipeline and of a store, checks, the restore job and a quarantine: two widths, two themes."""
    with shop_with_a_bad_row() as (made, till, dagster):
        dagster.run("shop_savepoint", {"ops": {"savepoint": {"config": {"name": "before Tuesday"}}}})
        till.order("cat", 12)
        dagster.run("shop")
        dagster.run("shop_green")
        with served_pages(made / "state", dagster.url) as pages, browser() as page:
            for width, theme in itertools.product(WIDTHS, THEMES):
                context = page.context.browser.new_context(  # type: ignore[union-attr]
                    viewport={"width": width, "height": HEIGHT}, color_scheme=theme
                )
                chosen = f"localStorage.setItem('dagster-theme', JSON.stringify('{theme.title()}'))"
                context.add_init_script(chosen)
                of_this_width(context.new_page(), pages, dagster.url, f"{width}-{theme}")
                context.close()


def of_this_width(page: Page, pages: str, url: str, suffix: str) -> None:
    """Take each view in one width and theme."""
    page.set_default_timeout(PATIENCE)
    page.goto(f"{pages}/shop")
    expect(page.get_by_text("Where it can go back to")).to_be_visible()
    small(page, f"page-{suffix}")
    page.goto(pages)
    expect(page.get_by_role("link", name="shop_green")).to_be_visible()
    small(page, f"index-{suffix}")
    page.goto(f"{url}/assets/shop/checkpoints?view=checks")
    page.get_by_text("checkpoint_succeeded").first.click()
    expect(page.get_by_text("Latest execution").first).to_be_visible()
    small(page, f"checks-{suffix}")
    page.goto(f"{url}/locations/small_deployment.py/jobs/shop_restore/playground")
    expect(page.locator(".CodeMirror-code").first).to_contain_text("restore_from")
    small(page, f"restore-{suffix}")
    page.goto(f"{url}/assets/shop/quarantine/orders?view=events")
    expect(page.get_by_role("link", name="Put rows of orders through again").first).to_be_visible()
    small(page, f"quarantine-{suffix}")


def small(page: Page, name: str) -> None:
    """Write one picture as WebP, which takes a third of a PNG."""
    page.mouse.move(0, 0)
    page.wait_for_timeout(1500)
    page.evaluate(RENAMED)
    shot = {"format": "webp", "quality": 40}
    taken = page.context.new_cdp_session(page).send("Page.captureScreenshot", shot)
    (IMAGES / "views").mkdir(exist_ok=True)
    (IMAGES / "views" / f"{name}.webp").write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def served_pages(base: Path, dagster: str) -> Iterator[str]:
    """Serve the checkpoint pages of a deployment, with links to Dagster."""
    port = web_server.free_port()
    command = [
        sys.executable,
        "-m",
        "dagster_ckpt.cli",
        "page",
        "--serve",
        "--port",
        str(port),
        "--base",
        str(base),
    ]
    command += ["--dagster", dagster, "--location", "small_deployment.py"]
    url = f"http://127.0.0.1:{port}"
    with web_server.started(command, base.parent / "pages.log", env=os.environ) as server:
        web_server.wait_until_it_answers(url, server, base.parent / "pages.log", path="/")
        yield url


def live(dagster: Deployment) -> None:
    """Give the pipeline a past: a run per month, and a savepoint."""
    feed = prepare(ARRIVALS)
    for month, days in enumerate(MONTHS, start=1):
        for day in days:
            feed.arrive(day)
        print(f"month {month}: run {dagster.run('flights')}")
        if month == 2:
            named = {"name": "end of February", "note": "before the new schema"}
            dagster.run("flights_savepoint", {"ops": {"savepoint": {"config": named}}})


@contextmanager
def browser() -> Iterator[Page]:
    """Yield a page of the system's Chromium."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        yield page
        chromium.close()


def take(page: Page, name: str, *, height: int = HEIGHT) -> None:
    """Write one picture, when the page has come to rest: all of it, or the upper part."""
    page.wait_for_load_state("networkidle")
    page.mouse.move(0, 0)
    page.wait_for_timeout(1500)
    page.evaluate(RENAMED)
    page.screenshot(path=IMAGES / f"{name}.png", clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
    print(f"{name}.png: {(IMAGES / f'{name}.png').stat().st_size:,} bytes")


def job(page: Page, url: str) -> None:
    """The pipeline as a graph of ops."""
    page.goto(f"{url}/locations/{LOCATION}/jobs/flights")
    expect(page.get_by_text("complete", exact=True).first).to_be_visible()
    take(page, "job")


def checkpoints(page: Page, url: str) -> None:
    """A checkpoint's metadata, with the link that restores from it."""
    page.goto(f"{url}/assets/flights/checkpoints?view=events")
    page.get_by_text(FROM).first.click()
    expect(page.get_by_role("link", name=f"Restore from {FROM}").first).to_be_visible()
    take(page, "checkpoints")


def plots(page: Page, url: str) -> None:
    """Numbers of the checkpoints over time."""
    page.goto(f"{url}/assets/flights/checkpoints?view=overview")
    page.get_by_role("button", name="Plots").click()
    take(page, "plots")


def drop_down(page: Page, url: str) -> None:
    """Show the list of snapshots that the restore job can begin from."""
    page.goto(f"{url}/locations/{LOCATION}/jobs/flights_restore/playground")
    opened_partitions(page, "savepoint-000003")
    take(page, "restore-drop-down", height=345)  # below are the settings of this machine


def launchpad(page: Page, url: str) -> None:
    """The Launchpad as the link opens it."""
    page.goto(f"{url}/assets/flights/checkpoints?view=events")
    page.get_by_text(FROM).first.click()
    page.get_by_role("link", name=f"Restore from {FROM}").first.click()
    page.wait_for_url(re.compile("/playground"))
    expect(page.locator(".CodeMirror-code").first).to_contain_text(FILLED_IN)
    take(page, "restore-link")


def gated(dagster: Deployment, page: Page) -> None:
    """Show a gated restore before it restores: the preview, and the link that approves it."""
    config = {"restore_from": FROM, "mode": "gate"}
    dagster.run("flights_restore", {"ops": {"restore": {"config": config}}})
    page.goto(f"{dagster.url}/assets/flights/checkpoints?view=events")
    page.get_by_text("Observed").first.click()
    expect(page.get_by_role("link", name=f"Restore {FROM} as previewed").first).to_be_visible()
    take(page, "gated-restore")


def checkpoint_page(page: Page) -> None:
    """The page that ``dagster-ckpt page`` writes."""
    file = DEMO_DIR / "page.html"
    subprocess.run(
        [sys.executable, "-m", "dagster_ckpt.cli", "page", "-p", "flights", "--base", DEMO_DIR, "-o", file],
        check=True,
    )
    page.goto(file.as_uri())
    expect(page.get_by_text("stage by stage").first).to_be_visible()
    take(page, "checkpoint-page", height=HEIGHT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ("flights", "blue-green", "bad-rows", "views")))
